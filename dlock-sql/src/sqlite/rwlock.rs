//! Downgrade and upgrade in place.

use async_trait::async_trait;
use dlock_core::spi::{Converted, LeaseKey, RwLock};
use dlock_core::{Mode, Result, Timestamp};

use super::lock::SqliteLock;
use super::store::Sync;
use crate::admit::Settled;

#[async_trait]
impl RwLock for SqliteLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let (key, sent) = (lease.clone(), Timestamp::now());
        let convert = move |name: &mut Settled<'_>| name.convert(&key, to, sent);
        self.connection.change(Sync::Ordinary, &lease.name, convert).await
    }
}
