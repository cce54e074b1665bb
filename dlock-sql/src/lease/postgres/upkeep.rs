//! What nobody waits for: rows of names that nobody has used for a while are deleted.
//!
//! Whoever releases does so now and then, in a task, and the database sees to it that one client a minute does. Where nobody releases anything there is
//! nothing new to be deleted; what the last one leaves stays until somebody comes again. A program that lives shorter than that does it too, with its first
//! release, if opening finds that nobody has for a minute: where all programs are short, nobody else would.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{Result, Timestamp};
use futures::FutureExt as _;
use futures::future::{Either, select};
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::call::{Value, Way, run};
use super::connections::Link;
use super::failure::{foreign, nothing_done};
use super::schema::Statements;

/// For how long nobody has used a dead name. Longer than a tombstone stands.
const AGE: Duration = Duration::from_secs(120);

/// How many names go in one statement, which keeps none that is in use waiting.
const MOST: i32 = 10_000;

/// Whether it is time for somebody to look for dead names.
pub(super) async fn sweep_is_due(
    conn: &mut PgConnection,
    way: Way,
    sql: &Statements,
    at: &str,
) -> Result<bool> {
    let age = i64::try_from((AGE / 2).as_micros()).unwrap_or(i64::MAX);
    let rows = run(conn, way, &sql.sweep_due, &[Value::Long(age)]).await;
    let rows = rows.map_err(|e| nothing_done(e, at))?;
    let due = rows.first().map(|row| row.try_get(0));
    due.unwrap_or(Ok(false))
        .map_err(|_| foreign("another time of the last sweep"))
}

impl Link {
    /// Looks for dead names, if it is time.
    pub(super) fn sweep_sometimes(self: &Arc<Self>) {
        let now = Timestamp::now().as_nanos();
        let due = self.sweep_at.load(Ordering::Relaxed);
        let next = now.saturating_add(u64::try_from(self.sweep_every.as_nanos()).unwrap_or(u64::MAX));
        if now < due
            || self
                .sweep_at
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // The first release of a client only starts the clock, unless it is time already.
        if due == 0 {
            return;
        }
        let link = Arc::clone(self);
        let sweeping = async move {
            let age = i64::try_from(AGE.as_micros()).unwrap_or(i64::MAX);
            let values = [Value::Long(age), Value::Number(MOST)];
            let swept = std::pin::pin!(link.ask(&link.sql.sweep, &values));
            // Where it fails somebody else does it, or this one does next time.
            if let Either::Left((Err(_), _)) = select(swept, link.closing.clone()).await {
                link.sweep_at.store(next, Ordering::Relaxed);
            }
        };
        self.runtime.spawn(sweeping.boxed());
    }
}
