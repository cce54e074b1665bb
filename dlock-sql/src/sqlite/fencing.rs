//! Tokens: what they survive, and raising them.

use async_trait::async_trait;
use dlock_core::spi::{FenceGate, Fencing, LeaseKey, Lock as _, Raised};
use dlock_core::{Result, Strength, Token};

use super::connection::Needs;
use super::lock::SqliteLock;
use crate::gate::check_token;

#[async_trait]
impl Fencing for SqliteLock {
    fn strength(&self) -> Strength {
        self.capabilities()
            .strength
            .unwrap_or(Strength::WhileStateSurvives)
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        check_token(to).map_err(|e| e.with_name(&lease.name))?;
        let key = lease.clone();
        let mut needs = Needs::write(vec![key.name.clone()]);
        // A member of a quorum that forgot a raise in a power loss would break the order of the quorum's
        // tokens.
        needs.durable = true;
        self.connection
            .call(needs, move |view| {
                let (state, _, tokens) = view.change(&key.name)?;
                Ok(state.raise(key.id, to, tokens))
            })
            .await
            .map_err(|e| e.with_name(&lease.name))
    }
}
