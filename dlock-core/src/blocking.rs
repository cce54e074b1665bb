//! The same API for threads that block.
//!
//! Each call drives the future of the async API on the calling thread, as [`block_on`] does, and fails as
//! that does. Renewal, loss and cleaning up are the keeper's, on the client's runtime, which must not be the
//! one that is blocked: connect with [`runtime::own_thread`](crate::runtime::own_thread), or with a
//! multi-threaded runtime from outside of it.
//!
//! # Examples
//! ```
//! # let client = dlock_core::doc_client();
//! let client = client.blocking();
//! let guard = client.lock("stock/42")?.acquire()?;
//! println!("ours for {:?} yet", guard.remaining());
//! guard.release()?;
//! # Ok::<(), dlock_core::Error>(())
//! ```
//!
//! What has no call of its own here is a future away, as the fence gate is:
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

/// A [`Client`](crate::Client) whose calls block.
#[derive(Clone, Debug)]
pub struct Client(crate::client::Client);

impl Client {
    pub(crate) fn new(client: crate::client::Client) -> Self {
        Self(client)
    }

    /// The exclusive lock of that name: see [`Client::lock`](crate::Client::lock).
    pub fn lock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.lock(name).map(Lock)
    }

    /// The readers' side of the read-write lock of that name: see [`Client::rwlock`](crate::Client::rwlock).
    pub fn read(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.rwlock(name).map(|l| Lock(l.read().clone()))
    }

    /// The writer's side of the read-write lock of that name: see [`Client::rwlock`](crate::Client::rwlock).
    pub fn write(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.rwlock(name).map(|l| Lock(l.write().clone()))
    }

    /// A permit of the semaphore of that name: see [`Client::semaphore`](crate::Client::semaphore).
    pub fn permit(&self, name: impl TryInto<LockName, Error: Into<Error>>, n: u32) -> Result<Lock<Permits>> {
        self.0.semaphore(name, n).map(Lock)
    }

    /// Who holds that name now: see [`Client::inspect`](crate::Client::inspect).
    pub fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Inspection> {
        block_on(self.0.inspect(name))
    }

    /// The changes of that name: see [`Client::watch`](crate::Client::watch). The iterator blocks until there
    /// is one.
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

    /// The names in use that begin with that prefix: see [`Client::list`](crate::Client::list). The iterator
    /// blocks while a page is read.
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<impl Iterator<Item = Result<LockName>>> {
        let mut names = self.0.list(prefix)?;
        Ok(std::iter::from_fn(move || block_on(names.next())))
    }

    /// Ends every hold of that name: see [`Client::force_release`](crate::Client::force_release).
    pub fn force_release(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<u32> {
        block_on(self.0.force_release(name))
    }

    /// A new owner, for re-entrant use: see [`Lock::reentrant`].
    pub fn owner(&self) -> Owner {
        self.0.owner()
    }

    /// The same client, for async code and for what does not wait.
    pub fn as_async(&self) -> &crate::client::Client {
        &self.0
    }

    /// Ends the client: see [`Client::close`](crate::Client::close).
    pub fn close(&self) -> Result<()> {
        block_on(self.0.close())
    }
}

/// A [`Lock`](crate::Lock) whose calls block.
#[derive(Clone, Debug)]
pub struct Lock<C = ReadWrite>(crate::lock::Lock<C>);

impl<C> Lock<C> {
    /// See [`Lock::options`](crate::Lock::options).
    pub fn options(self, options: LockOptions) -> Result<Self> {
        self.0.options(options).map(Self)
    }

    /// See [`Lock::try_acquire`](crate::Lock::try_acquire).
    pub fn try_acquire(&self) -> Result<Option<BlockingGuard<C>>> {
        Ok(block_on(self.0.try_acquire())?.map(BlockingGuard))
    }

    /// See [`Lock::acquire`](crate::Lock::acquire).
    pub fn acquire(&self) -> Result<BlockingGuard<C>> {
        block_on(self.0.acquire()).map(BlockingGuard)
    }

    /// See [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    pub fn acquire_timeout(&self, limit: Duration) -> Result<BlockingGuard<C>> {
        block_on(self.0.acquire_timeout(limit)).map(BlockingGuard)
    }

    /// Runs `body` under the lock, on this thread, and releases it afterwards.
    ///
    /// Nothing cancels a thread: when the lock is lost the body runs on, and its value is not given out. A
    /// long one looks at [`Held::is_valid`] now and then. A panic of the body passes through, and the lock is
    /// released like any dropped guard. Otherwise as [`Lock::with`](crate::Lock::with).
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
    /// The same lock, re-entrant for that owner: see [`Lock::reentrant`](crate::Lock::reentrant). The owner
    /// may be handed from thread to thread; no thread is one.
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

/// A [`Guard`] whose calls block. What does not wait is the guard's own: it dereferences to it.
///
/// Dropping it does not wait either: the release is sent by the runtime's thread, which ends with the
/// process. Before `main` returns, call [`release`](Self::release), or [`Client::close`], which waits for it;
/// else the lock stays taken until its ttl.
#[derive(Debug)]
pub struct BlockingGuard<C = ReadWrite>(Guard<C>);

impl<C> BlockingGuard<C> {
    /// See [`Guard::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// See [`Guard::renew`].
    pub fn renew(&self) -> Result<()> {
        block_on(self.0.renew())
    }

    /// The guard itself, for async code.
    pub fn into_async(self) -> Guard<C> {
        self.0
    }
}

impl BlockingGuard {
    /// See [`Guard::downgrade`].
    pub fn downgrade(&self) -> Result<()> {
        block_on(self.0.downgrade())
    }

    /// See [`Guard::try_upgrade`].
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

/// The changes of a name, from [`Client::watch`]. `next` blocks until there is one, for ever if there is
/// none; dropping it ends the watch.
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

/// Drives a future on this thread until it is done; the thread sleeps meanwhile. Works inside of other
/// executors, whose thread it blocks.
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    pollster::block_on(future.into_future())
}
