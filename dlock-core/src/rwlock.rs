//! A read-write lock.

use crate::error::Result;
use crate::lock::Lock;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::reentrant::Owner;

/// A named read-write lock: any number of readers, or one writer. From
/// [`Client::rwlock`](crate::Client::rwlock).
///
/// If the backend has a queue, waiters are served in order. A waiting writer holds back the readers behind
/// it, and the release of a writer grants the lock to all readers up to the next writer at once. If the
/// backend claims it, a writer's guard can be [downgraded](crate::Guard::downgrade) and a reader's guard
/// [upgraded](crate::Guard::try_upgrade).
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let prices = client.rwlock("prices")?;
/// let a = prices.read().acquire().await?;
/// let b = prices.read().acquire().await?;
/// assert!(prices.write().try_acquire().await?.is_none());
/// # drop((a, b));
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl RwLock {
    pub(crate) fn new(read: Lock) -> Self {
        let write = read.in_mode(Mode::Exclusive);
        Self { read, write }
    }

    /// Returns this lock with `options` on top of what it has, for both sides: see [`Lock::options`].
    ///
    /// # Errors
    /// As [`Lock::options`].
    pub fn options(self, options: LockOptions) -> Result<Self> {
        Ok(Self {
            read: self.read.options(options.clone())?,
            write: self.write.options(options)?,
        })
    }

    /// Returns this lock with a writer's side that is re-entrant for `owner`: see [`Lock::reentrant`].
    ///
    /// # Errors
    /// As [`Lock::reentrant`].
    pub fn reentrant(self, owner: &Owner) -> Result<Self> {
        Ok(Self {
            read: self.read,
            write: self.write.reentrant(owner)?,
        })
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.read.name()
    }

    /// Returns the readers' side. Clone it to keep it longer than this value.
    pub fn read(&self) -> &Lock {
        &self.read
    }

    /// Returns the writer's side. Clone it to keep it longer than this value.
    pub fn write(&self) -> &Lock {
        &self.write
    }
}
