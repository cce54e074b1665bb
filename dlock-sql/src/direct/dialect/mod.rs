//! What differs between the databases, for locking by hand and for the fence gate.
//!
//! All else is written once, generic over [`Store`]. How values are bound and read cannot be said of *any*
//! database of sqlx, so it stands here once for each of the three.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqlStr, Transaction};

use super::row::Wait;

type Done<'a, T> = BoxFuture<'a, Result<T, sqlx::Error>>;

/// A database that can be locked by hand: `sqlx::Postgres`, `sqlx::MySql` (for MariaDB too) and
/// `sqlx::Sqlite`, each with its feature. Nobody else can implement it.
pub trait Store: Dialect {}

/// Whether a statement is worth keeping prepared on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// A text that comes again.
    Kept,
    /// Once: its text has numbers in it, or there may be a pooler in between.
    Once,
}

/// What becomes of the time that a hold has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extend {
    /// It is forgotten: the hold is a new one.
    Anew,
    /// It is kept if it is longer: an outer hold relies on it.
    AtLeast,
}

/// What [`Store`] hides: how that database is spoken to.
///
/// Statements on dlock's own tables are texts with their values in them, made from names that were checked,
/// numbers and [literals](Self::bytes) in hexadecimal digits, in which nothing can be read as SQL. Bound
/// values would take two requests. A pooler may change the connection between them, and in MySQL a future
/// that is dropped between them leaves a connection that sqlx waits for without end.
pub trait Dialect: sqlx::Database {
    /// The type of whole numbers of 64 bit, as `CAST` calls it.
    const INTEGER: &'static str;
    /// Whether sqlx leaves a connection as it should be when a future that uses it is dropped. See
    /// `pooled.rs`.
    const RECOVERS: bool;
    /// The time of day, for operators to read: an expression.
    const TODAY: &'static str;
    /// The end of a `SELECT` whose rows are to be locked; with a space before it.
    const LOCKING: &'static str;

    /// The end of an `INSERT` that does nothing if the key is there. The row is then locked, or can be
    /// without a deadlock.
    fn or_nothing(key: &str) -> String;
    /// The n-th placeholder of a statement, from 1 on.
    fn placeholder(n: usize) -> String;
    /// Those bytes in the text of a statement.
    fn bytes(bytes: &[u8]) -> String;
    /// Those characters in the text of a statement.
    fn text(text: &str) -> String;
    /// The statement that makes the table of the fence gate.
    fn fence_table(table: &str) -> String;
    /// The statement that makes the table of versions.
    fn version_table(table: &str) -> String;
    /// The statement that makes the table of re-entrant rows.
    fn reentrant_table(table: &str) -> String;
    /// How long a hold lasts, in microseconds; below one when it is over. An expression.
    fn remaining() -> dlock_core::Result<String>;
    /// Assignments that make a hold last for that long from now on.
    fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String>;

    /// Begins a transaction that reads what is newest, and writes.
    fn begin(conn: &mut Self::Connection) -> Done<'_, Transaction<'_, Self>>;
    /// What a text without values answers: one statement or several, in one request.
    fn ask(conn: &mut Self::Connection, text: String) -> Done<'_, Vec<Self::Row>>;
    /// What a statement answers.
    fn all(
        conn: &mut Self::Connection,
        sql: SqlStr,
        arguments: Self::Arguments,
        prepared: Prepared,
    ) -> Done<'_, Vec<Self::Row>>;
    /// How many rows a statement has changed; of an update, how many it has found.
    fn execute(conn: &mut Self::Connection, sql: SqlStr, arguments: Self::Arguments) -> Done<'_, u64>;
    /// What a `SELECT` answers whose rows are locked. `None` if others have them and `wait` is over: then the
    /// transaction goes on as if it had not been asked.
    fn lock<'a>(
        conn: &'a mut Self::Connection,
        table: &'static str,
        select: String,
        arguments: Self::Arguments,
        wait: Wait,
        prepared: Prepared,
    ) -> Done<'a, Option<Vec<Self::Row>>>;

    /// One more value, behind those of the caller.
    fn add_number(arguments: &mut Self::Arguments, n: i64) -> Result<(), sqlx::Error>;
    /// A number that was read.
    fn read_number(row: &Self::Row, at: usize) -> Result<Option<i64>, sqlx::Error>;
    /// Bytes that were read.
    fn read_bytes(row: &Self::Row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;
    /// A text that was read.
    fn read_text(row: &Self::Row, at: usize) -> Result<Option<String>, sqlx::Error>;
}

/// Two digits for each byte.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // A string takes everything.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn micros(ttl: Duration) -> u64 {
    // Rounded down: a lease in the store is not shorter than what its holder believes, which takes a margin
    // off.
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
}

/// A limit in whole units, rounded up: none is shorter than was said, and none is nought, which can mean
/// without end.
fn whole(limit: Duration, unit: Duration) -> u64 {
    const MOST: u128 = 100_000_000;
    let count = limit.as_nanos().div_ceil(unit.as_nanos()).clamp(1, MOST);
    u64::try_from(count).unwrap_or(1)
}

/// What is the same word for word, and yet cannot be generic: each line is about one database's types.
macro_rules! speaks {
    ($arguments:ty, $connection:ty, $row:ty) => {
        fn begin(conn: &mut $connection) -> Done<'_, Transaction<'_, Self>> {
            Box::pin(sqlx::Connection::begin_with(conn, BEGIN))
        }

        fn ask(conn: &mut $connection, text: String) -> Done<'_, Vec<$row>> {
            Box::pin(async move { sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await })
        }

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

        fn execute(conn: &mut $connection, sql: SqlStr, arguments: $arguments) -> Done<'_, u64> {
            let query = sqlx::query_with::<Self, $arguments>(sql, arguments);
            Box::pin(async move { Ok(query.execute(conn).await?.rows_affected()) })
        }

        fn add_number(arguments: &mut $arguments, n: i64) -> Result<(), sqlx::Error> {
            sqlx::Arguments::add(arguments, n).map_err(sqlx::Error::Encode)
        }

        fn read_number(row: &$row, at: usize) -> Result<Option<i64>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn read_bytes(row: &$row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn read_text(row: &$row, at: usize) -> Result<Option<String>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }
    };
}
// Below the macro, which they use.
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_never_shorter_than_was_said() {
        let (s, ms) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!([whole(ms, s), whole(s, s), whole(s + ms, s)], [1, 1, 2]);
        assert_eq!([whole(s, ms), whole(Duration::MAX, ms)], [1000, 100_000_000]);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_value_cannot_be_read_as_sql() {
        type Pg = sqlx::Postgres;
        assert_eq!(Pg::bytes(b"a'?"), "decode('61273f', 'hex')");
        assert_eq!(
            Pg::text("'; --"),
            "convert_from(decode('273b202d2d', 'hex'), 'UTF8')"
        );
    }
}
