//! Leases and queue entries extended, five hundred in a statement.
//!
//! A statement does not wait for a name that somebody else changes just then, or one busy name would keep the
//! leases of all others waiting. Those few are sent again, in a statement that does wait.

use async_trait::async_trait;
use dlock_core::spi::{Grant, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, ErrorKind, Result, Timestamp};
use futures::future::join_all;
use sqlx::Row as _;

use super::call::Value;
use super::failure::foreign;
use super::lock::PostgresLease;
use super::reply::{Answer, id_bytes};
use crate::lease::request::{check_ttl, micros};

/// How many go into one statement.
const BATCH: usize = 500;

/// Items by their numbers, and what became of them; and which were locked by somebody else.
type Outcomes = Vec<(usize, RenewOutcome)>;

#[async_trait]
impl Renew for PostgresLease {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let (mut good, mut outcomes) = (Vec::with_capacity(items.len()), Outcomes::new());
        for (n, item) in items.iter().enumerate() {
            let checked = match item.kind {
                RenewKind::Lease => check_ttl(dlock_core::spi::Lock::capabilities(self), item.ttl),
                _ => Ok(()),
            };
            match checked {
                Ok(()) => good.push(n),
                Err(e) => outcomes.push((n, failed(e, item))),
            }
        }
        let batches = good.chunks(BATCH).map(|batch| self.renew_batch(items, batch));
        outcomes.extend(join_all(batches).await.into_iter().flatten());
        outcomes.sort_by_key(|(n, _)| *n);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

fn failed(e: Error, item: &RenewItem) -> RenewOutcome {
    RenewOutcome::Failed(e.with_name(&item.key.name))
}

impl PostgresLease {
    async fn renew_batch(&self, items: &[RenewItem], batch: &[usize]) -> Outcomes {
        let (mut outcomes, busy) = self.renew_some(items, batch, false).await;
        if !busy.is_empty() {
            let (rest, busy) = self.renew_some(items, &busy, true).await;
            outcomes.extend(rest);
            // The server waited for them: it does not say so.
            outcomes.extend(
                busy.iter()
                    .map(|n| (*n, failed(foreign("an item left out"), &items[*n]))),
            );
        }
        outcomes
    }

    async fn renew_some(&self, items: &[RenewItem], batch: &[usize], waits: bool) -> (Outcomes, Vec<usize>) {
        match self.try_renew(items, batch, waits).await {
            Ok(done) => done,
            Err(e) => {
                let all = batch.iter().map(|n| (*n, failed(e.clone(), &items[*n])));
                (all.collect(), Vec::new())
            }
        }
    }

    async fn try_renew(
        &self,
        items: &[RenewItem],
        batch: &[usize],
        waits: bool,
    ) -> Result<(Outcomes, Vec<usize>)> {
        let db = &self.db;
        let of = || batch.iter().map(|n| &items[*n]);
        // Who was not told where it waits now looks: see `pushes`.
        let channel = db.channel.as_deref().filter(|_| db.pushes.listens());
        let values = [
            Value::ManyBytes(of().map(|i| i.key.name.as_bytes().to_vec()).collect()),
            Value::ManyBytes(of().map(|i| id_bytes(i.key.id).to_vec()).collect()),
            Value::Truths(of().map(|i| i.kind == RenewKind::Queued).collect()),
            Value::Longs(of().map(|i| micros(i.ttl).max(1_000)).collect()),
            Value::Text(channel),
            Value::Truth(waits),
        ];
        let (sent, rows) = db.ask_again(&db.sql.renew, &values, || ()).await?;
        let mut answers: Vec<Option<Answer>> = batch.iter().map(|_| None).collect();
        for row in rows.iter() {
            let place: i32 = row.try_get(0).map_err(|_| foreign("no number of an item"))?;
            // The first is number one.
            let place = usize::try_from(place).ok().and_then(|n| n.checked_sub(1));
            let slot = place.and_then(|n| answers.get_mut(n));
            *slot.ok_or_else(|| foreign("an item that was not asked for"))? = Some(Answer::read(row, 1)?);
        }
        let (mut outcomes, mut busy) = (Outcomes::with_capacity(batch.len()), Vec::new());
        for (n, answer) in batch.iter().zip(answers) {
            let item = &items[*n];
            match answer {
                Some(answer) if answer.word == "B" => busy.push(*n),
                Some(answer) => {
                    let outcome = self.read_outcome(item, &answer, sent);
                    outcomes.push((*n, outcome.unwrap_or_else(|e| failed(e, item))));
                }
                None => {
                    let e = Error::new(ErrorKind::BackendData, "the lock tables answered too little");
                    outcomes.push((*n, failed(e, item)));
                }
            }
        }
        Ok((outcomes, busy))
    }

    fn read_outcome(&self, item: &RenewItem, answer: &Answer, sent: Timestamp) -> Result<RenewOutcome> {
        self.db.pushes.anchor(sent, answer.at);
        Ok(match answer.word.as_str() {
            "L" => RenewOutcome::Renewed(Renewal::new(sent, answer.life()?)),
            "G" => {
                let (token, life) = (answer.token()?, answer.life()?);
                RenewOutcome::Granted(Grant::new(item.key.clone(), Some(token), sent, life))
            }
            "Q" => RenewOutcome::Queued {
                recheck_in: answer.recheck(),
                ahead: answer.ahead(),
            },
            _ => RenewOutcome::Gone,
        })
    }
}
