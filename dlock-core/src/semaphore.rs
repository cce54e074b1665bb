//! A semaphore.

use std::time::Duration;

use crate::error::Result;
use crate::guard::{Guard, Held};
use crate::lock::Lock;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::LockOptions;

/// A named semaphore: at most `n` holders at once, wherever they are.
///
/// The first to use the name fixes `n` until the name is empty again; another `n`, or the name as a
/// read-write lock, is refused as `InvalidInput`. The exclusive lock of the same name waits for all permits.
///
/// # Examples
/// ```
/// # dlock_core::doc_block_on(async {
/// # let client = dlock_core::doc_client();
/// let pool = client.semaphore("licences", 2)?;
/// let (a, b) = (pool.acquire().await?, pool.acquire().await?);
/// assert!(pool.try_acquire().await?.is_none());
/// # drop((a, b));
/// # Ok::<(), dlock_core::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(Lock);

impl Semaphore {
    pub(crate) fn new(lock: Lock) -> Self {
        Self(lock)
    }

    pub(crate) fn into_lock(self) -> Lock {
        self.0
    }

    /// The same semaphore, asked for and held with these options, laid over what it has: see
    /// [`Lock::options`].
    ///
    /// # Errors
    /// As [`Lock::options`].
    pub fn options(self, options: LockOptions) -> Result<Self> {
        Ok(Self(self.0.options(options)?))
    }

    /// The name of the semaphore.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// How many permits there are.
    pub fn permits(&self) -> u32 {
        match self.0.mode() {
            Mode::Shared { limit: Some(n) } => n.get(),
            _ => u32::MAX,
        }
    }

    /// Takes a permit if one is free: see [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`Lock::try_acquire`].
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.0.try_acquire().await
    }

    /// Takes a permit, waiting for one: see [`Lock::acquire`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`].
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire(&self) -> Result<Guard> {
        self.0.acquire().await
    }

    /// Takes a permit, waiting for one for that long: see [`Lock::acquire_timeout`].
    ///
    /// # Cancel safety
    /// As [`Lock::acquire_timeout`].
    ///
    /// # Errors
    /// As [`Lock::acquire_timeout`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Guard> {
        self.0.acquire_timeout(limit).await
    }

    /// Runs `body` with a permit, and cancels it when the permit is lost: see [`Lock::with`].
    ///
    /// # Cancel safety
    /// As [`Lock::with`].
    ///
    /// # Errors
    /// As [`Lock::with`].
    pub async fn with<T, F>(&self, body: impl FnOnce(Held) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        self.0.with(body).await
    }
}
