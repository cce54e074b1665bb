//! Tokens: what they survive, and raising them.

use async_trait::async_trait;
use dlock_core::spi::{Fencing, LeaseKey, Raised};
use dlock_core::{Error, ErrorKind, FenceGate, Result, Strength, Token};

use super::job::Needs;
use super::lock::SqliteLock;
use super::schema::LAST_TOKEN;

#[async_trait]
impl Fencing for SqliteLock {
    fn strength(&self) -> Strength {
        match self.link.private {
            true => Strength::WhileStateSurvives,
            false => Strength::AcrossRestart,
        }
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        if to.get() > LAST_TOKEN {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("SQLite keeps tokens up to {LAST_TOKEN}"),
            )
            .with_name(&lease.name));
        }
        let key = lease.clone();
        let mut needs = Needs::write(vec![key.name.clone()]);
        // A member of a quorum that forgot a raise in a power loss would break the order of the quorum's tokens.
        needs.durable = true;
        self.link
            .call(needs, move |view| {
                let (state, _, tokens) = view.change(&key.name)?;
                Ok(state.raise(key.id, to, tokens))
            })
            .await
            .map_err(|e| e.with_name(&lease.name))
    }
}
