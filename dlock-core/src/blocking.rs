//! The same API for threads that block instead of awaiting.
//!
//! Each call drives the future of the async API on the calling thread, as [`block_on`] does, and fails as
//! that does. Renewal, loss and clean-up run in the keeper, on the client's runtime, which must not be a
//! runtime that the calls block. Connect with [`runtime::own_thread`](crate::runtime::own_thread), or with a
//! multi-threaded runtime from outside of it.
//!
//! # Examples
//! ```
//! # let client = dlock_core::doc_client();
//! let client = client.blocking();
//! let guard = client.lock("stock/42")?.acquire()?;
//! println!("held for {:?} more", guard.remaining());
//! guard.release()?;
//! # Ok::<(), dlock_core::Error>(())
//! ```
//!
//! For what has no call here, such as the fence gate, block on the future:
//!
//! ```
//! # use dlock_core as dlock;
//! use dlock::blocking::block_on;
//! # let client = dlock_core::doc_client().blocking();
//! let guard = client.lock("report")?.acquire()?;
//! let token = guard.token().expect("this backend fences");
//! let gate = client.as_async().gate()?;
//! assert!(block_on(gate.write("report.json", token, b"{}"))?.is_admitted());
//! # Ok::<(), dlock_core::Error>(())
//! ```

use std::fmt;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::error::{Error, Result};
use crate::guard::{Guard, Held, Upgrade};
use crate::inspection::{Change, Inspection};
use crate::mode::{Permits, ReadWrite};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::reentrant::Owner;

/// A [`Client`](crate::Client) whose calls block. From [`Client::blocking`](crate::Client::blocking).
///
/// # Examples
/// ```
/// # let client = dlock_core::doc_client().blocking();
/// let pool = client.permit("licences", 2)?;
/// let licence = pool.acquire()?;
/// assert_eq!(client.inspect("licences")?.holders.len(), 1);
/// licence.release()?;
/// client.close()?;
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client(crate::client::Client);

impl Client {
    pub(crate) fn new(client: crate::client::Client) -> Self {
        Self(client)
    }

    /// Returns a handle to the exclusive lock `name`: see [`Client::lock`](crate::Client::lock).
    pub fn lock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.lock(name).map(Lock)
    }

    /// Returns the readers' side of the read-write lock `name`: see
    /// [`Client::rwlock`](crate::Client::rwlock).
    pub fn read(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.rwlock(name).map(|l| Lock(l.read().clone()))
    }

    /// Returns the writer's side of the read-write lock `name`: see
    /// [`Client::rwlock`](crate::Client::rwlock).
    pub fn write(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.rwlock(name).map(|l| Lock(l.write().clone()))
    }

    /// Returns a handle to the permits of the semaphore `name`: see
    /// [`Client::semaphore`](crate::Client::semaphore).
    pub fn permit(&self, name: impl TryInto<LockName, Error: Into<Error>>, n: u32) -> Result<Lock<Permits>> {
        self.0.semaphore(name, n).map(Lock)
    }

    /// Reads who holds the lock `name` now: see [`Client::inspect`](crate::Client::inspect).
    pub fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Inspection> {
        block_on(self.0.inspect(name))
    }

    /// Watches the lock `name`: see [`Client::watch`](crate::Client::watch). The iterator blocks until there
    /// is a change.
    ///
    /// # Examples
    /// ```
    /// # use dlock_core as dlock;
    /// use dlock::Change;
    /// # let client = dlock_core::doc_client().blocking();
    /// let mut changes = client.watch("leader")?;
    /// let Some(Change::Snapshot { now, .. }) = changes.next().transpose()? else { panic!() };
    /// assert!(now.holders.is_empty());
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn watch(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Changes> {
        block_on(self.0.watch(name)).map(Changes)
    }

    /// Lists the names in use that start with `prefix`: see [`Client::list`](crate::Client::list). The
    /// iterator blocks while it reads a page.
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<impl Iterator<Item = Result<LockName>>> {
        let mut names = self.0.list(prefix)?;
        Ok(std::iter::from_fn(move || block_on(names.next())))
    }

    /// Ends every hold of the lock `name`: see [`Client::force_release`](crate::Client::force_release).
    pub fn force_release(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<u32> {
        block_on(self.0.force_release(name))
    }

    /// Creates an owner for re-entrant locks: see [`Lock::reentrant`].
    pub fn owner(&self) -> Owner {
        self.0.owner()
    }

    /// Returns the same client for async code.
    pub fn as_async(&self) -> &crate::client::Client {
        &self.0
    }

    /// Closes the client: see [`Client::close`](crate::Client::close).
    pub fn close(&self) -> Result<()> {
        block_on(self.0.close())
    }
}

/// A [`Lock`](crate::Lock) whose calls block.
///
/// # Examples
/// ```
/// # use dlock_core as dlock;
/// # let client = dlock_core::doc_client().blocking();
/// use std::time::Duration;
/// use dlock::ErrorKind;
/// let lock = client.lock("import")?;
/// let guard = lock.acquire()?;
/// assert!(lock.try_acquire()?.is_none());
/// let e = lock.acquire_timeout(Duration::from_millis(20)).unwrap_err();
/// assert_eq!(e.kind(), ErrorKind::Timeout);
/// guard.release()?;
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lock<C = ReadWrite>(crate::lock::Lock<C>);

impl<C> Lock<C> {
    /// Returns this handle with `options` on top of what it has: see [`Lock::options`](crate::Lock::options).
    pub fn options(self, options: LockOptions) -> Result<Self> {
        self.0.options(options).map(Self)
    }

    /// Acquires the lock if it is free: see [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<BlockingGuard<C>>> {
        Ok(block_on(self.0.try_acquire())?.map(BlockingGuard))
    }

    /// Acquires the lock, waiting as long as its wait limit says: see
    /// [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> Result<BlockingGuard<C>> {
        block_on(self.0.acquire()).map(BlockingGuard)
    }

    /// Acquires the lock, waiting for `limit` at most: see
    /// [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<BlockingGuard<C>> {
        block_on(self.0.acquire_timeout(limit)).map(BlockingGuard)
    }

    /// Acquires the lock, runs `body` on this thread, and releases the lock.
    ///
    /// A thread cannot be cancelled: if the lock is lost, `body` runs on, and its value is not returned. A
    /// long body should check [`Held::is_valid`] now and then. If `body` panics, the lock is released like
    /// that of any dropped guard. Otherwise as [`Lock::with`](crate::Lock::with).
    ///
    /// # Examples
    /// ```
    /// # let client = dlock_core::doc_client().blocking();
    /// let sold = client.lock("stock")?.with(|held| {
    ///     let mut sold = 0;
    ///     while held.is_valid() && sold < 3 {
    ///         sold += 1;
    ///     }
    ///     sold
    /// })?;
    /// assert_eq!(sold, 3);
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn with<T>(&self, body: impl FnOnce(Held) -> T) -> Result<T> {
        block_on(self.0.with(|held| async move { body(held) }))
    }
}

impl Lock {
    /// Returns this handle, re-entrant for `owner`: see [`Lock::reentrant`](crate::Lock::reentrant). The
    /// owner may be passed between threads; no thread is an owner.
    ///
    /// # Examples
    /// ```
    /// # let client = dlock_core::doc_client().blocking();
    /// let ledger = client.lock("ledger")?.reentrant(&client.owner())?;
    /// let (outer, inner) = (ledger.acquire()?, ledger.acquire()?);
    /// assert_eq!(outer.token(), inner.token());
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn reentrant(self, owner: &Owner) -> Result<Self> {
        self.0.reentrant(owner).map(Self)
    }
}

/// A [`Guard`] whose calls block. It dereferences to [`Guard`], for the methods that do not wait.
///
/// Dropping it does not wait: the runtime's thread sends the release, and ends with the process. Before
/// `main` returns, call [`release`](Self::release), or [`Client::close`], which waits for pending releases;
/// otherwise the lock stays taken until its ttl.
///
/// # Examples
/// ```
/// # let client = dlock_core::doc_client().blocking();
/// let guard = client.lock("job")?.acquire()?;
/// assert!(guard.is_valid());
/// guard.renew()?;
/// guard.release()?;
/// # Ok::<(), dlock_core::Error>(())
/// ```
#[derive(Debug)]
pub struct BlockingGuard<C = ReadWrite>(Guard<C>);

impl<C> BlockingGuard<C> {
    /// Releases the lock and returns the outcome: see [`Guard::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// Renews the lease: see [`Guard::renew`].
    pub fn renew(&self) -> Result<()> {
        block_on(self.0.renew())
    }

    /// Returns the guard for async code.
    pub fn into_async(self) -> Guard<C> {
        self.0
    }
}

impl BlockingGuard {
    /// Converts an exclusive hold into a reader's: see [`Guard::downgrade`].
    pub fn downgrade(&self) -> Result<()> {
        block_on(self.0.downgrade())
    }

    /// Converts a shared hold into an exclusive one: see [`Guard::try_upgrade`].
    pub fn try_upgrade(&self) -> Result<Upgrade> {
        block_on(self.0.try_upgrade())
    }
}

impl<C> std::ops::Deref for BlockingGuard<C> {
    type Target = Guard<C>;
    fn deref(&self) -> &Guard<C> {
        &self.0
    }
}

/// An iterator over the changes of a lock. From [`Client::watch`]. `next` blocks until there is a change,
/// possibly for ever. Dropping it ends the watch.
pub struct Changes(BoxStream<'static, Result<Change>>);

impl Iterator for Changes {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next())
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

/// Runs a future on this thread until it completes. The thread sleeps while the future is pending. It works
/// inside of other executors too, and blocks their thread.
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    pollster::block_on(future.into_future())
}
