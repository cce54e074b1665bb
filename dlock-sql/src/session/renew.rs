//! Renewal.

use async_trait::async_trait;
use dlock_core::Timestamp;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use futures::future::join_all;

use super::handle::What;
use super::lock::SessionLock;

/// Leases live with their sessions, so renewing them means hearing from the session: one request for all
/// leases on a connection, since the second that asks for a sign of life after `now` finds that of the first.
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
        let extend = || match item.kind {
            RenewKind::Lease => board.extend(&key, item.key.id),
            _ => None,
        };
        let Some((connection, _)) = extend() else {
            return RenewOutcome::Gone;
        };
        let heard = connection.call(What::Ping(now)).await;
        // Its session may have ended meanwhile: nothing can renew it any more.
        let Some((_, from)) = extend() else {
            return RenewOutcome::Gone;
        };
        match heard {
            Ok(_) => RenewOutcome::Renewed(Renewal::new(from, connection.life.ttl)),
            Err(e) => RenewOutcome::Failed(e.with_name(&item.key.name)),
        }
    }
}
