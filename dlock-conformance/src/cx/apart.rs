//! Clients on their own executors or with secrets, and listening to events.

use std::sync::Arc;

use super::Cx;
use crate::ear::Ear;
use crate::executor::Executor;
use crate::lock::lock;
use crate::subject::Subject;
use crate::verdict::{Failure, Verdict};

impl Cx {
    /// A new client, as by [`connect`](Self::connect), on an executor of its own; `None` if the harness
    /// cannot give one.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`Failure::Kit`] if it cannot be had.
    pub async fn connect_on(&self, executor: &Arc<Executor>) -> Verdict<Option<Arc<dyn Subject>>> {
        let Some(harness) = self.0.harness.upgrade() else {
            return Ok(None);
        };
        let Some(connecting) = harness.connect_on(self, Arc::clone(executor) as _) else {
            return Ok(None);
        };
        let connected = connecting
            .await
            .map_err(|e| Failure::Kit(format!("the harness could not connect on another runtime: {e:?}")))?;
        lock(&self.0.clients).push(Arc::clone(&connected));
        Ok(Some(connected))
    }

    /// A client with that password for a place that does not accept it, or the error of connecting there;
    /// `None` if the harness cannot give one.
    ///
    /// # Cancel safety
    /// Dropped, it drops the future of the harness; no client is handed out.
    pub async fn connect_with_secret(&self, secret: &str) -> Option<dlock_core::Result<Arc<dyn Subject>>> {
        let harness = self.0.harness.upgrade()?;
        let connected = harness.connect_with_secret(self, secret)?.await;
        if let Ok(client) = &connected {
            lock(&self.0.clients).push(Arc::clone(client));
        }
        Some(connected)
    }

    /// Listens to `tracing` events from now on; `None` if this process has another subscriber.
    pub fn listen(&self) -> Option<Ear> {
        Ear::open(self.is_virtual())
    }
}
