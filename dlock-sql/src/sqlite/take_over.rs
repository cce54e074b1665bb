//! Taking over the tables of another boot.

use dlock_core::Result;
use sqlx::sqlite::{SqliteConnection, SqliteLockingMode};
use sqlx::{ConnectOptions as _, Connection as _};

use super::failure::{is_busy, nothing_done, perhaps_done};
use super::schema::{Database, migrate};

/// Makes the tables of another boot ours if nobody else has the file open. Answers whether it has; no is not
/// final.
///
/// Every connection to a WAL database has a lock on the file from its first statement until it is closed, and
/// this one asks for the lock that excludes them all. Other journal modes have no lock between transactions,
/// so there it proves nothing.
pub(super) async fn take_over(db: &Database) -> Result<bool> {
    let exclusive = db.quiet().locking_mode(SqliteLockingMode::Exclusive);
    let unless_busy = |e| match is_busy(&e) {
        true => Ok(false),
        false => Err(nothing_done(e, &db.at)),
    };
    let mut conn = match exclusive.connect().await {
        Ok(conn) => conn,
        Err(e) => return unless_busy(e),
    };
    let outcome = match alone(&mut conn).await {
        Ok(true) => finish_take_over(&mut conn, db).await,
        Ok(false) => Ok(false),
        Err(e) => unless_busy(e),
    };
    // What was locked for this connection alone is free when it is closed, and never before.
    let closed = conn.close().await.map_err(|e| nothing_done(e, &db.at));
    outcome.and_then(|taken| closed.map(|()| taken))
}

/// Whether a transaction has begun on the only connection that the file has.
async fn alone(conn: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let mode = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn);
    let mode: String = mode.await?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Ok(false);
    }
    let begin = sqlx::raw_sql("PRAGMA synchronous = FULL; BEGIN EXCLUSIVE");
    begin.execute(conn).await.map(|_| true)
}

async fn finish_take_over(conn: &mut SqliteConnection, db: &Database) -> Result<bool> {
    migrate(conn, db, true).await?;
    let committed = sqlx::raw_sql("COMMIT").execute(conn).await;
    committed.map(|_| true).map_err(|e| perhaps_done(e, &db.at))
}
