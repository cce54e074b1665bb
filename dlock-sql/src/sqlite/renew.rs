//! Renewals of leases and queue entries, all of a call in one transaction.

use async_trait::async_trait;
use dlock_core::Timestamp;
use dlock_core::spi::{Renew, RenewItem, RenewOutcome};

use super::connection::Needs;
use super::lock::SqliteLock;
use super::store::Sync;
use super::view::View;
use crate::requests::{in_order, split};

#[async_trait]
impl Renew for SqliteLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let sent = Timestamp::now();
        let (good, mut outcomes) = split(&self.capabilities, items);
        let (numbers, good): (Vec<_>, Vec<_>) = good.into_iter().unzip();
        if !good.is_empty() {
            let names = good.iter().map(|item| item.key.name.clone()).collect();
            let run = move |view: &mut View| {
                let one = |item: &RenewItem| Ok(view.change(&item.key.name)?.renew(item, sent));
                Ok(good.iter().map(one).collect::<Vec<_>>())
            };
            let renewed = self.connection.call(Needs::write(Sync::Ordinary, names), run);
            match renewed.await {
                Ok(renewed) => outcomes.extend(numbers.into_iter().zip(renewed)),
                Err(e) => outcomes.extend(numbers.into_iter().map(|n| (n, Err(e.clone())))),
            }
        }
        in_order(items, outcomes)
    }
}
