//! The store itself, as programs hold it.

use std::fmt;
use std::sync::Arc;

use super::config::Config;
use super::connection::Connection;
use super::lock::MemoryLock;
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::spi::Lock;

/// A lock store in memory: the "server". Clones are the same store; [`connect`](Self::connect) gives each
/// client a connection of its own.
///
/// ```
/// # #[cfg(feature = "tokio")] fn f(runtime: std::sync::Arc<dyn dlock_core::Runtime>) {
/// use dlock_core::memory::Memory;
/// let store = Memory::new(runtime);
/// let backend = store.connect();
/// assert_eq!(backend.capabilities().backend, "memory");
/// # }
/// ```
#[derive(Clone)]
pub struct Memory {
    pub(super) shared: Arc<Shared>,
}

impl Memory {
    /// A store that goes by the clock of that runtime, without any option of [`Config`].
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Config::new().connect(runtime)
    }

    /// A new client's connection, on the runtime of the store.
    pub fn connect(&self) -> Arc<dyn Lock> {
        Arc::new(self.lock())
    }

    /// The same for a client that has to show the store's [password](Config::password).
    ///
    /// # Errors
    /// `PermissionDenied` if it shows another one, or the store has none.
    pub fn connect_with(&self, password: &str) -> Result<Arc<dyn Lock>> {
        if self.shared.password.as_deref() == Some(password) {
            return Ok(self.connect());
        }
        let message = "the store refuses this password";
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// As [`connect`](Self::connect), with the type of its own and thereby the
    /// [gate with a closure](MemoryLock::write_with).
    pub fn lock(&self) -> MemoryLock {
        self.lock_on(self.shared.runtime.clone())
    }

    /// For a client whose clock is not the store's: its replies are counted on the clock of that runtime.
    pub fn lock_on(&self, runtime: Arc<dyn Runtime>) -> MemoryLock {
        let connection = Arc::new(Connection::new(self.shared.clone(), runtime));
        MemoryLock { connection }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("sizes", &self.sizes())
            .finish_non_exhaustive()
    }
}
