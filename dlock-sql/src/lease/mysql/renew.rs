//! Leases and queue entries extended, five hundred in a statement.
//!
//! Leases that are held alone are extended by one statement that locks nothing but their own rows: the keys are listed in the order of their bytes. If it does
//! not find all of them, a second one reads back what is left of each. What that does not find (a shared lease, an entry of the queue, a lease that is over) goes
//! through a transaction by names, at most that many at a time.

use std::collections::HashMap;

use async_trait::async_trait;
use dlock_core::spi::{Grant, LeaseKey, Lock as _, Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{Error, LockName, Result, Timestamp};
use sqlx::Row as _;

use super::connections::Absent;
use super::failure::foreign;
use super::lock::{MysqlLease, round_up};
use super::schema::NOW;
use super::text::{bytes, id_bytes, read_id};
use crate::admit::Asked;
use crate::lease::check::{check_ttl, micros};

/// How many go into one statement.
const BATCH: usize = 500;

/// How many names are locked in one transaction.
const LOCKED: usize = 50;

type Outcomes = Vec<(usize, RenewOutcome)>;

#[async_trait]
impl Renew for MysqlLease {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let (mut sole, mut rest, mut outcomes) = (HashMap::new(), Vec::new(), Outcomes::new());
        for (n, item) in items.iter().enumerate() {
            match item.kind {
                RenewKind::Lease => match check_ttl(self.capabilities(), item.ttl) {
                    Ok(()) => sole.entry(micros(item.ttl)).or_insert_with(Vec::new).push(n),
                    Err(e) => outcomes.push((n, failed(e, item))),
                },
                _ => rest.push(n),
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

enum Became {
    Lease(Option<std::time::Duration>),
    Queued(Asked),
    Failed(Error),
}

impl MysqlLease {
    /// Extends those that are held alone; answers what is left of each.
    async fn extend(
        &self,
        items: &[RenewItem],
        batch: &[usize],
        ttl: i64,
    ) -> Result<(Timestamp, HashMap<LeaseKey, std::time::Duration>)> {
        let sql = &self.link.sql;
        let keys: Vec<_> = batch
            .iter()
            .map(|n| {
                let key = &items[*n].key;
                format!("({},{})", bytes(key.name.as_bytes()), bytes(&id_bytes(key.id)))
            })
            .collect();
        // Both servers find the rows of such pairs by the key, and lock no others.
        let (p, live) = (&sql.prefix, &sql.extend_where);
        let keys = format!("(name, id) IN ({})", keys.join(","));
        let sent = Timestamp::now();
        // As nearly always: all are there, and none has more left than it is given. Then that is what each has.
        let found = self
            .link
            .tell(format!(
                "UPDATE {p}name SET ttl = {ttl}, phase = 2, ends = {NOW} + {ttl} WHERE {keys} {live} AND ends <= {NOW} + {ttl}"
            ))
            .await?;
        if usize::try_from(found).is_ok_and(|found| found == batch.len()) {
            let life = std::time::Duration::from_micros(u64::try_from(ttl).unwrap_or(0));
            let all = batch.iter().map(|n| (items[*n].key.clone(), life));
            return Ok((sent, all.collect()));
        }
        self.link
            .tell(format!(
                "UPDATE {p}name SET ttl = {ttl}, phase = 2, ends = GREATEST(ends, {NOW} + {ttl}) WHERE {keys} {live}"
            ))
            .await?;
        // A lease that was over as that ran is over: nothing makes it live again under its key.
        let rows = self
            .link
            .read_text(format!(
                "SELECT name, id, ends - {NOW} FROM {p}name WHERE {keys} {live} AND phase = 2 AND ttl = {ttl}"
            ))
            .await?;
        let bad = |_: sqlx::Error| foreign("a column of another type");
        let mut left = HashMap::new();
        for row in &rows {
            let name = LockName::new(row.try_get::<Vec<u8>, _>(0).map_err(bad)?)?;
            let id = row.try_get::<Vec<u8>, _>(1).map_err(bad)?;
            let id = read_id(&id).ok_or_else(|| foreign("a request id of another length"))?;
            let life = u64::try_from(row.try_get::<i64, _>(2).map_err(bad)?).unwrap_or(0);
            left.insert(LeaseKey::new(name, id), std::time::Duration::from_micros(life));
        }
        Ok((sent, left))
    }

    async fn renew_each(&self, items: &[RenewItem], batch: &[usize]) -> Outcomes {
        let mut names: Vec<_> = batch.iter().map(|n| items[*n].key.name.clone()).collect();
        names.dedup();
        let done = self
            .link
            .change(&names, Absent::Left, |view| {
                let now = view.now;
                let each = batch.iter().map(|n| {
                    let item = &items[*n];
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
