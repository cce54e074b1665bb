//! Downgrade and upgrade in place.

use async_trait::async_trait;
use dlock_core::spi::{Converted, Grant, LeaseKey, RwLock};
use dlock_core::{Error, LossReason, Mode, Result};

use super::lock::MysqlLease;
use super::transaction::Absent;
use crate::admit::Turned;
use crate::lease::request::share;

#[async_trait]
impl RwLock for MysqlLease {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let named = |e: Error| e.with_name(&lease.name);
        // Counts that cannot be stored are refused before anything is asked.
        share(to).map_err(named)?;
        let key = lease.clone();
        let (sent, turned) = self
            .db
            .change(std::slice::from_ref(&lease.name), Absent::Left, move |view| {
                let now = view.now;
                let name = view
                    .name(&key.name)?
                    .ok_or_else(|| Error::lost(LossReason::Refused))?;
                name.state.convert(key.id, to, now, &mut name.tokens)
            })
            .await
            .map_err(named)?;
        Ok(match turned {
            Turned::Done { token, expires_in } => {
                Converted::Done(Grant::new(lease.clone(), token, sent, expires_in))
            }
            Turned::Busy => Converted::Busy,
            Turned::WouldDeadlock => Converted::WouldDeadlock,
        })
    }
}
