//! Downgrade and upgrade in place.

use async_trait::async_trait;
use dlock_core::spi::{Converted, LeaseKey, RwLock};
use dlock_core::{Mode, Result};

use super::dialect::Dialect;
use super::keys::share;
use super::lock::{Lease, named};

#[async_trait]
impl<D: Dialect> RwLock for Lease<D> {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        // What cannot be stored is refused before anything is asked.
        named(&lease.name, share(to).map(drop))?;
        named(&lease.name, D::convert(&self.db, lease, to).await)
    }
}
