//! What differs between the databases, as far as the direct ways of locking are concerned.
//!
//! Each way is written once, generic over [`Store`]. What the compiler cannot know of *any* database of sqlx (how values are bound and read,
//! who executes what) stands here, once for each of the three.

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqlStr, Transaction};

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
pub(super) enum Value {
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
    /// Whether sqlx leaves a connection as it should be when a future that uses it is dropped half-way. See `lent.rs`.
    const RECOVERS: bool;
    /// What makes an `INSERT` of a key that is there do nothing, after its values. It leaves the row locked, or lockable without a deadlock.
    fn or_nothing(key: &str) -> String;
    /// The `n`-th value of a statement, counted from one.
    fn placeholder(n: usize) -> String;
    /// At the end of a `SELECT` whose rows are to be locked, however long that takes; with a space before it.
    const LOCKING: &'static str;
    /// Those bytes in the text of a statement.
    fn bytes_literal(bytes: &[u8]) -> String;
    /// Those characters in the text of a statement.
    fn text_literal(text: &str) -> String;
    /// The statements that make the table of the fence gate.
    fn fence_table(table: &str) -> String;
    /// The statement that makes the table of versions.
    fn version_table(table: &str) -> String;
    /// The statements that make the table of re-entrant rows.
    fn reentrant_table(table: &str) -> String;
    /// The column of that name, in microseconds from now on; below one when it is over. An expression.
    fn remaining() -> dlock_core::Result<String>;
    /// Assignments that make the hold last for that long from now on, and no shorter than it does if `extend`.
    fn lasting(ttl: Duration, extend: Extend) -> dlock_core::Result<String>;
    /// The time of day, for operators to read. An expression.
    const TODAY: &'static str;

    /// Begins a transaction that reads what is newest, and writes.
    fn begin(conn: &mut Self::Connection) -> Done<'_, Transaction<'_, Self>>;
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
    /// What a `SELECT` answers whose rows are locked, from that table. `None` if others have them and `wait` is over: then the transaction goes on as
    /// if it had not been asked.
    fn lock<'a>(
        conn: &'a mut Self::Connection,
        table: &'static str,
        select: String,
        arguments: Self::Arguments,
        wait: Wait,
        prepared: Prepared,
    ) -> Done<'a, Option<Vec<Self::Row>>>;
    /// What a text without values answers: one statement or several, in one request.
    fn ask(conn: &mut Self::Connection, text: String) -> Done<'_, Vec<Self::Row>>;

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

/// What a text of ours answers, in which `?` stands for each value. It is made from names that were checked, from numbers, and from literals in hexadecimal
/// digits, in which nothing can be read as SQL.
///
/// Not bound: a statement with values is prepared and executed in two requests, between which a pooler may change the connection, and in MySQL a
/// future that is dropped between them leaves a connection that sqlx waits for without end.
pub(super) async fn all_own<DB: Store>(
    conn: &mut DB::Connection,
    text: &str,
    values: &[Value],
) -> Result<Vec<DB::Row>, sqlx::Error> {
    DB::ask(conn, fill::<DB>(text, values)).await
}

/// Runs a text of ours, as [`all_own`].
pub(super) async fn execute_own<DB: Store>(
    conn: &mut DB::Connection,
    text: &str,
    values: &[Value],
) -> Result<(), sqlx::Error> {
    all_own::<DB>(conn, text, values).await.map(drop)
}

fn fill<DB: Store>(text: &str, values: &[Value]) -> String {
    let mut sql = String::with_capacity(text.len() + 64);
    let mut values = values.iter();
    for c in text.chars() {
        match c {
            '?' => match values.next() {
                Some(Value::Number(n) | Value::Perhaps(Some(n))) => sql.push_str(&n.to_string()),
                Some(Value::Bytes(bytes)) => sql.push_str(&DB::bytes_literal(bytes)),
                Some(Value::Text(text)) => sql.push_str(&DB::text_literal(text)),
                Some(Value::Perhaps(None)) | None => sql.push_str("NULL"),
            },
            c => sql.push(c),
        }
    }
    sql
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
    // Rounded down: a lease in the store is not shorter than what its holder believes, which takes a margin off.
    u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)
}

/// Of a limit, in whole units, rounded up: no limit is shorter than was said, and none is nought, which means without end in some places.
fn whole(limit: Duration, unit: Duration) -> u64 {
    const MOST: u128 = 100_000_000;
    let count = limit.as_nanos().div_ceil(unit.as_nanos()).clamp(1, MOST);
    u64::try_from(count).unwrap_or(1)
}

/// The part that is the same word for word, and yet cannot be generic: each line is about one database's types.
macro_rules! speaks {
    ($arguments:ty, $connection:ty, $row:ty) => {
        fn begin(conn: &mut $connection) -> Done<'_, Transaction<'_, Self>> {
            Box::pin(sqlx::Connection::begin_with(conn, BEGIN))
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

        fn ask(conn: &mut $connection, text: String) -> Done<'_, Vec<$row>> {
            Box::pin(async move { sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await })
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
        let values = [
            Value::Bytes(b"a'?".to_vec()),
            Value::Text("'; --".to_owned()),
            Value::Perhaps(None),
            Value::Number(-7),
        ];
        assert_eq!(
            fill::<sqlx::Postgres>("SELECT ?, ?, ?, ?", &values),
            "SELECT decode('61273f', 'hex'), convert_from(decode('273b202d2d', 'hex'), 'UTF8'), NULL, -7"
        );
    }
}
