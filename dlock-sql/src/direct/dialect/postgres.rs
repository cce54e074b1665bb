//! PostgreSQL.

use sqlx::Postgres;
use sqlx::SqlSafeStr as _;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};

use super::*;
use crate::direct::failure::Failure;

/// Whatever the user's default is: what was read under the lock must be what is newest.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

impl Store for Postgres {}

impl Dialect for Postgres {
    const INTEGER: &'static str = "BIGINT";
    const RECOVERS: bool = false;
    const TODAY: &'static str = "clock_timestamp()";
    const LOCKING: &'static str = " FOR UPDATE";

    fn or_nothing(key: &str) -> String {
        format!("ON CONFLICT ({key}) DO NOTHING")
    }

    fn placeholder(n: usize) -> String {
        format!("${n}")
    }

    fn bytes(bytes: &[u8]) -> String {
        // Not '\x…', which is something else where standard_conforming_strings is off.
        format!("decode('{}', 'hex')", hex(bytes))
    }

    fn text(text: &str) -> String {
        format!("convert_from({}, 'UTF8')", Self::bytes(text.as_bytes()))
    }

    fn fence_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (resource BYTEA PRIMARY KEY, max_exclusive BIGINT, max_any \
             BIGINT, \
             value BYTEA NOT NULL)"
        )
    }

    fn version_table(table: &str) -> String {
        format!("CREATE TABLE IF NOT EXISTS {table} (part TEXT PRIMARY KEY, version BIGINT NOT NULL)")
    }

    fn reentrant_table(table: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (name BYTEA PRIMARY KEY, holds BIGINT NOT NULL, \
             owner_label TEXT NOT NULL, owner_id BYTEA NOT NULL, token BIGINT NOT NULL, last_change BYTEA \
             NOT NULL, \
             since TIMESTAMPTZ, expires_at TIMESTAMPTZ)"
        )
    }

    // Not now(), which is when the transaction began, before the wait for the row.
    fn remaining() -> dlock_core::Result<String> {
        Ok("CAST(EXTRACT(EPOCH FROM expires_at - clock_timestamp()) * 1000000 AS BIGINT)".to_owned())
    }

    fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String> {
        let end = format!("clock_timestamp() + {} * INTERVAL '1 microsecond'", micros(ttl));
        Ok(match extend {
            Extend::Anew => format!("expires_at = {end}"),
            Extend::AtLeast => format!("expires_at = GREATEST(expires_at, {end})"),
        })
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
                Wait::NoWait => "FOR UPDATE NOWAIT",
                Wait::SkipLocked => "FOR UPDATE SKIP LOCKED",
                Wait::Block | Wait::AtMost(_) => "FOR UPDATE",
            };
            let sql = AssertSqlSafe(format!("{select} {clause}")).into_sql_str();
            let limit = match wait {
                Wait::Block | Wait::SkipLocked => {
                    return Self::all(conn, sql, arguments, prepared).await.map(Some);
                }
                Wait::NoWait => None,
                Wait::AtMost(limit) => Some(whole(limit, Duration::from_millis(1))),
            };
            let mut before = "SAVEPOINT dlock_lock".to_owned();
            if let Some(ms) = limit {
                before.push_str("; SELECT current_setting('lock_timeout')");
                before.push_str(&format!("; SET LOCAL lock_timeout = {ms}"));
            }
            let shown = Self::ask(conn, before).await?;
            let mut after = String::new();
            if let Some(row) = shown.first() {
                let value: String = sqlx::Row::try_get(row, 0)?;
                after = format!("SET LOCAL lock_timeout = {}; ", quoted(&value));
            }
            match Self::all(&mut *conn, sql, arguments, prepared).await {
                Ok(rows) => {
                    // Released, the savepoint leaves its locks to the transaction.
                    after.push_str("RELEASE SAVEPOINT dlock_lock");
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

    speaks!(PgArguments, PgConnection, PgRow);
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
