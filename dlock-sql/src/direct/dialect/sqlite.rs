//! SQLite.

use dlock_core::Timestamp;
use sqlx::SqlSafeStr as _;
use sqlx::Sqlite;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};

use super::*;
use crate::direct::failure::Failure;
use crate::sqlite::boot::BootId;

/// This boot, as a literal.
fn boot() -> dlock_core::Result<String> {
    Ok(Sqlite::bytes(BootId::current()?.as_bytes()))
}

impl Dialect for Sqlite {
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    // Its worker thread begins and rolls back whole, and a database in memory must not be closed.
    const RECOVERS: bool = true;
    // There are no locks of rows: see `lock` below.
    const LOCKING: &'static str = "";
    const TODAY: &'static str = "strftime('%Y-%m-%d %H:%M:%f', 'now')";
    const GREATEST: &'static str = "max";
    const INTEGER: &'static str = "INTEGER";
    const NUMBER: &'static str = "INTEGER";
    const KEY: &'static str = "BLOB";
    const BYTES: &'static str = "BLOB";
    // expires_at: nanoseconds since that boot.
    const TIMES: &'static str = "since TEXT, boot BLOB, expires_at INTEGER";
    const OPTIONS: &'static str = " STRICT, WITHOUT ROWID";

    fn text(text: &str) -> String {
        format!("CAST(X'{}' AS TEXT)", hex(text.as_bytes()))
    }

    // There is no server and so no server's clock: the one that all processes of the machine share, as in the
    // backend. Read before the statement, which holds the write lock of the file already.
    fn remaining() -> dlock_core::Result<String> {
        let (now, boot) = (Timestamp::now().as_nanos(), boot()?);
        Ok(format!(
            "CASE WHEN boot = {boot} THEN (expires_at - {now}) / 1000 ELSE -1 END"
        ))
    }

    fn expiry_after(ttl: Duration) -> String {
        (Timestamp::now() + ttl)
            .as_nanos()
            .min(i64::MAX as u64)
            .to_string()
    }

    fn of_this_boot() -> dlock_core::Result<String> {
        Ok(format!("boot = {}, ", boot()?))
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
                back = shown
                    .first()
                    .map(|row| Self::read_number(row, 0))
                    .transpose()?
                    .flatten();
                Self::ask(&mut *conn, format!("PRAGMA busy_timeout = {ms}")).await?;
            }
            let taken = Self::ask(&mut *conn, format!("DELETE FROM {table} WHERE 0")).await;
            if let Some(ms) = back {
                Self::ask(&mut *conn, format!("PRAGMA busy_timeout = {ms}")).await?;
            }
            match taken {
                Err(e) if limit.is_some() && Failure::of(&e) == Failure::LockTimeout => return Ok(None),
                taken => drop(taken?),
            }
            let sql = AssertSqlSafe(select).into_sql_str();
            Self::all(conn, sql, arguments, prepared).await.map(Some)
        })
    }

    driver_calls!(SqliteArguments, SqliteConnection, SqliteRow);
}
