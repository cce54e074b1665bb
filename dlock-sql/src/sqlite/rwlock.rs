//! Downgrade and upgrade in place.

use async_trait::async_trait;
use dlock_core::spi::{Converted, Grant, LeaseKey, RwLock};
use dlock_core::{Mode, Result, Timestamp};

use super::connection::Needs;
use super::lock::SqliteLock;
use crate::admit::Turned;

#[async_trait]
impl RwLock for SqliteLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let key = lease.clone();
        let counted_from = Timestamp::now();
        let turned = self
            .connection
            .call(Needs::write(vec![key.name.clone()]), move |view| {
                let (state, now, tokens) = view.change(&key.name)?;
                state.convert(key.id, to, now, tokens)
            })
            .await
            .map_err(|e| e.with_name(&lease.name))?;
        Ok(match turned {
            Turned::Done { token, expires_in } => {
                Converted::Done(Grant::new(lease.clone(), token, counted_from, expires_in))
            }
            Turned::Busy => Converted::Busy,
            Turned::WouldDeadlock => Converted::WouldDeadlock,
        })
    }
}
