//! Downgrade and upgrade in place.

use async_trait::async_trait;
use dlock_core::spi::{Converted, Grant, LeaseKey, RwLock};
use dlock_core::{Error, LossReason, Mode, Result};

use super::call::Value;
use super::lock::PostgresLease;
use super::reply::{Answer, id_bytes};
use crate::lease::request::{mismatch, share};

#[async_trait]
impl RwLock for PostgresLease {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let converted = self.try_convert(lease, to).await;
        converted.map_err(|e| e.with_name(&lease.name))
    }
}

impl PostgresLease {
    async fn try_convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let id = id_bytes(lease.id);
        let values = [
            Value::Bytes(lease.name.as_bytes()),
            Value::Bytes(&id),
            Value::Number(share(to)?),
        ];
        let (sent, rows) = self.db.ask(&self.db.sql.convert, &values).await?;
        let answer = Answer::of(&rows)?;
        self.db.pushes.anchor(sent, answer.at);
        match answer.word.as_str() {
            "G" => {
                let (token, life) = (answer.token()?, answer.life()?);
                Ok(Converted::Done(Grant::new(
                    lease.clone(),
                    Some(token),
                    sent,
                    life,
                )))
            }
            "B" => Ok(Converted::Busy),
            "D" => Ok(Converted::WouldDeadlock),
            "M" => Err(mismatch(answer.number(), to)),
            _ => Err(Error::lost(LossReason::Refused)),
        }
    }
}
