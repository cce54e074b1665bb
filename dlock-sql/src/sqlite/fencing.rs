//! Tokens: what they survive, and raising them.

use async_trait::async_trait;
use dlock_core::FenceGate;
use dlock_core::spi::{Fencing, LeaseKey, Raised};
use dlock_core::{Result, Strength, Token};

use super::lock::SqliteLock;
use super::store::Sync;
use crate::admit::Settled;
use crate::gate::check_token;

#[async_trait]
impl Fencing for SqliteLock {
    fn strength(&self) -> Strength {
        match self.connection.private {
            true => Strength::WhileStateSurvives,
            false => Strength::AcrossRestart,
        }
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        check_token(to).map_err(|e| e.with_name(&lease.name))?;
        let id = lease.id;
        // A member of a quorum that forgot a raise in a power loss would break the order of its tokens.
        let raise = move |name: &mut Settled<'_>| Ok(name.raise(id, to));
        self.connection.change(Sync::Durable, &lease.name, raise).await
    }
}
