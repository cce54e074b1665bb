//! Deletes rows of names that were unused for a while, as `mod.rs` of `lease` explains. Each sweep, half a
//! `sweep_every` apart, raises the floor to all existing tokens.
//!
//! *A sweep ∥ an acquire of the name*: the delete finds the row changed, or the other finds it gone and makes
//! another.

use std::sync::Arc;

use dlock_core::{LockName, Result};

use super::schema::NOW;
use super::transaction::Absent;
use super::{Db, bytes, list};
use crate::lease::call::get;
use crate::lease::contention::AGE;

/// How many names at once.
const MOST: u32 = 1_000;

/// How many names are locked in one transaction.
const TOGETHER: usize = 50;

/// A token that was raised so far does not raise the floor, or new names would begin there and soon have none
/// left. Such a name keeps its row.
const FAR: u64 = 1 << 62;

/// Whether it is this client's turn. If it is, nobody else's comes before some time has passed; and the
/// floor has risen.
pub(super) async fn is_due(db: &Arc<Db>) -> Result<bool> {
    let (p, every) = (&db.sql.prefix, db.sweep_every.as_micros());
    let turn = format!(
        "UPDATE {p}meta SET older_floor = token_floor, token_floor = GREATEST(token_floor, (SELECT \
            COALESCE(MAX(k.token), 0) FROM {p}name AS k WHERE k.token < {FAR})), swept = {NOW} WHERE \
            only_row = 1 AND (swept <= {NOW} - {} OR swept > {NOW} + {every})",
        every / 2
    );
    // Found rows are counted, and the time is another one each time.
    Ok(db.tell(turn).await?.1.done.rows_affected() > 0)
}

pub(super) async fn sweep(db: &Arc<Db>) -> Result<()> {
    let (p, age) = (&db.sql.prefix, AGE.as_micros());
    settle_dead(db).await?;
    let floor = format!("SELECT older_floor FROM {p}meta WHERE only_row = 1");
    let floor = db.read_text(floor).await?;
    let Some(floor) = floor.first() else { return Ok(()) };
    let floor: i64 = get(floor, 0)?;
    let dead = format!("others = 0 AND ends < {NOW} - {age} AND token <= {floor}");
    let which = format!("name FROM {p}name WHERE {dead} ORDER BY name LIMIT {MOST}");
    let all = names(db, which).await?;
    for some in all.chunks(TOGETHER) {
        let some = list(some.iter().map(Vec::as_slice));
        let delete = format!("DELETE FROM {p}name WHERE name IN ({some}) AND {dead}");
        db.tell(delete).await?;
    }
    Ok(())
}

async fn names(db: &Arc<Db>, which: String) -> Result<Vec<Vec<u8>>> {
    let rows = db.read_text(format!("SELECT {which}")).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

/// Removes what dead waiters, watches and tombstones have left under unused names.
async fn settle_dead(db: &Arc<Db>) -> Result<()> {
    let (p, age) = (&db.sql.prefix, AGE.as_micros());
    let mut behind = "X''".to_owned();
    loop {
        let which = format!(
            "DISTINCT name FROM {p}entry WHERE name > {behind} AND ends < {NOW} - {age} ORDER BY name LIMIT \
                {TOGETHER}"
        );
        let all = names(db, which).await?;
        let Some(last) = all.last() else { return Ok(()) };
        behind = bytes(last);
        let more = all.len() >= TOGETHER;
        // What is no name of ours is passed over, and nothing behind it is kept from being swept.
        let all: Vec<_> = all
            .into_iter()
            .filter_map(|name| LockName::new(name).ok())
            .collect();
        if !all.is_empty() {
            // Every change begins by taking back what has run out, and ends by writing that.
            db.change_all(&all, Absent::Left, |_| Ok(())).await?;
        }
        if !more {
            return Ok(());
        }
    }
}
