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

/// A handle to a named lock, in one mode; [`Semaphore`] is one to permits. Holds nothing by itself; cheap to
/// clone and to keep.
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

/// A handle to a named semaphore: at most `n` [permits](crate::Permit) are held at once, wherever their
/// holders are. See [`Client::semaphore`](crate::Client::semaphore).
///
/// While a permit is held or waited for, another `n`, or the name as a read-write lock, is refused as
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

    /// The same lock, asked for and held with these options. What is not set in them is as the handle has it:
    /// first as the client's defaults say, set in code or in a URL.
    ///
    /// # Errors
    /// `InvalidInput` for what makes no sense, also together with what is inherited, such as a ttl below the
    /// default minimum hold; `Unsupported` for what the backend cannot do.
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

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.ask.name
    }

    /// The mode in which this handle asks.
    pub fn mode(&self) -> Mode {
        self.ask.mode
    }

    /// Takes the lock if it is free; `None` if somebody else holds it or waits for it. Never waits for a
    /// holder.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the future leaves nothing held or queued. What may have reached the
    /// store is undone in the background, at the latest by its ttl.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, `LimitReached`, `BackendData`, `InvalidInput` (a permit count that
    /// others do not share), `Closed`; `Unknown` if it may be held for a while although no guard exists.
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

    /// Takes the lock, waiting for its holders for as long as [`LockOptions::wait_limit`] says: for ever
    /// unless set.
    ///
    /// Where the backend has a queue, waiters are served by priority, then in the order of their arrival.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the future leaves nothing held or queued, and whoever is behind it
    /// in line is let in. Its place in line is lost.
    ///
    /// # Errors
    /// `Timeout` when the wait limit ran out, with nothing held or queued; otherwise as
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

    /// [`acquire`](Self::acquire) with this wait limit, counted from the call. Zero is the same as
    /// [trying](Self::try_acquire) once, with `Timeout` for "held".
    ///
    /// When the limit is reached, the request is first withdrawn, so that `Timeout` is true. If the store
    /// does not confirm that within [`LockOptions::WITHDRAWAL`], the answer is `Unknown`, and the client goes
    /// on withdrawing in the background.
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
        // The guard is made before anybody observes: should an observer panic, it lets go.
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

    /// Runs `body` under the lock, and *cancels it when the lock is lost*: its future is dropped at the await
    /// where it is. The body gets a [`Held`] to read the token and the deadline from. Afterwards the lock is
    /// released.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it leaves nothing. Dropped while the body runs, the body is dropped and the
    /// lock released.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before the body was through; otherwise as [`acquire`](Self::acquire). A
    /// release whose outcome is not known is not an error here: the body ran under the lock, and the release
    /// goes on in the background.
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
    /// The same lock, re-entrant for that owner: while one of its guards holds the lock, further acquires
    /// with the same owner succeed at once, without asking the store; the lock is free when as many guards
    /// have let go.
    ///
    /// The owner is this value and its clones, never a thread, a task or a label, and it is local to this
    /// client. All guards share one lease and one token; when it is lost, it is lost at every level.
    ///
    /// # Errors
    /// `InvalidInput` for an owner of another client, or for a shared mode.
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
            let message = "re-entry is for exclusive locks: shared holds do not exclude one another";
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
    /// How many permits there are.
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
