//! Tokens raised.

use async_trait::async_trait;
use dlock_core::spi::{Fencing, LeaseKey, Raised};
use dlock_core::{Error, FenceGate, Result, Strength, Token};

use super::call::Value;
use super::lock::PostgresLease;
use super::reply::{Answer, id_bytes};
use crate::lease::request::{STRENGTH, check_token};

#[async_trait]
impl Fencing for PostgresLease {
    fn strength(&self) -> Strength {
        STRENGTH
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let named = |e: Error| e.with_name(&lease.name);
        check_token(to).map_err(named)?;
        let id = id_bytes(lease.id);
        let values = [
            Value::Bytes(lease.name.as_bytes()),
            Value::Bytes(&id),
            Value::Long(to.get() as i64),
        ];
        let (_, rows) = self
            .db
            .ask_again(&self.db.sql.raise, &values, || ())
            .await
            .map_err(named)?;
        let answer = Answer::of(&rows).map_err(named)?;
        match answer.word.as_str() {
            "G" => Ok(Raised::Raised(answer.token().map_err(named)?)),
            _ => Ok(Raised::NotHeld),
        }
    }
}
