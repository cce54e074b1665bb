//! PostgreSQL.

use sqlx::Postgres;
use sqlx::SqlSafeStr as _;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};

use super::*;
use crate::direct::failure::Failure;

impl Dialect for Postgres {
    // Whatever the user's default is: what was read under the lock must be what is newest.
    const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
    const TODAY: &'static str = "clock_timestamp()";
    const INTEGER: &'static str = "BIGINT";
    const KEY: &'static str = "BYTEA";
    const BYTES: &'static str = "BYTEA";
    const TIMES: &'static str = "since TIMESTAMPTZ, expires_at TIMESTAMPTZ";

    fn placeholder(n: usize) -> String {
        format!("${n}")
    }

    // Not '\x…', which is something else where standard_conforming_strings is off.
    fn bytes(bytes: &[u8]) -> String {
        format!("decode('{}', 'hex')", hex(bytes))
    }

    fn text(text: &str) -> String {
        format!("convert_from({}, 'UTF8')", Self::bytes(text.as_bytes()))
    }

    // Not now(), which is when the transaction began, before the wait for the row.
    fn remaining() -> dlock_core::Result<String> {
        Ok("CAST(EXTRACT(EPOCH FROM expires_at - clock_timestamp()) * 1000000 AS BIGINT)".to_owned())
    }

    // Rounded down: the holder takes a margin off, which is more.
    fn expiry_after(ttl: Duration) -> String {
        format!(
            "clock_timestamp() + {} * INTERVAL '1 microsecond'",
            ttl.as_micros()
        )
    }

    /// A wait that has an end is behind a savepoint, since a failure would end the whole transaction; going
    /// back there also takes back the limit. Not one of sqlx's: dropped while that is made, it would roll
    /// back the transaction around it, and the caller would go on without one. `SET LOCAL` is undone at the
    /// end of the transaction at the latest.
    fn lock<'a>(
        conn: &'a mut PgConnection,
        _: &'static str,
        select: String,
        arguments: PgArguments,
        wait: Wait,
        prepared: Prepared,
    ) -> Done<'a, Option<Vec<PgRow>>> {
        Box::pin(async move {
            let clause = match wait {
                Wait::NoWait => " NOWAIT",
                Wait::SkipLocked => " SKIP LOCKED",
                Wait::Block | Wait::AtMost(_) => "",
            };
            let sql = AssertSqlSafe(format!("{select}{}{clause}", Self::LOCKING)).into_sql_str();
            let mut before = "SAVEPOINT dlock_lock".to_owned();
            match wait {
                Wait::Block | Wait::SkipLocked => {
                    return Self::all(conn, sql, arguments, prepared).await.map(Some);
                }
                Wait::NoWait => {}
                Wait::AtMost(limit) => {
                    let ms = whole(limit, Duration::from_millis(1));
                    before.push_str("; SELECT current_setting('lock_timeout')");
                    before.push_str(&format!("; SET LOCAL lock_timeout = {ms}"));
                }
            }
            let shown = Self::ask(conn, before).await?;
            match Self::all(&mut *conn, sql, arguments, prepared).await {
                Ok(rows) => {
                    // Released, the savepoint leaves its locks to the transaction.
                    let mut after = "RELEASE SAVEPOINT dlock_lock".to_owned();
                    if let Some(row) = shown.first() {
                        let limit = Self::read_text(row, 0)?.unwrap_or_default().replace('\'', "''");
                        after.push_str(&format!("; SET LOCAL lock_timeout = '{limit}'"));
                    }
                    Self::ask(conn, after).await?;
                    Ok(Some(rows))
                }
                Err(e) if Failure::of(&e) == Failure::LockTimeout => {
                    let back = "ROLLBACK TO SAVEPOINT dlock_lock; RELEASE SAVEPOINT dlock_lock";
                    Self::ask(conn, back.to_owned()).await?;
                    Ok(None)
                }
                // The transaction is over, as with any other failure.
                Err(e) => Err(e),
            }
        })
    }

    driver_calls!(PgArguments, PgConnection, PgRow);
}
