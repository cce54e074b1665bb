//! Leases extended, many of them in one script.

use async_trait::async_trait;
use dlock_core::Result;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use futures::{StreamExt as _, stream};
use redis::Value;
use std::time::Duration;

use super::lock::unsupported;
use super::{PlainLock, call};
use crate::backend::millis;
use crate::lock::check_ttl;
use crate::renew::{AT_ONCE, BATCH, patience};
use crate::reply::{Reply, strange};

#[async_trait]
impl Renew for PlainLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        // On a cluster each name may be on another server, and one that hangs holds up no other: see the
        // renewal of the other recipe.
        let (batch, at_once, limit) = match self.0.connection.is_spread() {
            true => (1, items.len(), Some(patience(items))),
            false => (BATCH, AT_ONCE, None),
        };
        let batches: Vec<Vec<RenewItem>> = items.chunks(batch).map(<[_]>::to_vec).collect();
        let renewed = batches.into_iter().map(|batch| self.renew_batch(batch, limit));
        let all: Vec<Vec<_>> = stream::iter(renewed).buffered(at_once.max(1)).collect().await;
        all.into_iter().flatten().collect()
    }
}

impl PlainLock {
    async fn renew_batch(&self, items: Vec<RenewItem>, limit: Option<Duration>) -> Vec<RenewOutcome> {
        match self.extend(&items, limit).await {
            Ok(outcomes) => outcomes,
            Err(e) => items
                .iter()
                .map(|item| RenewOutcome::Failed(e.clone().with_name(&item.key.name)))
                .collect(),
        }
    }

    async fn extend(&self, items: &[RenewItem], limit: Option<Duration>) -> Result<Vec<RenewOutcome>> {
        let plain = &self.0;
        let mut command = call(&plain.scripts.extend, items.len());
        for item in items {
            if item.kind != RenewKind::Lease {
                return Err(unsupported("a plain lock has no queue"));
            }
            check_ttl(&plain.capabilities, item.ttl)?;
            command.arg(plain.key(&item.key.name));
        }
        for item in items {
            command.arg(item.key.id.to_string()).arg(millis(item.ttl));
        }
        let (sent, value) = plain.run(&plain.scripts.extend, command, limit).await?;
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
