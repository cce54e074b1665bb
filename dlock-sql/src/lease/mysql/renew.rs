//! Renewals of leases and queue entries, five hundred in a statement.
//!
//! One statement extends exclusive leases, and locks only their own rows: the keys are listed in the order of
//! their bytes. If it does not find all of them, a second one reads back what is left of each. Waiters claim
//! exclusive offers the same way. Everything else (a shared lease, a queue entry, an expired lease) goes
//! through a transaction by names, at most that many at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Grant, LeaseKey, RenewItem, RenewKind, RenewOutcome, Renewal};
use dlock_core::{LockName, Result};
use sqlx::mysql::MySqlRow;

use super::schema::NOW;
use super::state::token;
use super::transaction::{Absent, View};
use super::{Db, bytes};
use crate::lease::call::get;
use crate::lease::connection::again;
use crate::lease::dialect::Outcomes;
use crate::lease::keys::{id_bytes, micros, read_id, read_micros};
use crate::lease::renew::BATCH;

/// How many names are locked in one transaction.
const LOCKED: usize = 50;

type Item<'a> = (usize, &'a RenewItem);

pub(super) async fn renew(db: &Arc<Db>, mut items: Vec<Item<'_>>) -> Outcomes {
    items.sort_by(|(_, a), (_, b)| a.key.name.cmp(&b.key.name));
    let (mut rest, mut outcomes) = (HashSet::new(), Outcomes::new());
    // Those that were offered a lease have no ttl in here, and come first.
    let mut by_ttl: BTreeMap<Option<i64>, Vec<Item<'_>>> = BTreeMap::new();
    for (n, item) in &items {
        match item.kind {
            RenewKind::Lease => {
                let ttl = Some(micros(item.ttl));
                by_ttl.entry(ttl).or_default().push((*n, item));
            }
            _ if db.take_offer(&item.key) => by_ttl.entry(None).or_default().push((*n, item)),
            _ => drop(rest.insert(*n)),
        }
    }
    let mut found = |batch: &[Item<'_>], found: Result<HashMap<LeaseKey, RenewOutcome>>| match found {
        Ok(mut found) => {
            for (n, item) in batch {
                match found.remove(&item.key) {
                    Some(outcome) => outcomes.push((*n, Ok(outcome))),
                    None => drop(rest.insert(*n)),
                }
            }
        }
        // What became of one that was not answered shows when it is asked again.
        Err(e) => outcomes.extend(batch.iter().map(|(n, _)| (*n, Err(e.clone())))),
    };
    for (ttl, alike) in by_ttl {
        for batch in alike.chunks(BATCH) {
            let asked = match ttl {
                Some(ttl) => extend(db, batch, ttl).await,
                None => claim(db, batch).await,
            };
            found(batch, asked);
        }
    }
    items.retain(|(n, _)| rest.contains(n));
    for batch in items.chunks(LOCKED) {
        outcomes.extend(renew_each(db, batch).await);
    }
    outcomes
}

/// A condition on those keys. Both servers find the rows of such pairs by the key, and lock no others.
fn keys(batch: &[Item<'_>]) -> String {
    let key = |(_, item): &Item<'_>| {
        let (name, id) = (item.key.name.as_bytes(), id_bytes(item.key.id));
        format!("({},{})", bytes(name), bytes(&id))
    };
    let all: Vec<_> = batch.iter().map(key).collect();
    format!("(name, id) IN ({})", all.join(","))
}

/// A row of a name, an id, and how long it lives yet.
fn read_life(row: &MySqlRow) -> Result<(LeaseKey, Duration)> {
    let name = LockName::new(get::<Vec<u8>, _>(row, 0)?)?;
    let id = read_id(&get::<Vec<u8>, _>(row, 1)?)?;
    Ok((LeaseKey::new(name, id), read_micros(get(row, 2)?)))
}

/// Claims those that were offered alone.
async fn claim(db: &Arc<Db>, batch: &[Item<'_>]) -> Result<HashMap<LeaseKey, RenewOutcome>> {
    let (p, keys) = (&db.sql.prefix, keys(batch));
    let claim = format!(
        "UPDATE {p}name SET phase = 2, ends = {NOW} + ttl WHERE {keys} AND phase = 1 AND ends > {NOW}; \
         SELECT name, id, ends - {NOW}, token FROM {p}name WHERE {keys} AND phase = 2 AND ends > {NOW}"
    );
    let (sent, answer) = db.tell(claim).await?;
    let granted = |row: &MySqlRow| {
        let (key, life) = read_life(row)?;
        let grant = Grant::new(key.clone(), token(row, 3)?, sent, life);
        Ok((key, RenewOutcome::Granted(grant)))
    };
    answer.rows.iter().map(granted).collect()
}

/// Extends those that are held alone.
async fn extend(db: &Arc<Db>, batch: &[Item<'_>], ttl: i64) -> Result<HashMap<LeaseKey, RenewOutcome>> {
    let (p, live) = (
        &db.sql.prefix,
        format!("{} AND phase IN (1, 2) AND ends > {NOW}", keys(batch)),
    );
    // As nearly always: all are there, and none has more left than it is given. Then that is what each has.
    let extend = format!(
        "UPDATE {p}name SET ttl = {ttl}, phase = 2, ends = {NOW} + {ttl} WHERE {live} AND ends <= \
            {NOW} + {ttl}"
    );
    let (sent, told) = again(|| db.tell(extend.clone())).await.0?;
    let renewed = |life| RenewOutcome::Renewed(Renewal::new(sent, life));
    if usize::try_from(told.done.rows_affected()).is_ok_and(|found| found == batch.len()) {
        let all = batch.iter().map(|(_, item)| item.key.clone());
        return Ok(all.map(|key| (key, renewed(read_micros(ttl)))).collect());
    }
    // A lease that was over as that ran is over: nothing makes it live again under its key.
    let extend = format!(
        "UPDATE {p}name SET ttl = {ttl}, phase = 2, ends = GREATEST(ends, {NOW} + {ttl}) WHERE {live}; \
         SELECT name, id, ends - {NOW} FROM {p}name WHERE {live} AND phase = 2 AND ttl = {ttl}"
    );
    let (sent, answer) = db.tell(extend).await?;
    let renewed = |row: &MySqlRow| {
        let (key, life) = read_life(row)?;
        Ok((key, RenewOutcome::Renewed(Renewal::new(sent, life))))
    };
    answer.rows.iter().map(renewed).collect()
}

async fn renew_each(db: &Arc<Db>, batch: &[Item<'_>]) -> Outcomes {
    let mut names: Vec<_> = batch.iter().map(|(_, item)| item.key.name.clone()).collect();
    names.dedup();
    let own: Vec<_> = batch.iter().map(|(_, item)| (*item).clone()).collect();
    let renew = move |names: &mut View| {
        let each = own.iter().map(|item| match names.get_mut(&item.key.name) {
            Some(Ok(name)) => {
                let sent = name.sent;
                Ok(name.settled().renew(item, sent))
            }
            Some(Err(e)) => Err(e.clone()),
            None => Ok(RenewOutcome::Gone),
        });
        Ok(each.collect::<Vec<_>>())
    };
    let numbers = batch.iter().map(|(n, _)| *n);
    match db.change_all(&names, Absent::Left, renew).await {
        Ok((outcomes, _)) => numbers.zip(outcomes).collect(),
        Err(e) => numbers.map(|n| (n, Err(e.clone()))).collect(),
    }
}
