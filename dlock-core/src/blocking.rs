//! The same API for threads that block.
//!
//! The calls drive the futures of the async API on the calling thread. Renewal, loss and cleaning up are the keeper's, on
//! the client's runtime, which must not be the one that is blocked: connect with
//! [`runtime::own_thread`](crate::runtime::own_thread), or with a multi-threaded runtime from outside of it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::{Guard, Upgrade};
use crate::name::LockName;
use crate::options::LockOptions;
use crate::spi::Inspection;

/// A [`Client`](crate::Client) whose calls block.
#[derive(Clone, Debug)]
pub struct Client(crate::client::Client);

impl Client {
    pub(crate) fn new(client: crate::client::Client) -> Self {
        Self(client)
    }

    /// The exclusive lock of that name: see [`Client::lock`](crate::Client::lock).
    ///
    /// # Errors
    /// As there.
    pub fn lock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.lock(name).map(Lock)
    }

    /// The readers' side of the read-write lock of that name.
    ///
    /// # Errors
    /// As [`Client::rwlock`](crate::Client::rwlock).
    pub fn read(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.rwlock(name).map(|l| Lock(l.read().clone()))
    }

    /// The writer's side of the read-write lock of that name.
    ///
    /// # Errors
    /// As [`Client::rwlock`](crate::Client::rwlock).
    pub fn write(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.0.rwlock(name).map(|l| Lock(l.write().clone()))
    }

    /// A permit of the semaphore of that name.
    ///
    /// # Errors
    /// As [`Client::semaphore`](crate::Client::semaphore).
    pub fn permit(&self, name: impl TryInto<LockName, Error: Into<Error>>, n: u32) -> Result<Lock> {
        self.0.semaphore(name, n).map(|s| Lock(s.into_lock()))
    }

    /// Who holds that name now: see [`Client::inspect`](crate::Client::inspect).
    ///
    /// # Errors
    /// As there.
    pub fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Inspection> {
        block_on(self.0.inspect(name))
    }

    /// Ends the client: see [`Client::close`](crate::Client::close).
    ///
    /// # Errors
    /// As there.
    pub fn close(&self) -> Result<()> {
        block_on(self.0.close())
    }
}

/// A [`Lock`](crate::Lock) whose calls block.
#[derive(Clone, Debug)]
pub struct Lock(crate::lock::Lock);

impl Lock {
    /// See [`Lock::options`](crate::Lock::options).
    ///
    /// # Errors
    /// As there.
    pub fn options(self, options: LockOptions) -> Result<Self> {
        self.0.options(options).map(Self)
    }

    /// See [`Lock::try_acquire`](crate::Lock::try_acquire).
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<BlockingGuard>> {
        Ok(block_on(self.0.try_acquire())?.map(BlockingGuard))
    }

    /// See [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<BlockingGuard> {
        block_on(self.0.acquire()).map(BlockingGuard)
    }

    /// See [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    ///
    /// # Errors
    /// As there.
    pub fn acquire_timeout(&self, limit: Duration) -> Result<BlockingGuard> {
        block_on(self.0.acquire_timeout(limit)).map(BlockingGuard)
    }
}

/// A [`Guard`] whose calls block. What does not wait is the guard's own: it dereferences to it.
#[derive(Debug)]
pub struct BlockingGuard(Guard);

impl BlockingGuard {
    /// See [`Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&self) -> Result<()> {
        block_on(self.0.release())
    }

    /// See [`Guard::renew`].
    ///
    /// # Errors
    /// As there.
    pub fn renew(&self) -> Result<()> {
        block_on(self.0.renew())
    }

    /// See [`Guard::downgrade`].
    ///
    /// # Errors
    /// As there.
    pub fn downgrade(&self) -> Result<()> {
        block_on(self.0.downgrade())
    }

    /// See [`Guard::try_upgrade`].
    ///
    /// # Errors
    /// As there.
    pub fn try_upgrade(&self) -> Result<Upgrade> {
        block_on(self.0.try_upgrade())
    }

    /// The guard itself, for async code.
    pub fn into_async(self) -> Guard {
        self.0
    }
}

impl std::ops::Deref for BlockingGuard {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.0
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    pollster::block_on(future)
}
