//! Tokens raised.

use async_trait::async_trait;
use dlock_core::spi::{Fencing, LeaseKey, Raised};
use dlock_core::{FenceGate, Result, Strength, Token};

use super::lock::MysqlLease;
use super::transaction::Absent;
use crate::lease::request::{STRENGTH, check_token};

#[async_trait]
impl Fencing for MysqlLease {
    fn strength(&self) -> Strength {
        STRENGTH
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let raise = async {
            check_token(to)?;
            let key = lease.clone();
            self.db
                .change(std::slice::from_ref(&lease.name), Absent::Left, move |view| {
                    Ok(match view.name(&key.name)? {
                        Some(name) => name.state.raise(key.id, to, &mut name.tokens),
                        None => Raised::NotHeld,
                    })
                })
                .await
        };
        let raised = raise.await.map_err(|e| e.with_name(&lease.name))?;
        Ok(raised.1)
    }
}
