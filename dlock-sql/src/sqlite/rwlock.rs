//! Downgrade and upgrade in place.

use async_trait::async_trait;
use dlock_core::spi::{Converted, Grant, LeaseKey, RwLock};
use dlock_core::{Mode, Result, Timestamp};

use super::lock::SqliteLock;
use super::store::Sync;
use crate::admit::Turned;

#[async_trait]
impl RwLock for SqliteLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let (id, counted_from) = (lease.id, Timestamp::now());
        let turned = self
            .connection
            .change(Sync::Ordinary, &lease.name, move |state, now, tokens| {
                state.convert(id, to, now, tokens)
            });
        Ok(match turned.await? {
            Turned::Done { token, expires_in } => {
                Converted::Done(Grant::new(lease.clone(), token, counted_from, expires_in))
            }
            Turned::Busy => Converted::Busy,
            Turned::WouldDeadlock => Converted::WouldDeadlock,
        })
    }
}
