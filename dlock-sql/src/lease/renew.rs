//! Leases and queue entries extended, many in a statement.
//!
//! By lists of ids, never by owner: a list cannot prolong what a client has forgotten that it holds.

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewOutcome};

use super::dialect::Dialect;
use super::lock::Lease;
use crate::requests::{in_order, split};

/// How many go into one statement.
pub(in crate::lease) const BATCH: usize = 500;

#[async_trait]
impl<D: Dialect> Renew for Lease<D> {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let (good, mut outcomes) = split(&self.capabilities, items);
        let good = good.iter().map(|(n, item)| (*n, item)).collect();
        outcomes.extend(D::renew(&self.db, good).await);
        in_order(items, outcomes)
    }
}
