//! What nobody waits for: rows of names that nobody has used for a while are deleted.
//!
//! The floor of tokens is locked first and rises with them in one transaction, so a name that is made anew begins where it ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{LockName, Result, Timestamp};
use futures::FutureExt as _;
use futures::future::select;
use sqlx::Row as _;

use super::connections::{Absent, Link};
use super::failure::foreign;
use super::schema::NOW;
use super::text::bytes;

/// For how long nobody has used a dead name. Longer than a tombstone stands.
const AGE: Duration = Duration::from_secs(120);

/// How often one client does it.
const EVERY: Duration = Duration::from_secs(60);

/// How many names at once.
const MOST: u32 = 1_000;

/// How many names are locked in one transaction.
const TOGETHER: usize = 50;

impl Link {
    /// Deletes dead names, if it is time.
    pub(super) fn sweep_sometimes(self: &Arc<Self>) {
        let now = Timestamp::now().as_nanos();
        let due = self.sweep_at.load(Ordering::Relaxed);
        let next = now.saturating_add(u64::try_from(EVERY.as_nanos()).unwrap_or(u64::MAX));
        let turn = now >= due
            && self
                .sweep_at
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        // The first release of a client only starts the clock: a program that takes one lock and ends has nothing to do with this.
        if !turn || due == 0 {
            return;
        }
        let link = Arc::clone(self);
        let sweeping = async move {
            let swept = std::pin::pin!(link.sweep());
            // Where it fails somebody else does it, or this one does next time.
            let _ = select(swept, link.closing.clone()).await;
        };
        self.runtime.spawn(sweeping.boxed());
    }

    /// Deletes dead names, unless somebody else did lately.
    async fn sweep(&self) -> Result<()> {
        let (p, age) = (&self.sql.prefix, AGE.as_micros());
        let turn = format!(
            "UPDATE {p}meta SET swept = {NOW} WHERE swept <= {NOW} - {}",
            EVERY.as_micros() / 2
        );
        // Found rows are counted, and the time is another one each time.
        if self.tell(turn).await? == 0 {
            return Ok(());
        }
        self.settle_dead().await?;
        // The floor rises to the largest token there is: what is deleted after that was last granted long before.
        self.tell(format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; \
             SELECT token_floor FROM {p}meta FOR UPDATE; \
             UPDATE {p}meta SET token_floor = GREATEST(token_floor, (SELECT COALESCE(MAX(k.token), 0) FROM {p}name AS k)); \
             DELETE FROM {p}name WHERE others = 0 AND ends < {NOW} - {age} ORDER BY name LIMIT {MOST}; COMMIT"
        ))
        .await?;
        Ok(())
    }

    /// Takes back what dead waiters, watches and tombstones have left under names that nobody asks for any more.
    async fn settle_dead(&self) -> Result<()> {
        let (p, age) = (&self.sql.prefix, AGE.as_micros());
        // What is no name of ours is passed over, and nothing behind it is kept from being swept.
        let mut behind = "X''".to_owned();
        loop {
            let rows = self
                .read_text(format!(
                    "SELECT DISTINCT name FROM {p}entry WHERE name > {behind} AND ends < {NOW} - {age} ORDER BY name LIMIT {TOGETHER}"
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
