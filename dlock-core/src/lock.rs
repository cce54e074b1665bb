//! Handles to named locks and semaphores.

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Ask, Engine, Patience, acquire};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Held};
use crate::mode::{Mode, Permits, ReadWrite};
use crate::name::LockName;
use crate::observe;
use crate::options::LockOptions;
use crate::reentrant::Owner;
use crate::runtime::Runtime;

/// A handle to a named lock in one mode. [`Semaphore`] is a handle to permits.
///
/// A handle holds nothing; [acquiring](Self::acquire) returns a [`Guard`], which does. Handles are cheap to
/// clone and to keep. From [`Client::lock`](crate::Client::lock), or from an [`RwLock`](crate::RwLock).
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let lock = client.lock("orders/42")?;
/// let guard = lock.acquire().await?;
/// assert!(guard.is_valid());
/// guard.release().await?;
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Lock<C = ReadWrite> {
    engine: Arc<Engine>,
    ask: Ask,
    owner: Option<Owner>,
    class: PhantomData<fn() -> C>,
}

/// A handle to a named semaphore: at most `n` [permits](crate::Permit) are held at once, across all clients.
/// From [`Client::semaphore`](crate::Client::semaphore).
///
/// While a permit is held or waited for, requests with another `n`, and readers of the same name, fail with
/// `InvalidInput`. The exclusive lock of the same name waits for all permits.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let pool = client.semaphore("licences", 2)?;
/// let (a, b) = (pool.acquire().await?, pool.acquire().await?);
/// assert!(pool.try_acquire().await?.is_none());
/// # drop((a, b));
/// # Ok(()) });
/// ```
pub type Semaphore = Lock<Permits>;

impl<C> Lock<C> {
    pub(crate) fn new(engine: Arc<Engine>, ask: Ask) -> Self {
        Self {
            engine,
            ask,
            owner: None,
            class: PhantomData,
        }
    }

    /// Returns this handle with `options` on top of what it has. Options that are not set in `options` stay
    /// as they are: at first the client's defaults, from code or from the URL.
    ///
    /// # Errors
    /// `InvalidInput` for values that make no sense, alone or together with inherited ones, such as a ttl
    /// below the default minimum hold. `Unsupported` for what the backend cannot do. Nothing is sent.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use std::time::Duration;
    /// use dlock::LockOptions;
    /// let lock = client.lock("nightly")?.options(LockOptions::new().ttl(Duration::from_secs(20)))?;
    /// assert_eq!(lock.acquire().await?.ttl(), Duration::from_secs(20));
    /// # Ok(()) });
    /// ```
    pub fn options(mut self, options: LockOptions) -> Result<Self> {
        let terms = self.ask.options.with(options);
        terms
            .check(&self.engine.caps)
            .map_err(|e| e.with_name(&self.ask.name))?;
        self.ask.options = Arc::new(terms);
        Ok(self)
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.ask.name
    }

    /// Returns the mode in which this handle acquires.
    pub fn mode(&self) -> Mode {
        self.ask.mode
    }

    /// Acquires the lock if it is free. Returns `None` if somebody else holds it or waits for it. Never waits
    /// for a holder.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the future leaves nothing held or queued. A request that may have
    /// reached the store is undone in the background, or expires with its ttl.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, `LimitReached`, `BackendData`, `Closed`. `InvalidInput` for a mode
    /// that does not fit the other users of the name. `Unknown` if the store may keep the lock for a while
    /// although there is no guard.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// match client.lock("import")?.try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else imports"),
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard<C>>> {
        self.acquire_as(Patience::Try).await
    }

    /// Acquires the lock, waiting for [`LockOptions::wait_limit`] at most. By default it waits as long as
    /// needed.
    ///
    /// If the backend has a queue, waiters are served by priority, then in order of arrival.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the future leaves nothing held or queued, and waiters behind it
    /// move up. It loses its place in the queue.
    ///
    /// # Errors
    /// `Timeout` if the wait limit was reached; nothing is held or queued then. Otherwise as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let guard = client.lock("import")?.acquire().await?;
    /// println!("ours for {:?} yet", guard.remaining());
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    pub async fn acquire(&self) -> Result<Guard<C>> {
        self.wait(self.ask.options.wait_limit).await
    }

    /// Acquires the lock, waiting for `limit` at most, counted from this call. Overrides
    /// [`LockOptions::wait_limit`]. With a limit of zero it tries once, as [`try_acquire`](Self::try_acquire)
    /// does, and fails with `Timeout` if the lock is held.
    ///
    /// When the limit is reached, the request is withdrawn first, so that after `Timeout` nothing is held. If
    /// the store does not confirm this within [`LockOptions::WITHDRAWAL`], the error is `Unknown`, and the
    /// client continues to withdraw the request in the background.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use std::time::Duration;
    /// use dlock::ErrorKind;
    /// let lock = client.lock("import")?;
    /// let held = lock.acquire().await?;
    /// let e = lock.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
    /// assert_eq!(e.kind(), ErrorKind::Timeout);
    /// # drop(held);
    /// # Ok(()) });
    /// ```
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Guard<C>> {
        self.wait(Some(limit)).await
    }

    pub(crate) async fn wait(&self, limit: Option<Duration>) -> Result<Guard<C>> {
        let patience = match limit {
            Some(Duration::ZERO) => Patience::Try,
            limit => Patience::Wait(limit),
        };
        match self.acquire_as(patience).await? {
            Some(guard) => Ok(guard),
            None => Err(
                Error::new(ErrorKind::Timeout, "the lock was not free within the wait limit")
                    .with_name(&self.ask.name),
            ),
        }
    }

    async fn acquire_as(&self, patience: Patience) -> Result<Option<Guard<C>>> {
        if let Some(owner) = &self.owner {
            return Box::pin(owner.acquire(&self.engine, &self.ask, patience)).await;
        }
        // The guard is created before anything is observed: if an observer panics, the guard releases the
        // lock.
        let acquired = async {
            let lease = acquire(&self.engine, &self.ask, patience).await?;
            Ok(lease.map(|lease| Guard::new(self.engine.clone(), lease)))
        };
        let now = || self.engine.now();
        observe::acquiring(
            self.engine.caps.backend,
            &self.ask.name,
            self.ask.mode,
            now,
            pin!(acquired),
        )
        .await
    }

    /// Acquires the lock, runs `body`, and releases the lock. If the lock is lost, `body` is *cancelled*: its
    /// future is dropped at the await where it is suspended.
    ///
    /// `body` gets a [`Held`], which has the token and the deadline.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropped while it waits for the lock, it leaves nothing behind. Dropped while `body` runs,
    /// `body` is dropped and the lock released.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before `body` finished; otherwise as [`acquire`](Self::acquire). A release
    /// with an unknown outcome is no error here: `body` ran under the lock, and the release continues in the
    /// background.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let sold = client.lock("stock")?.with(|held| async move { held.token().is_some() }).await?;
    /// assert!(sold);
    /// # Ok(()) });
    /// ```
    pub async fn with<T, F>(&self, body: impl FnOnce(Held) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        let done = guard.while_held(body(guard.held())).await;
        let result = done.map_err(|reason| Error::lost(reason).with_name(&self.ask.name))?;
        match guard.release().await {
            Err(e) if e.kind() == ErrorKind::Lost => Err(e),
            _ => Ok(result),
        }
    }
}

impl Lock {
    /// Returns this handle, re-entrant for `owner`. While one of the owner's guards holds the lock, further
    /// acquires with the same owner succeed at once, without a request to the store. The lock is released
    /// with the last of these guards.
    ///
    /// The owner is the value `owner` and its clones. It is never a thread, a task or a label, and works
    /// within this client only. All its guards share one lease and one token. When the lease is lost, all of
    /// them are.
    ///
    /// # Errors
    /// `InvalidInput` if `owner` belongs to another client, or if this handle is for a shared mode.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let owner = client.owner();
    /// let lock = client.lock("ledger")?.reentrant(&owner)?;
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?;
    /// assert_eq!(outer.token(), inner.token());
    /// outer.release().await?;
    /// assert!(inner.is_valid());
    /// inner.release().await?;
    /// # Ok(()) });
    /// ```
    pub fn reentrant(mut self, owner: &Owner) -> Result<Self> {
        let named = |e: Error| e.with_name(&self.ask.name);
        owner.check(&self.engine).map_err(named)?;
        if !self.ask.mode.is_exclusive() {
            let message = "only exclusive locks can be re-entrant: shared holds do not exclude one another";
            return Err(named(Error::new(ErrorKind::InvalidInput, message)));
        }
        self.owner = Some(owner.clone());
        Ok(self)
    }

    /// Whether an owner was given to it.
    #[cfg(feature = "sim")]
    pub(crate) fn is_reentrant(&self) -> bool {
        self.owner.is_some()
    }

    /// The same name in another mode.
    pub(crate) fn in_mode(&self, mode: Mode) -> Self {
        let mut lock = self.clone();
        lock.ask.mode = mode;
        lock
    }

    /// Whether both handles are of one client.
    pub(crate) fn is_of_same_client(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// How long `acquire` waits.
    pub(crate) fn wait_limit(&self) -> Option<Duration> {
        self.ask.options.wait_limit
    }

    /// The runtime of its client.
    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.engine.runtime
    }
}

impl Semaphore {
    /// Returns the number of permits, held or not.
    pub fn permits(&self) -> u32 {
        match self.ask.mode {
            Mode::Shared { limit: Some(n) } => n.get(),
            _ => u32::MAX,
        }
    }

    /// For code that holds locks and permits alike, and converts neither.
    #[cfg(feature = "sim")]
    pub(crate) fn into_lock(self) -> Lock {
        Lock::new(self.engine, self.ask)
    }
}

impl<C> fmt::Debug for Lock<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.ask.name)
            .field("mode", &self.ask.mode)
            .finish_non_exhaustive()
    }
}
