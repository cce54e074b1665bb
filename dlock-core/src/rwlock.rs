//! A read-write lock.

use crate::error::Result;
use crate::lock::Lock;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::reentrant::Owner;

/// A named read-write lock: any number of readers, or one writer.
///
/// Waiters are served in line, so a waiting writer holds back the readers behind it, and a writer's release
/// lets in all the readers up to the next writer at once. A writer's guard can be
/// [downgraded](crate::Guard::downgrade), a reader's [upgraded](crate::Guard::try_upgrade), where the backend
/// can.
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

    /// The same lock, asked for and held with these options in both modes, laid over what it has: see
    /// [`Lock::options`].
    ///
    /// # Errors
    /// As [`Lock::options`].
    pub fn options(self, options: LockOptions) -> Result<Self> {
        Ok(Self {
            read: self.read.options(options.clone())?,
            write: self.write.options(options)?,
        })
    }

    /// The same lock, whose writer's side is re-entrant for that owner: see [`Lock::reentrant`].
    ///
    /// # Errors
    /// As [`Lock::reentrant`].
    pub fn reentrant(self, owner: &Owner) -> Result<Self> {
        Ok(Self {
            read: self.read,
            write: self.write.reentrant(owner)?,
        })
    }

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        self.read.name()
    }

    /// The readers' side. To keep it longer than this lock, clone it.
    pub fn read(&self) -> &Lock {
        &self.read
    }

    /// The writer's side.
    pub fn write(&self) -> &Lock {
        &self.write
    }
}
