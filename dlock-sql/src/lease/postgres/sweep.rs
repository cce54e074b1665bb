//! What nobody waits for: rows of names that nobody has used for a while are deleted.
//!
//! Whoever releases does so now and then, in a task, and the database sees to it that one client a minute
//! does. Where nobody releases anything there is nothing new to be deleted; what the last one leaves stays
//! until somebody comes again. A program that lives shorter than that does it too, with its first release, if
//! opening finds that nobody has for a minute: where all programs are short, nobody else would.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Result;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::call::{Value, Way, run};
use super::connection::Db;
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

impl Db {
    /// Looks for dead names, if it is time.
    pub(super) fn sweep_sometimes(self: &Arc<Self>) {
        if self.is_time_to_sweep() {
            let db = Arc::clone(self);
            self.spawn(async move {
                let age = i64::try_from(AGE.as_micros()).unwrap_or(i64::MAX);
                // Where it fails somebody else does it, or this one does next time.
                let _ = db
                    .ask(&db.sql.sweep, &[Value::Long(age), Value::Number(MOST)])
                    .await;
            });
        }
    }
}
