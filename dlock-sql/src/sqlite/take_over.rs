//! Taking over a file that belongs to another boot id, when nobody else has it open.

use dlock_core::{Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteConnection, SqliteLockingMode};
use sqlx::{ConnectOptions as _, Connection as _};

use super::failure::{is_busy, nothing_done, perhaps_done};
use super::schema::{Company, migrate};
use super::store::Database;

pub(super) const ONE_BOOT_ID: &str = "let all that share the file see the same /proc/sys/kernel/random/boot_id, or use a backend with a server";

pub(super) fn in_use(at: &str) -> Error {
    Error::new(
        ErrorKind::BackendData,
        format!(
            "the SQLite database {at} holds locks of another boot id and is open elsewhere, so their holders may be alive in another \
             container or machine: {ONE_BOOT_ID}; if this machine was just restarted, try again when the ttl of those locks is over"
        ),
    )
}

/// Makes the tables of another boot ours if nobody else has the file open. Answers whether it has; no is not final.
///
/// Every connection to a WAL database has a lock on the file from its first statement until it is closed, and this one asks for
/// the lock that excludes them all. Other journal modes have no lock between transactions, so there it proves nothing.
pub(super) async fn take_over(db: &Database) -> Result<bool> {
    let unless_busy = |e| match is_busy(&e) {
        true => Ok(false),
        false => Err(nothing_done(e, &db.at)),
    };
    let exclusive = db.quiet().locking_mode(SqliteLockingMode::Exclusive);
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
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut *conn)
        .await?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Ok(false);
    }
    sqlx::raw_sql("PRAGMA synchronous = FULL; BEGIN EXCLUSIVE")
        .execute(conn)
        .await?;
    Ok(true)
}

async fn finish_take_over(conn: &mut SqliteConnection, db: &Database) -> Result<bool> {
    migrate(conn, &db.sql, db.boot, &db.at, Company::None).await?;
    let committed = sqlx::raw_sql("COMMIT").execute(conn).await;
    committed.map(|_| true).map_err(|e| perhaps_done(e, &db.at))
}
