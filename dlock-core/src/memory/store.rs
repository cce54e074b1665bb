//! The store, as programs use it.

use std::fmt;
use std::sync::Arc;

use super::config::Config;
use super::connection::Connection;
use super::lock::MemoryLock;
use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::spi::Lock;

/// A lock store in memory: the "server". Clones are the same store. [`connect`](Self::connect) creates a
/// connection for each client.
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
    /// Creates a store that uses the clock of `runtime`, without any option of [`Config`].
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Config::new().connect(runtime)
    }

    /// Creates a connection for a new client, on the runtime of the store.
    pub fn connect(&self) -> Arc<dyn Lock> {
        Arc::new(self.lock())
    }

    /// Creates a connection for a client that gives the store's [password](Config::password).
    ///
    /// # Errors
    /// `PermissionDenied` if the password is wrong, or the store has none.
    pub fn connect_with(&self, password: &str) -> Result<Arc<dyn Lock>> {
        if self.shared.password.as_deref() == Some(password) {
            return Ok(self.connect());
        }
        let message = "the store refuses this password";
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// Creates a connection of the concrete type, which also has the [gate with a
    /// closure](MemoryLock::write_with).
    pub fn lock(&self) -> MemoryLock {
        self.lock_on(self.shared.runtime.clone())
    }

    /// Creates a connection for a client whose clock is not the store's: its replies are counted on the clock
    /// of `runtime`.
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
