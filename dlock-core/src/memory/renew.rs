//! Renewing leases and queue entries.

use async_trait::async_trait;

use super::failure::invalid;
use super::lock::MemoryLock;
use crate::spi::{Renew, RenewItem, RenewKind, RenewOutcome};

#[async_trait]
impl Renew for MemoryLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        items.iter().map(|item| self.renew_one(item)).collect()
    }
}

impl MemoryLock {
    fn renew_one(&self, item: &RenewItem) -> RenewOutcome {
        let connection = &*self.connection;
        let checked = connection.check_open().and_then(|()| match item.kind {
            RenewKind::Lease => connection.shared.caps.check_ttl(item.ttl),
            RenewKind::Queued if item.ttl.is_zero() => Err(invalid("a queue entry needs a ttl")),
            RenewKind::Queued => Ok(()),
        });
        if let Err(error) = checked {
            return RenewOutcome::Failed(error.with_name(&item.key.name));
        }
        connection.call(|state, sent, effects| {
            let outcome = state.table.renew(sent, item, effects);
            match outcome {
                RenewOutcome::Granted(grant) => RenewOutcome::Granted(connection.shown(grant)),
                RenewOutcome::Queued { .. } => {
                    for listener in state.waiters.get_mut(&item.key).into_iter().flatten() {
                        listener.anchor = connection.anchor(sent, effects.now);
                    }
                    outcome
                }
                _ => outcome,
            }
        })
    }
}
