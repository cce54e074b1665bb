//! Renewals, many of them in one script.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::Result;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use redis::Value;

use super::PlainLock;
use super::lock::unsupported;
use crate::backend::millis;
use crate::renew::{BATCH, in_batches};
use crate::reply::strange;

#[async_trait]
impl Renew for PlainLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        // On a cluster each name may be on another server.
        let size = if self.store.connection.is_spread() {
            1
        } else {
            BATCH
        };
        in_batches(&self.store, items, size, |_| (), |batch| self.extend(batch)).await
    }
}

impl PlainLock {
    async fn extend(&self, items: Vec<&RenewItem>) -> Result<Vec<RenewOutcome>> {
        let mut call = self.store.call(&self.scripts.extend, items.len());
        for item in &items {
            if item.kind != RenewKind::Lease {
                return Err(unsupported("a plain lock has no queue"));
            }
            self.store.capabilities.check_ttl(item.ttl)?;
            call = call.arg(self.key(&item.key.name));
        }
        for item in &items {
            call = call.arg(item.key.id.to_string()).number(millis(item.ttl));
        }
        let (sent, reply) = call.ask().await?;
        let answers = reply.rest().map(|left| match left {
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
