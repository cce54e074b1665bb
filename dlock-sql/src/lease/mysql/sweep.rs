//! What nobody waits for: rows of names that nobody has used for a while are deleted.
//!
//! *A name that is made anew has to begin above where it ended.* The floor rises to all tokens there are with
//! each sweep, and a name is deleted only if the floor was above its token by the sweep *before*. Who takes a
//! name reads the floor without a lock, in the statement that makes the row; so that statement would have to
//! have begun before that sweep, half a `sweep_every` ago, and not yet have found its row, which nothing does
//! that waits for no longer than `lock_wait`, where that is shorter. And no token is less than the clock as
//! the statement began, so it would fall only where it had been raised above the clock, or where the clock
//! was set back.
//!
//! *A sweep ∥ whoever takes the name*: the delete finds the row changed, or the other finds it gone and makes
//! another.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{LockName, Result};
use sqlx::Row as _;

use super::connection::Db;
use super::failure::foreign;
use super::schema::NOW;
use super::text::{bytes, list};
use super::transaction::Absent;

/// For how long nobody has used a dead name. Longer than a tombstone stands.
const AGE: Duration = Duration::from_secs(120);

/// How many names at once.
const MOST: u32 = 1_000;

/// How many names are locked in one transaction.
const TOGETHER: usize = 50;

/// A token that was raised so far does not raise the floor, or new names would begin there and soon have none
/// left. Such a name keeps its row.
const FAR: u64 = 1 << 62;

impl Db {
    /// Deletes dead names, if it is time.
    pub(super) fn sweep_sometimes(self: &Arc<Self>) {
        if self.is_time_to_sweep() {
            let db = Arc::clone(self);
            // Where it fails somebody else does it, or this one does next time.
            self.spawn(async move { drop(db.sweep().await) });
        }
    }

    /// Deletes dead names, unless somebody else did lately.
    async fn sweep(self: &Arc<Self>) -> Result<()> {
        match self.sweep_turn().await? {
            true => self.sweep_now().await,
            false => Ok(()),
        }
    }

    /// Whether it is this client's turn. If it is, nobody else's comes before some time has passed; and the
    /// floor has risen.
    async fn sweep_turn(self: &Arc<Self>) -> Result<bool> {
        let (p, every) = (&self.sql.prefix, self.sweep_every.as_micros());
        let turn = format!(
            "UPDATE {p}meta SET older_floor = token_floor, token_floor = GREATEST(token_floor, \
             (SELECT COALESCE(MAX(k.token), 0) FROM {p}name AS k WHERE k.token < {FAR})), swept = {NOW} \
             WHERE only_row = 1 AND (swept <= {NOW} - {} OR swept > {NOW} + {every})",
            every / 2
        );
        // Found rows are counted, and the time is another one each time.
        let (_, told) = self.tell(turn).await?;
        Ok(told.found > 0)
    }

    /// As a client is opened, which may be one of many that live for less than the time between two sweeps.
    pub(super) async fn sweep_at_first(self: &Arc<Self>) {
        if matches!(self.sweep_turn().await, Ok(true)) {
            let db = Arc::clone(self);
            self.spawn(async move { drop(db.sweep_now().await) });
        }
    }

    async fn sweep_now(self: &Arc<Self>) -> Result<()> {
        let (p, age) = (&self.sql.prefix, AGE.as_micros());
        self.settle_dead().await?;
        let floor = self
            .read_text(format!("SELECT older_floor FROM {p}meta WHERE only_row = 1"))
            .await?;
        let floor = floor.first().map(|row| row.try_get::<i64, _>(0)).transpose();
        let Some(floor) = floor.map_err(|_| foreign("a floor"))? else {
            return Ok(());
        };
        let dead = format!("others = 0 AND ends < {NOW} - {age} AND token <= {floor}");
        let rows = self
            .read_text(format!(
                "SELECT name FROM {p}name WHERE {dead} ORDER BY name LIMIT {MOST}"
            ))
            .await?;
        let all = rows.iter().map(|row| row.try_get::<Vec<u8>, _>(0));
        let all = all
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| foreign("a name"))?;
        for some in all.chunks(TOGETHER) {
            let some = list(some.iter().map(Vec::as_slice));
            self.tell(format!("DELETE FROM {p}name WHERE name IN ({some}) AND {dead}"))
                .await?;
        }
        Ok(())
    }

    /// Takes back what dead waiters, watches and tombstones have left under names that nobody asks for any
    /// more.
    async fn settle_dead(self: &Arc<Self>) -> Result<()> {
        let (p, age) = (&self.sql.prefix, AGE.as_micros());
        // What is no name of ours is passed over, and nothing behind it is kept from being swept.
        let mut behind = "X''".to_owned();
        loop {
            let rows = self
                .read_text(format!(
                    "SELECT DISTINCT name FROM {p}entry WHERE name > {behind} AND ends < {NOW} - {age} \
                        ORDER BY name LIMIT {TOGETHER}"
                ))
                .await?;
            let all = rows.iter().map(|row| row.try_get::<Vec<u8>, _>(0));
            let all = all
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| foreign("a name"))?;
            let Some(last) = all.last() else { return Ok(()) };
            behind = bytes(last);
            let more = all.len() >= TOGETHER;
            let names: Vec<_> = all
                .into_iter()
                .filter_map(|name| LockName::new(name).ok())
                .collect();
            if !names.is_empty() {
                // Every change begins by taking back what has run out, and ends by writing that.
                self.change(&names, Absent::Left, |_| Ok(())).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }
}
