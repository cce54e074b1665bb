//! Tokens: the transaction ids of the nodes.

use async_trait::async_trait;
use dlock_core::spi::{FenceGate, Fencing, LeaseKey, Raised};
use dlock_core::{Result, Strength, Token};

use crate::lock::{ZkLock, unsupported};

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

    async fn raise(&self, lease: &LeaseKey, _to: Token) -> Result<Raised> {
        let message =
            "a transaction id of ZooKeeper cannot be raised: its locks are no members of a fenced quorum";
        Err(unsupported(message).with_name(&lease.name))
    }
}
