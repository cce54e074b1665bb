//! Tokens: the transaction ids of the nodes.

use async_trait::async_trait;
use dlock_core::spi::Fencing;
use dlock_core::{FenceGate, Strength};

use crate::lock::ZkLock;

#[async_trait]
impl Fencing for ZkLock {
    /// Across restarts and elections: a transaction id is the number of the leader's reign and a count in it.
    /// An ensemble whose data are lost begins anew.
    fn strength(&self) -> Strength {
        Strength::AcrossRestart
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }
}
