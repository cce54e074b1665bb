//! Leases extended, many of them in one script.

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, Result};
use futures::{StreamExt as _, stream};
use redis::Value;
use std::time::Duration;

use super::PlainLock;
use super::lock::unsupported;
use crate::backend::millis;
use crate::renew::{AT_ONCE, BATCH, patience};
use crate::reply::{Reply, strange};

#[async_trait]
impl Renew for PlainLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        // On a cluster each name may be on another server, and one that hangs holds up no other: see the
        // renewal of the other recipe.
        let (batch, at_once, limit) = match self.store.connection.is_spread() {
            true => (1, items.len(), Some(patience(items))),
            false => (BATCH, AT_ONCE, None),
        };
        let batches = items.chunks(batch).map(|batch| self.renew_batch(batch, limit));
        let renewed: Vec<_> = batches.collect();
        let all: Vec<Vec<_>> = stream::iter(renewed).buffered(at_once.max(1)).collect().await;
        all.into_iter().flatten().collect()
    }
}

impl PlainLock {
    async fn renew_batch(&self, items: &[RenewItem], limit: Option<Duration>) -> Vec<RenewOutcome> {
        let failed = |e: Error| {
            let of = |item: &RenewItem| RenewOutcome::Failed(e.clone().with_name(&item.key.name));
            items.iter().map(of).collect()
        };
        self.extend(items, limit).await.unwrap_or_else(failed)
    }

    async fn extend(&self, items: &[RenewItem], limit: Option<Duration>) -> Result<Vec<RenewOutcome>> {
        let mut call = self.store.call(&self.scripts.extend, items.len());
        for item in items {
            if item.kind != RenewKind::Lease {
                return Err(unsupported("a plain lock has no queue"));
            }
            self.store.capabilities.check_ttl(item.ttl)?;
            call = call.arg(self.key(&item.key.name));
        }
        for item in items {
            call = call.arg(item.key.id.to_string()).number(millis(item.ttl));
        }
        let (sent, value) = match limit {
            Some(limit) => call.run_for(limit).await?,
            None => call.run().await?,
        };
        let answers = Reply::new(value)?.rest().map(|left| match left {
            Value::Int(left) if left >= 0 => {
                let left = Duration::from_millis(left.unsigned_abs());
                RenewOutcome::Renewed(Renewal::new(sent, left))
            }
            _ => RenewOutcome::Gone,
        });
        let answers: Vec<_> = answers.collect();
        match answers.len() == items.len() {
            true => Ok(answers),
            false => Err(strange("too little")),
        }
    }
}
