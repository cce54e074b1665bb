//! Leases and queue entries extended, all of a call in one transaction.

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome};
use dlock_core::{Result, Timestamp};

use super::connection::Needs;
use super::lock::SqliteLock;
use super::store::Sync;
use super::view::View;
use crate::requests::round_up;

#[async_trait]
impl Renew for SqliteLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let sent = Timestamp::now();
        // An item with a ttl out of range is its own failure, found before anything is asked.
        let check = |item: &RenewItem| {
            let mut item = item.clone();
            item.ttl = match item.kind {
                RenewKind::Lease => self.check_ttl(item.ttl)?,
                _ => round_up(item.ttl),
            };
            Ok(item)
        };
        let checked: Vec<Result<RenewItem>> = items.iter().map(check).collect();
        let good: Vec<_> = checked.iter().flatten().cloned().collect();
        let mut answers = Ok(Vec::new().into_iter());
        if !good.is_empty() {
            let names = good.iter().map(|i| i.key.name.clone()).collect();
            let run = move |view: &mut View| {
                let one = |item: &RenewItem| match view.change(&item.key.name) {
                    Ok(mut name) => name.renew(item, sent),
                    Err(e) => RenewOutcome::Failed(e.with_name(&item.key.name)),
                };
                Ok(good.iter().map(one).collect::<Vec<_>>())
            };
            let asked = self
                .connection
                .call(Needs::write(Sync::Ordinary, names), run)
                .await;
            answers = asked.map(Vec::into_iter);
        }
        let answer = |item| match (item, &mut answers) {
            (Err(e), _) => RenewOutcome::Failed(e),
            (Ok(RenewItem { key, .. }), Err(e)) => RenewOutcome::Failed(e.clone().with_name(&key.name)),
            (Ok(_), Ok(answers)) => answers.next().unwrap_or(RenewOutcome::Gone),
        };
        checked.into_iter().map(answer).collect()
    }
}
