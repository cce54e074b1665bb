//! A handle to a named lock.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::engine::{Ask, Engine, Patience, acquire};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, Held};
use crate::mode::Mode;
use crate::name::LockName;
use crate::observe;
use crate::options::LockOptions;
use crate::reentrant::Owner;
use crate::runtime::Runtime;

/// A handle to a named lock, in one mode. Holds nothing by itself; cheap to clone and to keep.
///
/// # Examples
/// ```
/// # dlock_core::doc_block_on(async {
/// # let client = dlock_core::doc_client();
/// let lock = client.lock("orders/42")?;
/// let guard = lock.acquire().await?;
/// assert!(guard.is_valid());
/// guard.release().await?;
/// # Ok::<(), dlock_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Lock {
    engine: Arc<Engine>,
    ask: Ask,
    owner: Option<Owner>,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, ask: Ask) -> Self {
        Self {
            engine,
            ask,
            owner: None,
        }
    }

    /// The same lock, asked for and held with these options. What is not set in them is as the handle has it: first as the client's
    /// defaults say, set in code or in a URL. A default is taken back by its `no_...`, as with [`LockOptions::no_wait_limit`].
    ///
    /// # Errors
    /// `InvalidInput` for what makes no sense, be it with what is inherited, as a ttl that is shorter than the default minimum hold;
    /// `Unsupported` for what the backend cannot do.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc_block_on(async {
    /// # let client = dlock_core::doc_client();
    /// # use dlock_core as dlock;
    /// use std::time::Duration;
    /// use dlock::LockOptions;
    /// let lock = client.lock("nightly")?.options(LockOptions::new().ttl(Duration::from_secs(20)))?;
    /// assert_eq!(lock.acquire().await?.ttl(), Duration::from_secs(20));
    /// # Ok::<(), dlock_core::Error>(()) }).unwrap();
    /// ```
    pub fn options(mut self, options: LockOptions) -> Result<Self> {
        let terms = self.ask.options.with(options);
        terms
            .check(&self.engine.caps)
            .map_err(|e| e.with_name(&self.ask.name))?;
        self.ask.options = Arc::new(terms);
        Ok(self)
    }

    /// The same lock, re-entrant for that owner: while one of its guards holds the lock, further acquires with the same
    /// owner succeed at once, without asking the store; the lock is free when as many guards have let go.
    ///
    /// The owner is this value and its clones, never a thread, a task or a label, and it is local to this client. All
    /// guards share one lease and one token; when it is lost, it is lost at every level.
    ///
    /// # Errors
    /// `InvalidInput` for an owner of another client, or for a shared mode.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc_block_on(async {
    /// # let client = dlock_core::doc_client();
    /// let owner = client.owner();
    /// let lock = client.lock("ledger")?.reentrant(&owner)?;
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?;
    /// outer.release().await?;
    /// assert!(inner.is_valid());
    /// inner.release().await?;
    /// # Ok::<(), dlock_core::Error>(()) }).unwrap();
    /// ```
    pub fn reentrant(mut self, owner: &Owner) -> Result<Self> {
        owner
            .check(&self.engine)
            .map_err(|e| e.with_name(&self.ask.name))?;
        if !self.ask.mode.is_exclusive() {
            let message = "re-entry is for exclusive locks: shared holds of one owner do not exclude one another anyway";
            return Err(Error::new(ErrorKind::InvalidInput, message).with_name(&self.ask.name));
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

    /// The runtime of its client.
    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.engine.runtime
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.ask.name
    }

    /// The mode in which this handle asks.
    pub fn mode(&self) -> Mode {
        self.ask.mode
    }

    /// Takes the lock if it is free; `None` if somebody else holds it or waits for it. Never waits for a holder.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the future leaves nothing held or queued. What may have reached the store is undone
    /// in the background, at the latest by its ttl.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, `LimitReached`, `BackendData`, `InvalidInput` (a permit count that others do not
    /// share), `Closed`; `Unknown` if it may be held for a while although no guard exists.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc_block_on(async {
    /// # let client = dlock_core::doc_client();
    /// let lock = client.lock("import")?;
    /// match lock.try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else imports"),
    /// }
    /// # Ok::<(), dlock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.acquire_as(Patience::Try).await
    }

    /// Takes the lock, waiting for its holders for as long as [`LockOptions::wait_limit`] says, which is for ever unless set.
    ///
    /// Where the backend has a queue, waiters are served by priority, then in the order of their arrival.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the future leaves nothing held or queued, and whoever is behind it in line is let in.
    /// Its place in line is lost.
    ///
    /// # Errors
    /// `Timeout` when the wait limit ran out, with nothing held or queued; otherwise as [`try_acquire`](Self::try_acquire).
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc_block_on(async {
    /// # let client = dlock_core::doc_client();
    /// let guard = client.lock("import")?.acquire().await?;
    /// println!("ours for {:?} yet", guard.remaining());
    /// guard.release().await?;
    /// # Ok::<(), dlock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn acquire(&self) -> Result<Guard> {
        self.wait(self.ask.options.wait_limit).await
    }

    /// [`acquire`](Self::acquire) with this wait limit, counted from the call. Zero is the same as
    /// [trying](Self::try_acquire) once, with `Timeout` for "held".
    ///
    /// When the limit is reached, the request is first withdrawn, so that `Timeout` is true. The store has
    /// [`LockOptions::WITHDRAWAL`] for that. If it does not answer, the caller gets `Unknown` at that moment, and the
    /// client goes on withdrawing in the background.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc_block_on(async {
    /// # let client = dlock_core::doc_client();
    /// # use dlock_core as dlock;
    /// use std::time::Duration;
    /// use dlock::ErrorKind;
    /// let lock = client.lock("import")?;
    /// let held = lock.acquire().await?;
    /// let e = lock.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
    /// assert_eq!(e.kind(), ErrorKind::Timeout);
    /// # drop(held);
    /// # Ok::<(), dlock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Guard> {
        self.wait(Some(limit)).await
    }

    async fn wait(&self, limit: Option<Duration>) -> Result<Guard> {
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

    async fn acquire_as(&self, patience: Patience) -> Result<Option<Guard>> {
        if let Some(owner) = &self.owner {
            return Box::pin(owner.acquire(&self.engine, &self.ask, patience)).await;
        }
        // The guard is made before anybody observes: should an observer panic, it lets go.
        let acquired = async {
            let lease = acquire(&self.engine, &self.ask, patience).await?;
            Ok(lease.map(|lease| Guard::new(self.engine.clone(), lease)))
        };
        observe::acquiring(&self.engine, &self.ask, pin!(acquired)).await
    }

    /// Runs `body` under the lock, and *cancels it when the lock is lost*: its future is dropped at the await where it is.
    ///
    /// The body gets a [`Held`] to read the token and the deadline from. Afterwards the lock is released.
    ///
    /// # Cancel safety
    /// Dropped while it waits, it leaves nothing. Dropped while the body runs, the body is dropped and the lock released.
    ///
    /// # Errors
    /// `Lost` if the lock was lost before the body was through; otherwise as [`acquire`](Self::acquire). A release whose
    /// outcome is not known is not an error here: the body ran under the lock, and the release goes on in the background.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc_block_on(async {
    /// # let client = dlock_core::doc_client();
    /// let sold = client.lock("stock")?.with(|held| async move { held.token().is_some() }).await?;
    /// assert!(sold);
    /// # Ok::<(), dlock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn with<T, F>(&self, body: impl FnOnce(Held) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let guard = self.acquire().await?;
        let result = {
            let mut lost = pin!(guard.lost());
            let mut body = pin!(body(guard.held()));
            // The loss first: after a stall both may be ready, and a body whose lock is gone must not take one more step.
            let step = poll_fn(|cx| {
                if !guard.is_valid()
                    && let Poll::Ready(reason) = lost.as_mut().poll(cx)
                {
                    return Poll::Ready(Err(reason));
                }
                if let Poll::Ready(value) = body.as_mut().poll(cx) {
                    return Poll::Ready(Ok(value));
                }
                lost.as_mut().poll(cx).map(Err)
            });
            step.await
                .map_err(|reason| Error::lost(reason).with_name(&self.ask.name))?
        };
        match guard.release().await {
            Ok(()) => Ok(result),
            Err(e) if e.kind() == ErrorKind::Lost => Err(e),
            Err(_) => Ok(result),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.ask.name)
            .field("mode", &self.ask.mode)
            .finish_non_exhaustive()
    }
}
