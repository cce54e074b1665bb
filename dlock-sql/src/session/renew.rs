//! Renewal.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use futures::future::join_all;

use super::handle::Handle;
use super::lock::SessionLock;

/// Leases live with their sessions, so to renew them is to hear of those: one request for all that hang on
/// one connection.
#[async_trait]
impl Renew for SessionLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        if let Err(e) = self.client.board.check_open() {
            return items.iter().map(|_| RenewOutcome::Failed(e.clone())).collect();
        }
        let now = self.client.now();
        let connections: Vec<_> = items.iter().map(|item| self.connection_of(item)).collect();
        let asked: HashMap<u64, &Arc<Handle>> = connections.iter().flatten().map(|c| (c.id, c)).collect();
        let asked = asked
            .into_values()
            .map(|c| async move { (c.id, c.be_heard(now).await) });
        let heard: HashMap<u64, _> = join_all(asked).await.into_iter().collect();
        let outcome = |(item, connection): (&RenewItem, Option<Arc<Handle>>)| {
            let Some(connection) = connection else {
                return RenewOutcome::Gone;
            };
            match heard.get(&connection.id) {
                // If its connection was given up, it is gone with that: nothing can renew it any more.
                Some(Err(e)) if self.connection_of(item).is_some() => {
                    RenewOutcome::Failed(e.clone().with_name(&item.key.name))
                }
                // It may have ended while others were asked.
                Some(Ok(())) => match self.believe(&item.key, &connection) {
                    Some((from, span)) => RenewOutcome::Renewed(Renewal::new(from, span)),
                    None => RenewOutcome::Gone,
                },
                _ => RenewOutcome::Gone,
            }
        };
        items.iter().zip(connections).map(outcome).collect()
    }
}

impl SessionLock {
    fn connection_of(&self, item: &RenewItem) -> Option<Arc<Handle>> {
        // There is no queue that could be renewed: it is not claimed.
        if item.kind != RenewKind::Lease {
            return None;
        }
        self.client
            .board
            .connection(&self.key(&item.key.name), item.key.id)
    }
}
