//! What differs between the databases, for locking by hand and for the fence gate. All else is written once,
//! generic over [`Store`].

use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqlStr, Transaction};

type Done<'a, T> = BoxFuture<'a, Result<T, sqlx::Error>>;

/// A database that can be locked by hand: `sqlx::Postgres`, `sqlx::MySql` (for MariaDB too) and
/// `sqlx::Sqlite`, each with its feature. Nobody else can implement it.
pub trait Store: Dialect {}

impl<DB: Dialect> Store for DB {}

/// What to do about rows that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Wait, for as long as the server lets one.
    #[default]
    Block,
    /// Answer [`Locked::Busy`](super::row::Locked::Busy) (`NOWAIT`).
    NoWait,
    /// Wait for that long, and then answer [`Locked::Busy`](super::row::Locked::Busy). The server counts it,
    /// for each row that it has to wait for; in MySQL and MariaDB in whole seconds, rounded up, elsewhere in
    /// milliseconds.
    AtMost(Duration),
    /// Leave them out (`SKIP LOCKED`): for a queue of work, where any row will do. In SQLite, where all rows
    /// are locked together, as `NoWait`.
    SkipLocked,
}

/// Whether a statement is worth keeping prepared on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// A text that comes again.
    Kept,
    /// Once: its text has numbers in it, or there may be a pooler in between.
    Once,
}

/// What [`Store`] hides: how that database is spoken to.
///
/// Statements on dlock's own tables are texts with their values in them: checked names, numbers, and
/// [literals](Self::bytes) in hexadecimal digits, in which nothing can be read as SQL. Bound values would
/// take two requests. A pooler may change the connection between them, and a future that is dropped between
/// them leaves a connection of MySQL that sqlx waits for without end.
#[allow(missing_docs)] // words of SQL, which say what they are
pub trait Dialect: sqlx::Database {
    /// Begins a transaction that reads what is newest, and writes.
    const BEGIN: &'static str;
    /// Whether sqlx leaves a connection in order when a future that uses it is dropped. See `pooled.rs`.
    const RECOVERS: bool = false;
    /// The end of a `SELECT` whose rows are to be locked.
    const LOCKING: &'static str = " FOR UPDATE";
    /// The time of day, for operators to read.
    const TODAY: &'static str;
    /// The function that takes the greatest of its values.
    const GREATEST: &'static str = "GREATEST";
    /// What `CAST` calls a whole number of 64 bit.
    const INTEGER: &'static str;

    // Types of columns.
    const NUMBER: &'static str = "BIGINT";
    const KEY: &'static str;
    const BYTES: &'static str;
    const TEXT: &'static str = "TEXT";
    /// The columns that say since when and until when a re-entrant row is held.
    const TIMES: &'static str;
    /// What stands behind the columns of a table.
    const OPTIONS: &'static str = "";

    /// The end of an `INSERT` that does nothing if the key is there. The row is then locked, or can be
    /// without a deadlock.
    fn or_nothing(key: &str) -> String {
        format!("ON CONFLICT ({key}) DO NOTHING")
    }

    /// The n-th placeholder of a statement, from 1 on.
    fn placeholder(_: usize) -> String {
        "?".to_owned()
    }

    /// Those bytes in the text of a statement.
    fn bytes(bytes: &[u8]) -> String {
        format!("X'{}'", hex(bytes))
    }

    /// Those characters in the text of a statement.
    fn text(text: &str) -> String;
    /// How long a hold lasts, in microseconds; below one when it is over.
    fn remaining() -> dlock_core::Result<String>;
    /// When a hold ends that lasts for that long from now on.
    fn expiry_after(ttl: Duration) -> String;

    /// An assignment, with a comma behind it, that says of which boot the end of a hold is.
    fn of_this_boot() -> dlock_core::Result<String> {
        Ok(String::new())
    }

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

    // What `driver_calls!` writes.
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
    fn add_number(arguments: &mut Self::Arguments, n: i64) -> Result<(), sqlx::Error>;
    fn read_number(row: &Self::Row, at: usize) -> Result<Option<i64>, sqlx::Error>;
    fn read_bytes(row: &Self::Row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;
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

/// A limit in whole units, rounded up: none is shorter than was said, and none is nought, which can mean
/// without end.
fn whole(limit: Duration, unit: Duration) -> u64 {
    const MOST: u128 = 100_000_000;
    let count = limit.as_nanos().div_ceil(unit.as_nanos()).clamp(1, MOST);
    u64::try_from(count).unwrap_or(1)
}

/// What is the same word for word, and yet cannot be generic: each line is about one database's types.
macro_rules! driver_calls {
    ($arguments:ty, $connection:ty, $row:ty) => {
        fn begin(conn: &mut $connection) -> Done<'_, Transaction<'_, Self>> {
            Box::pin(sqlx::Connection::begin_with(conn, Self::BEGIN))
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
