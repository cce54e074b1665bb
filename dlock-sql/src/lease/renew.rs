//! Leases and queue entries extended, many in a statement.
//!
//! By lists of ids, never by owner: a list cannot prolong what a client has forgotten that it holds.

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome};

use super::dialect::{Outcomes, Server};
use super::lock::Lease;

/// How many go into one statement.
pub(in crate::lease) const BATCH: usize = 500;

#[async_trait]
impl<D: Server> Renew for Lease<D> {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let (mut good, mut outcomes) = (Vec::with_capacity(items.len()), Outcomes::new());
        for (n, item) in items.iter().enumerate() {
            let checked = match item.kind {
                RenewKind::Lease => self.capabilities.check_ttl(item.ttl),
                _ => Ok(()),
            };
            match checked {
                Ok(()) => good.push((n, item)),
                Err(e) => outcomes.push((n, Err(e))),
            }
        }
        outcomes.extend(D::renew(&self.db, good).await);
        outcomes.sort_by_key(|(n, _)| *n);
        let all = outcomes.into_iter().zip(items);
        all.map(|((_, outcome), item)| {
            outcome.unwrap_or_else(|e| RenewOutcome::Failed(e.with_name(&item.key.name)))
        })
        .collect()
    }
}
