//! SQLite.

use dlock_core::Timestamp;
use sqlx::SqlSafeStr as _;
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};

use super::*;
use crate::direct::failure::Failure;
use crate::sqlite::boot::BootId;

const BEGIN: &str = "BEGIN IMMEDIATE";

impl Store for Sqlite {}

/// This boot, as a literal.
fn boot() -> dlock_core::Result<String> {
    let boot = BootId::current()?;
    Ok(Sqlite::bytes(boot.as_bytes()))
}

impl Dialect for Sqlite {
    const INTEGER: &'static str = "INTEGER";
    // Its worker thread begins and rolls back whole, and a database in memory must not be closed.
    const RECOVERS: bool = true;
    const TODAY: &'static str = "strftime('%Y-%m-%d %H:%M:%f', 'now')";
    // There are no locks of rows: see `lock` below.
    const LOCKING: &'static str = "";

    fn or_nothing(key: &str) -> String {
        format!("ON CONFLICT ({key}) DO NOTHING")
    }

    fn placeholder(_: usize) -> String {
        "?".to_owned()
    }

    fn bytes(bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }

    fn text(text: &str) -> String {
        format!("CAST(x'{}' AS TEXT)", hex(text.as_bytes()))
    }

    // As that of the backend.
    fn fence_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (resource BLOB PRIMARY KEY NOT NULL, \
             max_exclusive INTEGER, max_any INTEGER, value BLOB NOT NULL) STRICT, WITHOUT ROWID"
        )
    }

    fn version_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (part TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL) \
             STRICT, WITHOUT ROWID"
        )
    }

    // expires_at: nanoseconds since that boot.
    fn reentrant_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (name BLOB PRIMARY KEY NOT NULL, holds INTEGER NOT NULL, \
             owner_label TEXT NOT NULL, owner_id BLOB NOT NULL, token INTEGER NOT NULL, last_change BLOB \
             NOT NULL, since TEXT, \
             boot BLOB, expires_at INTEGER) STRICT, WITHOUT ROWID"
        )
    }

    // There is no server and so no server's clock: the one that all processes of the machine share, as in the
    // backend. Read before the statement, which holds the write lock of the file already.
    fn remaining() -> dlock_core::Result<String> {
        let now = Timestamp::now().as_nanos();
        Ok(format!(
            "CASE WHEN boot = {} THEN (expires_at - {now}) / 1000 ELSE -1 END",
            boot()?
        ))
    }

    fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String> {
        let nanos = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let end = Timestamp::now().as_nanos().saturating_add(nanos);
        let end = end.min(i64::MAX as u64);
        Ok(match extend {
            Extend::Anew => format!("boot = {}, expires_at = {end}", boot()?),
            Extend::AtLeast => format!("boot = {}, expires_at = max(expires_at, {end})", boot()?),
        })
    }

    /// Takes the file's write lock, which is the only lock there is, by a deletion of nothing; then reads.
    ///
    /// *The transaction had read before, and somebody has written since*: the deletion fails as
    /// `BUSY_SNAPSHOT`, so what is read under the lock is always what is newest.
    fn lock<'a>(
        conn: &'a mut SqliteConnection,
        table: &'static str,
        select: String,
        arguments: SqliteArguments,
        wait: Wait,
        prepared: Prepared,
    ) -> Done<'a, Option<Vec<SqliteRow>>> {
        Box::pin(async move {
            let limit = match wait {
                Wait::Block => None,
                Wait::NoWait | Wait::SkipLocked => Some(0),
                Wait::AtMost(limit) => Some(whole(limit, Duration::from_millis(1))),
            };
            let mut back = None;
            if let Some(ms) = limit {
                let shown = Self::ask(&mut *conn, "PRAGMA busy_timeout".to_owned()).await?;
                let shown: Option<i64> = shown.first().map(|row| sqlx::Row::try_get(row, 0)).transpose()?;
                back = shown.map(|ms| format!("PRAGMA busy_timeout = {ms}"));
                Self::ask(&mut *conn, format!("PRAGMA busy_timeout = {ms}")).await?;
            }
            let taken = Self::ask(&mut *conn, format!("DELETE FROM {table} WHERE 0")).await;
            if let Some(back) = back {
                Self::ask(&mut *conn, back).await?;
            }
            match taken {
                Err(e) if limit.is_some() && Failure::of(&e) == Failure::LockTimeout => return Ok(None),
                taken => drop(taken?),
            }
            let sql = AssertSqlSafe(select).into_sql_str();
            Self::all(conn, sql, arguments, prepared).await.map(Some)
        })
    }

    speaks!(SqliteArguments, SqliteConnection, SqliteRow);
}
