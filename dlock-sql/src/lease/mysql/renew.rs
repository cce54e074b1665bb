//! Leases and queue entries extended, five hundred in a statement.
//!
//! Leases that are held alone are extended by one statement that locks nothing but their own rows: the keys
//! are listed in the order of their bytes. If it does not find all of them, a second one reads back what is
//! left of each. What that does not find (a shared lease, an entry of the queue, a lease that is over) goes
//! through a transaction by names, at most that many at a time.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Grant, LeaseKey, Lock as _, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, LockName, Result, Timestamp, Token};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::failure::foreign;
use super::lock::{MysqlLease, round_up};
use super::schema::NOW;
use super::text::{bytes, id_bytes, read_id};
use super::transaction::Absent;
use crate::admit::Asked;
use crate::lease::request::{check_ttl, micros};

/// How many go into one statement.
const BATCH: usize = 500;

/// How many names are locked in one transaction.
const LOCKED: usize = 50;

type Outcomes = Vec<(usize, RenewOutcome)>;

#[async_trait]
impl Renew for MysqlLease {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let (mut sole, mut rest, mut outcomes) = (HashMap::new(), Vec::new(), Outcomes::new());
        let mut offered = Vec::new();
        for (n, item) in items.iter().enumerate() {
            match item.kind {
                RenewKind::Lease => match check_ttl(self.capabilities(), item.ttl) {
                    Ok(()) => sole.entry(micros(item.ttl)).or_insert_with(Vec::new).push(n),
                    Err(e) => outcomes.push((n, failed(e, item))),
                },
                _ if self.db.sights.take_offer(&item.key) => offered.push(n),
                _ => rest.push(n),
            }
        }
        offered.sort_by(|a, b| items[*a].key.name.cmp(&items[*b].key.name));
        for batch in offered.chunks(BATCH) {
            // What became of it if it was not answered shows when it is asked again.
            match self.claim(items, batch).await {
                Ok(mut grants) => {
                    for n in batch {
                        match grants.remove(&items[*n].key) {
                            Some(grant) => outcomes.push((*n, RenewOutcome::Granted(grant))),
                            None => rest.push(*n),
                        }
                    }
                }
                Err(e) => outcomes.extend(batch.iter().map(|n| (*n, failed(e.clone(), &items[*n])))),
            }
        }
        for (ttl, mut alike) in sole {
            alike.sort_by(|a, b| items[*a].key.name.cmp(&items[*b].key.name));
            for batch in alike.chunks(BATCH) {
                match self.extend(items, batch, ttl).await {
                    Ok((sent, left)) => {
                        for n in batch {
                            match left.get(&items[*n].key) {
                                Some(left) => {
                                    outcomes.push((*n, RenewOutcome::Renewed(Renewal::new(sent, *left))));
                                }
                                None => rest.push(*n),
                            }
                        }
                    }
                    Err(e) => outcomes.extend(batch.iter().map(|n| (*n, failed(e.clone(), &items[*n])))),
                }
            }
        }
        rest.sort_by(|a, b| items[*a].key.name.cmp(&items[*b].key.name));
        for batch in rest.chunks(LOCKED) {
            outcomes.extend(self.renew_each(items, batch).await);
        }
        outcomes.sort_by_key(|(n, _)| *n);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

fn failed(e: Error, item: &RenewItem) -> RenewOutcome {
    RenewOutcome::Failed(e.with_name(&item.key.name))
}

/// A condition on those keys. Both servers find the rows of such pairs by the key, and lock no others.
fn keys(items: &[RenewItem], batch: &[usize]) -> String {
    let all: Vec<_> = batch
        .iter()
        .map(|n| {
            let key = &items[*n].key;
            format!("({},{})", bytes(key.name.as_bytes()), bytes(&id_bytes(key.id)))
        })
        .collect();
    format!("(name, id) IN ({})", all.join(","))
}

/// A row of a name, an id, and how long it lives yet.
fn read_life(row: &MySqlRow) -> Result<(LeaseKey, Duration)> {
    let bad = |_: sqlx::Error| foreign("a column of another type");
    let name = LockName::new(row.try_get::<Vec<u8>, _>(0).map_err(bad)?)?;
    let id = row.try_get::<Vec<u8>, _>(1).map_err(bad)?;
    let id = read_id(&id).ok_or_else(|| foreign("a request id of another length"))?;
    let life = u64::try_from(row.try_get::<i64, _>(2).map_err(bad)?).unwrap_or(0);
    Ok((LeaseKey::new(name, id), Duration::from_micros(life)))
}

enum Became {
    Lease(Option<Duration>),
    Queued(Asked),
    Failed(Error),
}

impl MysqlLease {
    /// Claims those that were offered alone.
    async fn claim(&self, items: &[RenewItem], batch: &[usize]) -> Result<HashMap<LeaseKey, Grant>> {
        let p = &self.db.sql.prefix;
        let keys = keys(items, batch);
        let (sent, answer) = self
            .db
            .tell(format!(
                "UPDATE {p}name SET phase = 2, ends = {NOW} + ttl WHERE {keys} AND phase = 1 AND ends > \
                    {NOW}; \
                 SELECT name, id, ends - {NOW}, token FROM {p}name WHERE {keys} AND phase = 2 AND ends > \
                 {NOW}"
            ))
            .await?;
        let bad = |_: sqlx::Error| foreign("a column of another type");
        let mut grants = HashMap::new();
        for row in &answer.rows {
            let (key, life) = read_life(row)?;
            let token = u64::try_from(row.try_get::<i64, _>(3).map_err(bad)?).ok();
            let token = token
                .and_then(Token::new)
                .ok_or_else(|| foreign("a token below one"))?;
            grants.insert(key.clone(), Grant::new(key, Some(token), sent, life));
        }
        Ok(grants)
    }

    /// Extends those that are held alone; answers what is left of each.
    async fn extend(
        &self,
        items: &[RenewItem],
        batch: &[usize],
        ttl: i64,
    ) -> Result<(Timestamp, HashMap<LeaseKey, Duration>)> {
        let sql = &self.db.sql;
        let (p, live, keys) = (&sql.prefix, &sql.extend_where, keys(items, batch));
        // As nearly always: all are there, and none has more left than it is given. Then that is what each
        // has.
        let (sent, told) = self
            .db
            .tell_again(format!(
                "UPDATE {p}name SET ttl = {ttl}, phase = 2, ends = {NOW} + {ttl} WHERE {keys} {live} AND \
                    ends <= {NOW} + {ttl}"
            ))
            .await?;
        if usize::try_from(told.found).is_ok_and(|found| found == batch.len()) {
            let life = Duration::from_micros(u64::try_from(ttl).unwrap_or(0));
            let all = batch.iter().map(|n| (items[*n].key.clone(), life));
            return Ok((sent, all.collect()));
        }
        // A lease that was over as that ran is over: nothing makes it live again under its key.
        let (sent, answer) = self
            .db
            .tell(format!(
                "UPDATE {p}name SET ttl = {ttl}, phase = 2, ends = GREATEST(ends, {NOW} + {ttl}) WHERE \
                    {keys} {live}; \
                 SELECT name, id, ends - {NOW} FROM {p}name WHERE {keys} {live} AND phase = 2 AND ttl = {ttl}"
            ))
            .await?;
        let left = answer.rows.iter().map(read_life).collect::<Result<_>>()?;
        Ok((sent, left))
    }

    async fn renew_each(&self, items: &[RenewItem], batch: &[usize]) -> Outcomes {
        let mut names: Vec<_> = batch.iter().map(|n| items[*n].key.name.clone()).collect();
        names.dedup();
        let own: Vec<_> = batch.iter().map(|n| items[*n].clone()).collect();
        let done = self
            .db
            .change(&names, Absent::Left, move |view| {
                let now = view.now;
                let each = own.iter().map(|item| {
                    let name = match view.name(&item.key.name) {
                        Ok(Some(name)) => name,
                        Ok(None) => return Became::Lease(None),
                        Err(e) => return Became::Failed(e),
                    };
                    match item.kind {
                        RenewKind::Lease => {
                            Became::Lease(name.state.renew(item.key.id, round_up(item.ttl), now))
                        }
                        _ => Became::Queued(name.state.ask_again(item.key.id, round_up(item.ttl), now)),
                    }
                });
                Ok(each.collect::<Vec<_>>())
            })
            .await;
        match done {
            Ok((sent, became)) => batch
                .iter()
                .zip(became)
                .map(|(n, became)| (*n, outcome(&items[*n], sent, became)))
                .collect(),
            Err(e) => batch
                .iter()
                .map(|n| (*n, failed(e.clone(), &items[*n])))
                .collect(),
        }
    }
}

fn outcome(item: &RenewItem, sent: Timestamp, became: Became) -> RenewOutcome {
    match became {
        Became::Lease(Some(left)) => RenewOutcome::Renewed(Renewal::new(sent, left)),
        Became::Queued(Asked::Granted { token, expires_in }) => {
            RenewOutcome::Granted(Grant::new(item.key.clone(), token, sent, expires_in))
        }
        Became::Queued(Asked::Queued { recheck_in, ahead }) => RenewOutcome::Queued { recheck_in, ahead },
        Became::Failed(e) => failed(e, item),
        _ => RenewOutcome::Gone,
    }
}
