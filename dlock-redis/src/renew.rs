//! Leases and queue entries extended, many of them in one script.
//!
//! On a cluster they are asked for at several nodes, of which one may hang. Whoever asks drops the whole
//! question after a while, and then knows nothing of any of them. So each node has less time than that, and
//! what it did not answer by then has failed for itself.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, ErrorKind, Result, Timestamp};
use futures::future::{Either, join_all, select};
use futures::{FutureExt as _, StreamExt as _, stream};
use redis::Value;

use crate::backend::millis;
use crate::failure::of_item;
use crate::keys::{bucket_of, holder_and_counter, id_bytes};
use crate::lock::RedisLock;
use crate::replicas::Replicas;
use crate::reply::{Reply, strange};

/// How many go into one script: a longer one would keep others waiting.
pub(crate) const BATCH: usize = 128;

/// How many scripts are under way at a time: the server does other work in between.
pub(crate) const AT_ONCE: usize = 4;

/// Items by their numbers, and what became of them.
type Outcomes = Vec<(usize, RenewOutcome)>;

/// How long a node of a cluster has. The engine waits for a sixth of the shortest ttl, or longer.
pub(crate) fn patience(items: &[RenewItem]) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(50);
    let shortest = items.iter().map(|item| item.ttl).min();
    (shortest.unwrap_or_default() / 8).max(SHORTEST)
}

fn failed(e: &Error, items: &[RenewItem], batch: &[usize]) -> Outcomes {
    let failed = |n: &usize| RenewOutcome::Failed(e.clone().with_name(&items[*n].key.name));
    batch.iter().map(|n| (*n, failed(n))).collect()
}

#[async_trait]
impl Renew for RedisLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let is_spread = self.backend.connection.is_spread();
        // Leases of one ttl are extended by a short script. What goes together runs on one server: on a
        // cluster, that of a bucket.
        let mut alike: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (n, item) in items.iter().enumerate() {
            let bucket = is_spread.then(|| bucket_of(item.key.name.as_bytes()));
            let ttl = (item.kind == RenewKind::Lease).then_some(item.ttl);
            alike.entry((bucket, ttl)).or_default().push(n);
        }
        let batches: Vec<Vec<usize>> = alike
            .values()
            .flat_map(|all| all.chunks(BATCH).map(<[_]>::to_vec))
            .collect();
        let all: Vec<Outcomes> = if is_spread {
            let over = self.backend.runtime.sleep(patience(items)).shared();
            let renewed = |batch| self.renew_until(over.clone(), items, batch);
            join_all(batches.iter().map(|b| renewed(b)).collect::<Vec<_>>()).await
        } else {
            let renewed: Vec<_> = batches.iter().map(|b| self.renew_alike(items, b)).collect();
            stream::iter(renewed).buffer_unordered(AT_ONCE).collect().await
        };
        let mut all: Outcomes = all.into_iter().flatten().collect();
        all.sort_by_key(|(n, _)| *n);
        let outcomes = all.into_iter().map(|(_, outcome)| outcome).collect();
        match &self.backend.replicas {
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
        // All at once, so that they share a mark.
        let renewed = items.iter().zip(&outcomes).filter_map(|(item, o)| {
            let renewed = matches!(o, RenewOutcome::Renewed(_));
            renewed.then(|| (item.key.clone(), None))
        });
        let mut told = replicas.confirm_all(renewed).into_iter();
        let counted = items.iter().zip(outcomes).map(|(item, outcome)| {
            let is_renewed = matches!(outcome, RenewOutcome::Renewed(_));
            let told = if is_renewed { told.next() } else { None };
            async move {
                let failed = |e: Error| RenewOutcome::Failed(e.with_name(&item.key.name));
                match outcome {
                    RenewOutcome::Renewed(_) => match replicas.told(told).await {
                        Ok(life) => RenewOutcome::Renewed(life),
                        // Whether it is lost, the next renewal is told.
                        Err(e) if e.kind() == ErrorKind::Lost => failed(Error::new(
                            ErrorKind::Unavailable,
                            "the lease was renewed, and then was not where the replicas were asked",
                        )),
                        Err(e) => failed(e),
                    },
                    RenewOutcome::Granted(grant) => match self.counted(grant).await {
                        Ok(grant) => RenewOutcome::Granted(grant),
                        Err(e) if e.kind() == ErrorKind::Lost => RenewOutcome::Gone,
                        Err(e) => failed(e),
                    },
                    other => other,
                }
            }
        });
        join_all(counted).await
    }

    async fn renew_until(
        &self,
        over: impl Future<Output = ()> + Unpin,
        items: &[RenewItem],
        batch: &[usize],
    ) -> Outcomes {
        match select(pin!(self.renew_alike(items, batch)), over).await {
            Either::Left((outcomes, _)) => outcomes,
            Either::Right(_) => failed(&self.backend.too_late(), items, batch),
        }
    }

    async fn renew_alike(&self, items: &[RenewItem], batch: &[usize]) -> Outcomes {
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut rest = batch.to_vec();
        // All of a batch are alike.
        if let Some(first) = batch.first().filter(|n| items[**n].kind == RenewKind::Lease) {
            let ttl = items[*first].ttl;
            match self.extend(items, batch, ttl).await {
                Ok((sent, extended)) => {
                    rest.clear();
                    for (n, done) in batch.iter().zip(extended) {
                        match done {
                            true => outcomes.push((*n, RenewOutcome::Renewed(Renewal::new(sent, ttl)))),
                            false => rest.push(*n),
                        }
                    }
                }
                Err(e) => return failed(&e, items, batch),
            }
        }
        if rest.is_empty() {
            return outcomes;
        }
        match self.renew_each(items, &rest).await {
            Ok(others) => outcomes.extend(rest.into_iter().zip(others)),
            Err(e) => outcomes.extend(failed(&e, items, &rest)),
        }
        outcomes
    }

    /// Those that are extended for as long as they were taken for. Answers when it was asked, and which were
    /// extended.
    async fn extend(
        &self,
        items: &[RenewItem],
        batch: &[usize],
        ttl: Duration,
    ) -> Result<(Timestamp, Vec<bool>)> {
        let c = &self.backend;
        c.capabilities.check_ttl(ttl)?;
        let of = || batch.iter().map(|n| &items[*n]);
        let mut call = c.call(&c.scripts.extend, batch.len());
        for item in of() {
            call = call.arg(c.holder(&item.key.name));
        }
        call = call.number(millis(ttl));
        for item in of() {
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
    async fn renew_each(&self, items: &[RenewItem], batch: &[usize]) -> Result<Vec<RenewOutcome>> {
        let c = &self.backend;
        let of = || batch.iter().map(|n| &items[*n]);
        let mut call = c.call(&c.scripts.renew, batch.len() * 2);
        for item in of() {
            let (holder, counter) = holder_and_counter(&c.prefix, &item.key.name);
            call = call.arg(holder).arg(counter);
        }
        call = call.number(millis(c.window));
        for item in of() {
            let queued = if item.kind == RenewKind::Queued { "1" } else { "0" };
            call = call
                .arg(id_bytes(item.key.id))
                .arg(queued)
                .number(millis(item.ttl));
        }
        let (sent, reply) = call.ask().await?;
        let mut answers = reply.rest();
        let outcomes = of().map(|item| {
            let answer = answers.next().ok_or_else(|| strange("too little"));
            let outcome = answer.and_then(|value| self.outcome(item, value, sent));
            outcome.unwrap_or_else(|e| RenewOutcome::Failed(e.with_name(&item.key.name)))
        });
        Ok(outcomes.collect())
    }

    fn outcome(&self, item: &RenewItem, value: Value, sent: Timestamp) -> Result<RenewOutcome> {
        let mut reply = Reply::new(value)?;
        let outcome = self.read_outcome(item, &mut reply, sent);
        self.backend.pushed(&item.key.name, reply.pushed());
        outcome
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
