//! Renewal.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use futures::future::join_all;

use super::connection::Handle;
use super::lock::SessionLock;

/// Leases live with their sessions, so renewing them is hearing of those: one question for all that hang on
/// one connection.
#[async_trait]
impl Renew for SessionLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        if let Err(e) = self.check_open() {
            return items.iter().map(|_| RenewOutcome::Failed(e.clone())).collect();
        }
        let now = self.connections.now();
        let connections: Vec<Option<Arc<Handle>>> =
            items.iter().map(|item| self.connection_of(item)).collect();
        let mut asked: Vec<Arc<Handle>> = Vec::new();
        for connection in connections.iter().flatten() {
            if asked.iter().all(|a| a.id != connection.id) {
                asked.push(connection.clone());
            }
        }
        let heard = join_all(
            asked
                .iter()
                .map(|connection| async move { (connection.id, connection.be_heard(now).await) }),
        )
        .await;
        let failed = |connection: &Handle| {
            let of = heard.iter().find(|(id, _)| *id == connection.id);
            of.and_then(|(_, heard)| heard.as_ref().err())
        };
        let outcomes = items
            .iter()
            .zip(&connections)
            .map(|(item, connection)| match connection {
                Some(connection) => match failed(connection) {
                    // Its connection was given up, and it with that: nothing can renew it any more.
                    Some(_) if self.connection_of(item).is_none() => RenewOutcome::Gone,
                    Some(e) => RenewOutcome::Failed(e.clone().with_name(&item.key.name)),
                    None => {
                        let (from, span) = (connection.life.confirmed(), connection.life.span());
                        let key = self.key(&item.key.name);
                        // It may have ended while others were asked.
                        match self.connections.board.extend(&key, item.key.id, from + span) {
                            true => RenewOutcome::Renewed(Renewal::new(from, span)),
                            false => RenewOutcome::Gone,
                        }
                    }
                },
                None => RenewOutcome::Gone,
            });
        outcomes.collect()
    }
}

impl SessionLock {
    fn connection_of(&self, item: &RenewItem) -> Option<Arc<Handle>> {
        // There is no queue that could be renewed: it is not claimed.
        if item.kind != RenewKind::Lease {
            return None;
        }
        let holder = self
            .connections
            .board
            .holder(&self.key(&item.key.name), item.key.id)?;
        Some(holder.connection)
    }
}
