//! Renewal.

use async_trait::async_trait;
use dlock_core::Timestamp;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use futures::future::join_all;

use super::lock::SessionLock;

/// Leases live with their sessions, so to renew them is to hear of those: one request for all that hang on
/// one connection, since the second who asks for a sign of life after `now` finds the first one's.
#[async_trait]
impl Renew for SessionLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let now = self.client.now();
        join_all(items.iter().map(|item| self.renew_one(item, now))).await
    }
}

impl SessionLock {
    async fn renew_one(&self, item: &RenewItem, now: Timestamp) -> RenewOutcome {
        let (board, key) = (&self.client.board, self.key(&item.key.name));
        if let Err(e) = board.check_open() {
            return RenewOutcome::Failed(e);
        }
        // There is no queue that could be renewed: it is not claimed.
        let is_lease = item.kind == RenewKind::Lease;
        let connection = || board.connection(&key, item.key.id).filter(|_| is_lease);
        let Some(asked) = connection() else {
            return RenewOutcome::Gone;
        };
        match asked.be_heard(now).await {
            // It may have ended meanwhile.
            Ok(()) => match self.believe(&item.key, &asked) {
                Some((from, span)) => RenewOutcome::Renewed(Renewal::new(from, span)),
                None => RenewOutcome::Gone,
            },
            // If its connection was given up, it is gone with that: nothing can renew it any more.
            Err(_) if connection().is_none() => RenewOutcome::Gone,
            Err(e) => RenewOutcome::Failed(e.with_name(&item.key.name)),
        }
    }
}
