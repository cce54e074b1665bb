//! Leases and queue entries extended, all of a call in one transaction.

use async_trait::async_trait;
use dlock_core::spi::{Grant, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, Result, Timestamp};

use super::connection::Needs;
use super::lock::{SqliteLock, round_up};
use crate::admit::Asked;

enum Item {
    Lease(Option<std::time::Duration>),
    Queued(Asked),
    Failed(Error),
}

#[async_trait]
impl Renew for SqliteLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let counted_from = Timestamp::now();
        // An item with a ttl out of range is its own failure, found before anything is asked.
        let checked: Vec<Result<RenewItem>> = items
            .iter()
            .map(|item| {
                let mut item = item.clone();
                item.ttl = match item.kind {
                    RenewKind::Lease => self.check_ttl(item.ttl)?,
                    _ => round_up(item.ttl),
                };
                Ok(item)
            })
            .collect();
        let good: Vec<RenewItem> = checked.iter().flatten().cloned().collect();
        let answers = if good.is_empty() {
            Ok(Vec::new())
        } else {
            let names = good.iter().map(|i| i.key.name.clone()).collect();
            self.connection
                .call(Needs::write(names), move |view| {
                    Ok(good
                        .iter()
                        .map(|item| {
                            let (state, now, _) = match view.change(&item.key.name) {
                                Ok(loaded) => loaded,
                                Err(e) => return Item::Failed(e),
                            };
                            match item.kind {
                                RenewKind::Lease => Item::Lease(state.renew(item.key.id, item.ttl, now)),
                                _ => Item::Queued(state.ask_again(item.key.id, item.ttl, now)),
                            }
                        })
                        .collect::<Vec<_>>())
                })
                .await
        };
        let mut answers = answers.map(Vec::into_iter);
        checked
            .into_iter()
            .map(|item| match (item, &mut answers) {
                (Err(e), _) => RenewOutcome::Failed(e),
                (Ok(item), Err(e)) => RenewOutcome::Failed(e.clone().with_name(&item.key.name)),
                (Ok(item), Ok(answers)) => match answers.next() {
                    Some(Item::Lease(Some(left))) => RenewOutcome::Renewed(Renewal::new(counted_from, left)),
                    Some(Item::Queued(Asked::Granted { token, expires_in })) => {
                        RenewOutcome::Granted(Grant::new(item.key, token, counted_from, expires_in))
                    }
                    Some(Item::Queued(Asked::Queued { recheck_in, ahead })) => {
                        RenewOutcome::Queued { recheck_in, ahead }
                    }
                    Some(Item::Failed(e)) => RenewOutcome::Failed(e.with_name(&item.key.name)),
                    _ => RenewOutcome::Gone,
                },
            })
            .collect()
    }
}
