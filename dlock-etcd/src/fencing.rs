//! Tokens: the revisions in which the entries were made.

use async_trait::async_trait;
use dlock_core::spi::Fencing;
use dlock_core::{FenceGate, Strength};

use crate::lock::EtcdLock;

#[async_trait]
impl Fencing for EtcdLock {
    /// Across restarts and elections. A cluster whose data are lost, or restored from a snapshot, counts from
    /// what is left.
    fn strength(&self) -> Strength {
        Strength::AcrossRestart
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }
}
