//! Renewals of leases and queue entries, many of them in one script.
//!
//! On a cluster they go to several nodes, one of which may hang. The caller drops the whole batch after a
//! while, and then knows nothing of any of them. So each node has less time than that, and only the items
//! that it did not answer fail.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, ErrorKind, Result, Timestamp};
use futures::future::{Either, join_all, pending, select};
use futures::{FutureExt as _, StreamExt as _, stream};
use redis::Value;

use crate::backend::{Store, millis};
use crate::failure::of_item;
use crate::keys::{bucket_of, holder_and_counter, id_bytes};
use crate::lock::RedisLock;
use crate::replicas::Replicas;
use crate::reply::{Reply, strange};

/// How many go into one script: a longer one would keep others waiting.
pub(crate) const BATCH: usize = 128;

/// How many scripts are under way at a time: the server does other work in between.
const AT_ONCE: usize = 4;

/// How long a node of a cluster has. The engine waits for a sixth of the shortest ttl, or longer.
fn patience(items: &[RenewItem]) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(50);
    let shortest = items.iter().map(|item| item.ttl).min();
    (shortest.unwrap_or_default() / 8).max(SHORTEST)
}

/// Renews in batches of that many items of one kind. A batch runs on one server.
pub(crate) async fn in_batches<'i, K: Ord, F: Future<Output = Result<Vec<RenewOutcome>>>>(
    store: &Store,
    items: &'i [RenewItem],
    size: usize,
    same_kind: impl Fn(&RenewItem) -> K,
    renew: impl Fn(Vec<&'i RenewItem>) -> F,
) -> Vec<RenewOutcome> {
    let mut groups: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (n, item) in items.iter().enumerate() {
        groups.entry(same_kind(item)).or_default().push(n);
    }
    let batches: Vec<&[usize]> = groups.values().flat_map(|all| all.chunks(size)).collect();
    let (at_once, over) = match store.connection.is_spread() {
        true => (batches.len(), store.runtime.sleep(patience(items))),
        false => (AT_ONCE, pending().boxed()),
    };
    let over = over.shared();
    let asked = batches.iter().map(|batch| {
        let renewing = renew(batch.iter().map(|n| &items[*n]).collect());
        let (over, many) = (over.clone(), batch.len());
        async move {
            let renewed = match select(pin!(renewing), over).await {
                Either::Left((renewed, _)) => renewed,
                Either::Right(_) => Err(store.too_late()),
            };
            renewed.unwrap_or_else(|e| vec![RenewOutcome::Failed(e); many])
        }
    });
    let asked: Vec<_> = asked.collect();
    let answers: Vec<_> = stream::iter(asked).buffered(at_once.max(1)).collect().await;
    let mut outcomes = vec![RenewOutcome::Gone; items.len()];
    for (n, outcome) in batches.into_iter().flatten().zip(answers.into_iter().flatten()) {
        outcomes[*n] = match outcome {
            RenewOutcome::Failed(e) => RenewOutcome::Failed(e.with_name(&items[*n].key.name)),
            outcome => outcome,
        };
    }
    outcomes
}

#[async_trait]
impl Renew for RedisLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let c = &self.backend;
        let is_spread = c.connection.is_spread();
        // Leases of one ttl are extended by a short script.
        let same_kind = |item: &RenewItem| {
            let bucket = is_spread.then(|| bucket_of(item.key.name.as_bytes()));
            (bucket, (item.kind == RenewKind::Lease).then_some(item.ttl))
        };
        let outcomes = in_batches(c, items, BATCH, same_kind, |batch| self.renew_of_one_kind(batch)).await;
        match &c.replicas {
            Some(replicas) => self.counted_all(replicas, items, outcomes).await,
            None => outcomes,
        }
    }
}

impl RedisLock {
    /// What of it counts: a renewal that the replicas have not acknowledged has failed, and leaves the
    /// deadline where it was. It is never a loss: the lease is there.
    async fn counted_all(
        &self,
        replicas: &Arc<Replicas>,
        items: &[RenewItem],
        outcomes: Vec<RenewOutcome>,
    ) -> Vec<RenewOutcome> {
        let counted = items.iter().zip(outcomes).map(|(item, outcome)| {
            // All are asked for before any is waited for, so that they share a mark.
            let is_renewed = matches!(outcome, RenewOutcome::Renewed(_));
            let confirmed = is_renewed.then(|| replicas.confirm(&item.key, None));
            async move {
                let counted = match (confirmed, outcome) {
                    (Some(confirmed), _) => confirmed.await.map(RenewOutcome::Renewed),
                    (None, RenewOutcome::Granted(grant)) => match self.counted(grant).await {
                        Err(e) if e.kind() == ErrorKind::Lost => Ok(RenewOutcome::Gone),
                        counted => counted.map(RenewOutcome::Granted),
                    },
                    (None, other) => Ok(other),
                };
                counted.unwrap_or_else(|e| {
                    let e = match e.kind() {
                        // The next renewal learns whether it is lost.
                        ErrorKind::Lost => Error::new(
                            ErrorKind::Unavailable,
                            "the lease was renewed, and was then missing where the replicas were asked",
                        ),
                        _ => e,
                    };
                    RenewOutcome::Failed(e.with_name(&item.key.name))
                })
            }
        });
        join_all(counted).await
    }

    /// All of one kind, and leases of one ttl.
    async fn renew_of_one_kind(&self, batch: Vec<&RenewItem>) -> Result<Vec<RenewOutcome>> {
        let Some(lease) = batch.first().filter(|item| item.kind == RenewKind::Lease) else {
            return self.renew_each(&batch).await;
        };
        let (sent, extended) = self.extend(&batch, lease.ttl).await?;
        let rest = batch.iter().zip(&extended).filter(|(_, extended)| !**extended);
        let rest: Vec<_> = rest.map(|(item, _)| *item).collect();
        let others = match rest.is_empty() {
            true => Vec::new(),
            false => self
                .renew_each(&rest)
                .await
                .unwrap_or_else(|e| vec![RenewOutcome::Failed(e); rest.len()]),
        };
        let (mut others, renewed) = (others.into_iter(), Renewal::new(sent, lease.ttl));
        let outcomes = extended.into_iter().filter_map(|extended| match extended {
            true => Some(RenewOutcome::Renewed(renewed)),
            false => others.next(),
        });
        Ok(outcomes.collect())
    }

    /// Those that are extended for as long as they were taken for. Answers when it was asked, and which were
    /// extended.
    async fn extend(&self, batch: &[&RenewItem], ttl: Duration) -> Result<(Timestamp, Vec<bool>)> {
        let c = &self.backend;
        c.capabilities.check_ttl(ttl)?;
        let mut call = c.call(&c.scripts.extend, batch.len());
        for item in batch {
            call = call.arg(c.holder(&item.key.name));
        }
        call = call.number(millis(ttl));
        for item in batch {
            call = call.arg(id_bytes(item.key.id));
        }
        let (sent, reply) = call.ask().await?;
        let extended: Vec<_> = reply.rest().map(|value| value == Value::Int(1)).collect();
        if extended.len() != batch.len() {
            return Err(strange("too little"));
        }
        Ok((sent, extended))
    }

    /// Whatever it is: each for itself.
    async fn renew_each(&self, batch: &[&RenewItem]) -> Result<Vec<RenewOutcome>> {
        let c = &self.backend;
        let mut call = c.call(&c.scripts.renew, batch.len() * 2);
        for item in batch {
            let (holder, counter) = holder_and_counter(&c.prefix, &item.key.name);
            call = call.arg(holder).arg(counter);
        }
        call = call.number(millis(c.window));
        for item in batch {
            let queued = if item.kind == RenewKind::Queued { "1" } else { "0" };
            call = call
                .arg(id_bytes(item.key.id))
                .arg(queued)
                .number(millis(item.ttl));
        }
        let (sent, reply) = call.ask().await?;
        let mut answers = reply.rest();
        let outcomes = batch.iter().map(|item| {
            let mut reply = Reply::new(answers.next().ok_or_else(|| strange("too little"))?)?;
            c.pushed(&item.key.name, reply.pushed());
            self.read_outcome(item, &mut reply, sent)
        });
        Ok(outcomes.map(|o| o.unwrap_or_else(RenewOutcome::Failed)).collect())
    }

    fn read_outcome(&self, item: &RenewItem, reply: &mut Reply, sent: Timestamp) -> Result<RenewOutcome> {
        Ok(match reply.bytes()?.as_slice() {
            b"L" => {
                let life = reply.life()?;
                self.backend.pushes.anchor(sent, reply.number()?);
                RenewOutcome::Renewed(Renewal::new(sent, life))
            }
            b"G" => RenewOutcome::Granted(self.backend.granted(&item.key, sent, reply)?),
            b"Q" => {
                let (recheck_in, ahead) = self.backend.queued(sent, reply)?;
                RenewOutcome::Queued { recheck_in, ahead }
            }
            b"E" => {
                let at = &self.backend.at;
                return Err(of_item(reply.text()?, at, ErrorKind::Unknown));
            }
            _ => RenewOutcome::Gone,
        })
    }
}
