//! What differs between the databases, as far as the direct ways of locking are concerned.
//!
//! Each way is written once, generic over [`Store`]. What the compiler cannot know of *any* database of sqlx (how values are bound and read,
//! who executes what) stands here, once for each of the three.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use super::row::Wait;

type Done<'a, T> = BoxFuture<'a, Result<T, sqlx::Error>>;

/// A database that the direct ways of locking know: `sqlx::Postgres`, `sqlx::MySql` (MariaDB, too) and `sqlx::Sqlite`, each with its feature.
/// Nobody else can implement it.
pub trait Store: Dialect {}

/// Whether a statement is worth keeping prepared on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// A text that comes again.
    Kept,
    /// Once: its text has numbers in it, or there may be a pooler in between.
    Once,
}

/// A value of dlock's own tables.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number.
    Number(i64),
    /// A number, or none.
    Perhaps(Option<i64>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A text.
    Text(String),
}

/// What [`Store`] hides: how that database is spoken to.
pub trait Dialect: sqlx::Database {
    /// The type of whole numbers of 64 bit, as `CAST` calls it.
    const INTEGER: &'static str;
    /// Whether a statement that fails takes the transaction with it, as far as the last savepoint.
    const FAILURE_ABORTS: bool;
    /// How a transaction begins that reads what is newest, and writes.
    const BEGIN: &'static str;
    /// What makes an `INSERT` of a key that is there do nothing, after its values. It leaves the row locked, or lockable without a deadlock.
    fn or_nothing(key: &str) -> String;
    /// The `n`-th value of a statement, counted from one.
    fn placeholder(n: usize) -> String;
    /// At the end of a `SELECT` whose rows are to be locked; with a space before it.
    fn locking(wait: Wait) -> &'static str;
    /// The statements that make the table of the fence gate.
    fn fence_table(table: &str) -> String;
    /// The statements that make the table of re-entrant rows.
    fn reentrant_table(table: &str) -> String;
    /// The column of that name, in microseconds from now on; below one when it is over. An expression.
    fn remaining() -> dlock_core::Result<String>;
    /// Assignments that make the hold last for that long from now on, and no shorter than it does if `extend`.
    fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String>;
    /// The time of day, for operators to read. An expression.
    const TODAY: &'static str;

    /// What a statement answers.
    fn all(
        conn: &mut Self::Connection,
        sql: SqlStr,
        arguments: Self::Arguments,
        prepared: Prepared,
    ) -> Done<'_, Vec<Self::Row>>;
    /// How many rows a statement has changed; of an update, how many it has found.
    fn execute(
        conn: &mut Self::Connection,
        sql: SqlStr,
        arguments: Self::Arguments,
        prepared: Prepared,
    ) -> Done<'_, u64>;
    /// What a `SELECT` answers whose rows are locked, from that table.
    fn lock<'a>(
        conn: &'a mut Self::Connection,
        table: &'static str,
        sql: SqlStr,
        arguments: Self::Arguments,
        wait: Wait,
        prepared: Prepared,
    ) -> Done<'a, Vec<Self::Row>>;
    /// Runs a text without values, as it is: what defines tables.
    fn raw(conn: &mut Self::Connection, sql: SqlStr) -> Done<'_, ()>;

    /// Values as they are bound.
    fn arguments(values: Vec<Value>) -> Result<Self::Arguments, sqlx::Error>;
    /// One more value, behind those of the caller.
    fn add_number(arguments: &mut Self::Arguments, n: i64) -> Result<(), sqlx::Error>;
    /// A number that was read.
    fn number(row: &Self::Row, at: usize) -> Result<Option<i64>, sqlx::Error>;
    /// Bytes that were read.
    fn bytes(row: &Self::Row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;
    /// A text that was read.
    fn text(row: &Self::Row, at: usize) -> Result<Option<String>, sqlx::Error>;
}

/// What becomes of the time that a hold has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extend {
    /// It is forgotten: the hold is a new one.
    Anew,
    /// It is kept if it is longer: somebody relies on it.
    AtLeast,
}

/// A text of ours, in which `?` stands for each value: made from names that were checked and from numbers.
pub(super) fn own<DB: Store>(text: &str) -> SqlStr {
    let mut sql = String::with_capacity(text.len() + 8);
    let mut count = 0;
    for c in text.chars() {
        if c == '?' {
            count += 1;
            sql.push_str(&DB::placeholder(count));
        } else {
            sql.push(c);
        }
    }
    AssertSqlSafe(sql).into_sql_str()
}

/// Runs a text of ours.
pub(super) async fn execute_own<DB: Store>(
    conn: &mut DB::Connection,
    text: &str,
    values: Vec<Value>,
) -> Result<u64, sqlx::Error> {
    let arguments = DB::arguments(values)?;
    DB::execute(conn, own::<DB>(text), arguments, Prepared::Once).await
}

/// What a text of ours answers.
pub(super) async fn all_own<DB: Store>(
    conn: &mut DB::Connection,
    text: &str,
    values: Vec<Value>,
) -> Result<Vec<DB::Row>, sqlx::Error> {
    let arguments = DB::arguments(values)?;
    DB::all(conn, own::<DB>(text), arguments, Prepared::Once).await
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn micros(ttl: Duration) -> u64 {
    // Rounded down: a lease in the store is not shorter than what its holder believes, which takes a margin off.
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
}

/// The part that is the same word for word, and yet cannot be generic: each line is about one database's types.
macro_rules! speaks {
    ($arguments:ty, $connection:ty, $row:ty) => {
        fn all(
            conn: &mut $connection,
            sql: SqlStr,
            arguments: $arguments,
            prepared: Prepared,
        ) -> Done<'_, Vec<$row>> {
            let query = sqlx::query_with::<Self, $arguments>(sql, arguments);
            let query = query.persistent(prepared == Prepared::Kept);
            Box::pin(async move { query.fetch_all(conn).await })
        }

        fn execute(
            conn: &mut $connection,
            sql: SqlStr,
            arguments: $arguments,
            prepared: Prepared,
        ) -> Done<'_, u64> {
            let query = sqlx::query_with::<Self, $arguments>(sql, arguments);
            let query = query.persistent(prepared == Prepared::Kept);
            Box::pin(async move { Ok(query.execute(conn).await?.rows_affected()) })
        }

        fn raw(conn: &mut $connection, sql: SqlStr) -> Done<'_, ()> {
            Box::pin(async move { sqlx::raw_sql(sql).execute(conn).await.map(drop) })
        }

        fn arguments(values: Vec<Value>) -> Result<$arguments, sqlx::Error> {
            use sqlx::Arguments as _;
            let mut arguments = <$arguments>::default();
            for value in values {
                let added = match value {
                    Value::Number(n) => arguments.add(n),
                    Value::Perhaps(n) => arguments.add(n),
                    Value::Bytes(bytes) => arguments.add(bytes),
                    Value::Text(text) => arguments.add(text),
                };
                added.map_err(sqlx::Error::Encode)?;
            }
            Ok(arguments)
        }

        fn add_number(arguments: &mut $arguments, n: i64) -> Result<(), sqlx::Error> {
            sqlx::Arguments::add(arguments, n).map_err(sqlx::Error::Encode)
        }

        fn number(row: &$row, at: usize) -> Result<Option<i64>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn bytes(row: &$row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn text(row: &$row, at: usize) -> Result<Option<String>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }
    };
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::Postgres;
    use sqlx::postgres::{PgArguments, PgConnection, PgRow};

    use super::*;

    impl Store for Postgres {}

    impl Dialect for Postgres {
        const INTEGER: &'static str = "BIGINT";
        const FAILURE_ABORTS: bool = true;
        // Whatever the user's default is: what was read under the lock must be what is newest.
        const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
        const TODAY: &'static str = "clock_timestamp()";

        fn or_nothing(key: &str) -> String {
            format!("ON CONFLICT ({key}) DO NOTHING")
        }

        fn placeholder(n: usize) -> String {
            format!("${n}")
        }

        fn locking(wait: Wait) -> &'static str {
            match wait {
                Wait::Block => " FOR UPDATE",
                Wait::NoWait => " FOR UPDATE NOWAIT",
                Wait::SkipLocked => " FOR UPDATE SKIP LOCKED",
            }
        }

        fn fence_table(table: &str) -> String {
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (resource BYTEA PRIMARY KEY, max_exclusive BIGINT, max_any BIGINT, \
                 value BYTEA NOT NULL)"
            )
        }

        fn reentrant_table(table: &str) -> String {
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (name BYTEA PRIMARY KEY, holds BIGINT NOT NULL, owner_label TEXT NOT NULL, \
                 owner_id BYTEA NOT NULL, token BIGINT NOT NULL, last_change BYTEA NOT NULL, \
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

        fn lock<'a>(
            conn: &'a mut PgConnection,
            _: &'static str,
            sql: SqlStr,
            arguments: PgArguments,
            _: Wait,
            prepared: Prepared,
        ) -> Done<'a, Vec<PgRow>> {
            Self::all(conn, sql, arguments, prepared)
        }

        speaks!(PgArguments, PgConnection, PgRow);
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use sqlx::MySql;
    use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};

    use super::*;

    impl Store for MySql {}

    impl Dialect for MySql {
        const INTEGER: &'static str = "SIGNED";
        const FAILURE_ABORTS: bool = false;
        // In any isolation: what is read there is read by locking, and that is always what is newest.
        const BEGIN: &'static str = "START TRANSACTION READ WRITE";
        const TODAY: &'static str = "UTC_TIMESTAMP(6)";

        // Not INSERT IGNORE: that locks a row that is there for readers, and two who then want to write it are a deadlock. This one locks it
        // for a writer at once.
        fn or_nothing(key: &str) -> String {
            format!("ON DUPLICATE KEY UPDATE {key} = {key}")
        }

        fn placeholder(_: usize) -> String {
            "?".to_owned()
        }

        fn locking(wait: Wait) -> &'static str {
            match wait {
                Wait::Block => " FOR UPDATE",
                Wait::NoWait => " FOR UPDATE NOWAIT",
                Wait::SkipLocked => " FOR UPDATE SKIP LOCKED",
            }
        }

        // InnoDB: the other engines know no transactions. VARBINARY, which is compared byte for byte.
        fn fence_table(table: &str) -> String {
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (resource VARBINARY(1024) NOT NULL PRIMARY KEY, max_exclusive BIGINT, max_any BIGINT, \
                 value LONGBLOB NOT NULL) ENGINE = InnoDB"
            )
        }

        fn reentrant_table(table: &str) -> String {
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(1024) NOT NULL PRIMARY KEY, holds BIGINT NOT NULL, \
                 owner_label VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL, owner_id VARBINARY(16) NOT NULL, token BIGINT NOT NULL, \
                 last_change VARBINARY(16) NOT NULL, since DATETIME(6), expires_at DATETIME(6)) ENGINE = InnoDB"
            )
        }

        // UTC, which has no hour twice. It is when the statement began, perhaps before it waited: that makes who holds look alive for longer, and
        // what is written end sooner, but never before ttl has gone since the client sent it.
        fn remaining() -> dlock_core::Result<String> {
            Ok("TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)".to_owned())
        }

        fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String> {
            let end = format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", micros(ttl));
            Ok(match extend {
                Extend::Anew => format!("expires_at = {end}"),
                Extend::AtLeast => format!("expires_at = GREATEST(expires_at, {end})"),
            })
        }

        fn lock<'a>(
            conn: &'a mut MySqlConnection,
            _: &'static str,
            sql: SqlStr,
            arguments: MySqlArguments,
            _: Wait,
            prepared: Prepared,
        ) -> Done<'a, Vec<MySqlRow>> {
            Self::all(conn, sql, arguments, prepared)
        }

        speaks!(MySqlArguments, MySqlConnection, MySqlRow);
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use dlock_core::Timestamp;
    use sqlx::Sqlite;
    use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};

    use super::*;
    use crate::sqlite::boot::BootId;

    impl Store for Sqlite {}

    /// This boot, as a literal.
    fn boot() -> dlock_core::Result<String> {
        let boot = BootId::current()?;
        let digits: String = boot.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        Ok(format!("x'{digits}'"))
    }

    impl Dialect for Sqlite {
        const INTEGER: &'static str = "INTEGER";
        const FAILURE_ABORTS: bool = false;
        const BEGIN: &'static str = "BEGIN IMMEDIATE";
        const TODAY: &'static str = "strftime('%Y-%m-%d %H:%M:%f', 'now')";

        fn or_nothing(key: &str) -> String {
            format!("ON CONFLICT ({key}) DO NOTHING")
        }

        fn placeholder(_: usize) -> String {
            "?".to_owned()
        }

        // There are no locks of rows: see `lock` below.
        fn locking(_: Wait) -> &'static str {
            ""
        }

        // As that of the backend.
        fn fence_table(table: &str) -> String {
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (resource BLOB PRIMARY KEY NOT NULL, max_exclusive INTEGER, max_any INTEGER, \
                 value BLOB NOT NULL) STRICT, WITHOUT ROWID"
            )
        }

        // expires_at: nanoseconds since that boot.
        fn reentrant_table(table: &str) -> String {
            format!(
                "CREATE TABLE IF NOT EXISTS {table} (name BLOB PRIMARY KEY NOT NULL, holds INTEGER NOT NULL, owner_label TEXT NOT NULL, \
                 owner_id BLOB NOT NULL, token INTEGER NOT NULL, last_change BLOB NOT NULL, since TEXT, \
                 boot BLOB, expires_at INTEGER) STRICT, WITHOUT ROWID"
            )
        }

        // There is no server and so no server's clock: the one that all processes of the machine share, as in the backend. Read before the
        // statement, which holds the write lock of the file already.
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
        /// *The transaction had read before, and somebody has written since*: the deletion fails as `BUSY_SNAPSHOT`, so that what is read under
        /// the lock is always what is newest.
        fn lock<'a>(
            conn: &'a mut SqliteConnection,
            table: &'static str,
            sql: SqlStr,
            arguments: SqliteArguments,
            wait: Wait,
            prepared: Prepared,
        ) -> Done<'a, Vec<SqliteRow>> {
            Box::pin(async move {
                let mut patience = None;
                if wait != Wait::Block {
                    let shown: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
                        .fetch_one(&mut *conn)
                        .await?;
                    sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *conn).await?;
                    patience = Some(shown);
                }
                let nothing = AssertSqlSafe(format!("DELETE FROM {table} WHERE 0"));
                let taken = sqlx::query(nothing).execute(&mut *conn).await;
                if let Some(shown) = patience {
                    let back = AssertSqlSafe(format!("PRAGMA busy_timeout = {shown}"));
                    sqlx::query(back).persistent(false).execute(&mut *conn).await?;
                }
                taken?;
                Self::all(conn, sql, arguments, prepared).await
            })
        }

        speaks!(SqliteArguments, SqliteConnection, SqliteRow);
    }
}
