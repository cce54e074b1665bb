//! What differs between the databases, for locking by hand and for the fence gate. All else is written once.

use std::time::Duration;

#[cfg(feature = "sqlite")]
use dlock_core::Timestamp;
use futures::future::{BoxFuture, ready};
use sqlx::database::HasStatementCache;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Decode, Encode, Executor, IntoArguments, Transaction, Type};

use super::row::Wait;
use crate::keys::hex;

type Done<'c, T> = BoxFuture<'c, sqlx::Result<T>>;
type Around = [String; 3];

/// A database that can be locked by hand: `sqlx::Postgres`, `sqlx::MySql` (for MariaDB too) and
/// `sqlx::Sqlite`, each with its feature. Nobody else can implement it.
pub trait Store: Dialect {}

impl<DB: Dialect> Store for DB {}

/// A database that has values of that type.
pub trait Has<T>: sqlx::Database {
    /// One more value of a statement.
    fn add(to: &mut Self::Arguments, value: T) -> Result<(), sqlx::Error>;
    /// A column of a row; `None` is NULL.
    fn read(row: &Self::Row, at: usize) -> Result<Option<T>, sqlx::Error>;
}

impl<DB, T> Has<T> for DB
where
    DB: sqlx::Database,
    T: for<'v> Encode<'v, DB> + for<'v> Decode<'v, DB> + Type<DB>,
    usize: sqlx::ColumnIndex<DB::Row>,
{
    fn add(to: &mut DB::Arguments, value: T) -> Result<(), sqlx::Error> {
        sqlx::Arguments::add(to, value).map_err(sqlx::Error::Encode)
    }

    fn read(row: &DB::Row, at: usize) -> Result<Option<T>, sqlx::Error> {
        sqlx::Row::try_get(row, at)
    }
}

/// What [`Store`] hides: how that database is spoken to.
///
/// Statements on dlock's own tables are texts with their values in them: checked names, numbers, and
/// [literals](Self::bytes) in hexadecimal digits. Bound values take two requests: a pooler may change the
/// connection between them, and a future that is dropped between them leaves a connection of MySQL that sqlx
/// waits for without end.
#[allow(missing_docs)] // words of SQL, which say what they are
pub trait Dialect:
    sqlx::Database<Arguments: IntoArguments<Self>> + HasStatementCache + Has<i64> + Has<String> + Has<Vec<u8>>
{
    /// Begins a transaction that reads what is newest, and writes.
    const BEGIN: &'static str;
    /// Whether sqlx leaves a connection in order when a future that uses it is dropped. See `pooled.rs`.
    const RECOVERS: bool = false;
    /// The end of a `SELECT` whose rows are to be locked; none where rows have no locks.
    const LOCKING: &'static str = " FOR UPDATE";
    /// The time of day, for operators to read.
    const TODAY: &'static str;

    // Types of columns, and what `CAST` calls a whole number.
    const NUMBER: &'static str = "BIGINT";
    const INTEGER: &'static str = Self::NUMBER;
    const KEY: &'static str;
    const BYTES: &'static str = Self::KEY;
    /// The columns that say since when and until when a re-entrant row is held.
    const TIMES: &'static str;
    /// What stands behind the columns of a table.
    const OPTIONS: &'static str = "";

    /// The end of an `INSERT` that does nothing if the key is there. The row is then locked, or can be
    /// without a deadlock.
    fn or_nothing(key: &str) -> String {
        format!("ON CONFLICT ({key}) DO NOTHING")
    }

    /// Those bytes in the text of a statement.
    fn bytes(bytes: &[u8]) -> String {
        format!("X'{}'", hex(bytes))
    }

    /// Those characters in the text of a statement.
    fn text(text: &str) -> String;
    /// How long a hold lasts, in microseconds; below one when it is over.
    fn remaining() -> dlock_core::Result<String>;
    /// Assignments by which a hold ends so long from now on.
    fn ends_after(ttl: Duration) -> dlock_core::Result<String>;

    /// What is said around a `SELECT` that locks rows of that table: before it, after it, and instead of that
    /// where the wait is over.
    fn around(
        conn: &mut Self::Connection,
        table: &str,
        wait: Wait,
    ) -> impl Future<Output = sqlx::Result<Around>> + Send;
    fn executor(conn: &mut Self::Connection) -> impl Executor<'_, Database = Self>;
    /// How many rows were changed; of an update, how many were found.
    fn count(done: &Self::QueryResult) -> u64;

    fn begin(conn: &mut Self::Connection) -> Done<'_, Transaction<'_, Self>> {
        Box::pin(sqlx::Connection::begin_with(conn, Self::BEGIN))
    }

    /// What a text without values answers: one statement or several, in one request, or none and no request.
    fn ask(conn: &mut Self::Connection, text: String) -> Done<'_, Vec<Self::Row>> {
        if text.is_empty() {
            return Box::pin(ready(Ok(Vec::new())));
        }
        sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(Self::executor(conn))
    }

    /// What a statement answers. Whether it is kept prepared on its connection is for texts that come again.
    fn all(
        conn: &mut Self::Connection,
        sql: String,
        arguments: Self::Arguments,
        kept: bool,
    ) -> Done<'_, Vec<Self::Row>> {
        Self::executor(conn).fetch_all(query::<Self>(sql, arguments).persistent(kept))
    }

    /// How many rows a statement has changed.
    fn execute(conn: &mut Self::Connection, sql: String, arguments: Self::Arguments) -> Done<'_, u64> {
        let done = Self::executor(conn).execute(query::<Self>(sql, arguments));
        Box::pin(async move { Ok(Self::count(&done.await?)) })
    }
}

fn query<DB: Dialect>(sql: String, arguments: DB::Arguments) -> Query<'static, DB, DB::Arguments> {
    sqlx::query_with(AssertSqlSafe(sql), arguments)
}

/// What is the same of all drivers, and what sqlx has no trait for.
macro_rules! by_the_driver {
    () => {
        fn executor(conn: &mut Self::Connection) -> impl Executor<'_, Database = Self> {
            conn
        }

        fn count(done: &Self::QueryResult) -> u64 {
            done.rows_affected()
        }
    };
}

/// A limit in whole units, rounded up: none is shorter than was said, and none is nought, which can mean
/// without end.
fn whole(limit: Duration, unit: Duration) -> u128 {
    limit.as_nanos().div_ceil(unit.as_nanos()).clamp(1, 100_000_000)
}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {
    // Whatever the user's default is: what was read under the lock must be what is newest.
    const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
    const TODAY: &'static str = "clock_timestamp()";
    const KEY: &'static str = "BYTEA";
    const TIMES: &'static str = "since TIMESTAMPTZ, expires_at TIMESTAMPTZ";

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
    fn ends_after(ttl: Duration) -> dlock_core::Result<String> {
        let end = format!(
            "clock_timestamp() + {} * INTERVAL '1 microsecond'",
            ttl.as_micros()
        );
        Ok(format!("expires_at = {end}"))
    }

    // Behind a savepoint, since a failure would end the whole transaction; going back there also takes back
    // the limit. Not one of sqlx's: dropped while that is made, it would roll back the transaction around it.
    // Released, it leaves its locks to the transaction.
    async fn around(_: &mut Self::Connection, _: &str, wait: Wait) -> sqlx::Result<Around> {
        let (limit, no_limit) = match wait {
            Wait::Block | Wait::SkipLocked => return Ok(Around::default()),
            Wait::NoWait => (String::new(), ""),
            Wait::AtMost(limit) => {
                let ms = whole(limit, Duration::from_millis(1));
                let keep = "; SELECT set_config('dlock.wait', current_setting('lock_timeout'), true)";
                let no_limit = "; SELECT set_config('lock_timeout', current_setting('dlock.wait'), true)";
                (format!("{keep}; SET LOCAL lock_timeout = {ms}"), no_limit)
            }
        };
        Ok([
            format!("SAVEPOINT dlock_lock{limit}"),
            format!("RELEASE SAVEPOINT dlock_lock{no_limit}"),
            "ROLLBACK TO SAVEPOINT dlock_lock; RELEASE SAVEPOINT dlock_lock".to_owned(),
        ])
    }

    by_the_driver!();
}

/// For MariaDB too.
#[cfg(feature = "mysql")]
impl Dialect for sqlx::MySql {
    // In any isolation: what is read here is read by locking, and that is always what is newest.
    const BEGIN: &'static str = "START TRANSACTION READ WRITE";
    const TODAY: &'static str = "UTC_TIMESTAMP(6)";
    const INTEGER: &'static str = "SIGNED";
    // Compared byte for byte.
    const KEY: &'static str = "VARBINARY(1024)";
    const BYTES: &'static str = "LONGBLOB";
    const TIMES: &'static str = "since DATETIME(6), expires_at DATETIME(6)";
    // The other engines know no transactions.
    const OPTIONS: &'static str = " ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4";

    // Not INSERT IGNORE: that locks a row that is there for readers, and two who then want to write it are a
    // deadlock. This one locks it for a writer at once.
    fn or_nothing(key: &str) -> String {
        format!("ON DUPLICATE KEY UPDATE {key} = {key}")
    }

    fn text(text: &str) -> String {
        format!("CONVERT({} USING utf8mb4)", Self::bytes(text.as_bytes()))
    }

    // UTC, which has no hour twice; when the statement began, perhaps before it waited. So a holder looks
    // alive for longer, and what is written ends sooner, but not before the ttl has passed since it was sent.
    fn remaining() -> dlock_core::Result<String> {
        Ok("TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)".to_owned())
    }

    // Rounded down, as above.
    fn ends_after(ttl: Duration) -> dlock_core::Result<String> {
        let end = format!("UTC_TIMESTAMP(6) + INTERVAL {} MICROSECOND", ttl.as_micros());
        Ok(format!("expires_at = {end}"))
    }

    // A wait that is over takes back its statement and no more. MySQL knows no limit in a statement (as
    // MariaDB does), so it is the session's, which is put back.
    async fn around(_: &mut Self::Connection, _: &str, wait: Wait) -> sqlx::Result<Around> {
        let Wait::AtMost(limit) = wait else {
            return Ok(Around::default());
        };
        let seconds = whole(limit, Duration::from_secs(1));
        let keep = "SET @dlock_wait = @@SESSION.innodb_lock_wait_timeout";
        let back = "SET SESSION innodb_lock_wait_timeout = @dlock_wait".to_owned();
        let before = format!("{keep}; SET SESSION innodb_lock_wait_timeout = {seconds}");
        Ok([before, back.clone(), back])
    }

    by_the_driver!();
}

#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    // Its worker thread begins and rolls back whole, and a database in memory must not be closed.
    const RECOVERS: bool = true;
    const LOCKING: &'static str = "";
    const TODAY: &'static str = "strftime('%Y-%m-%d %H:%M:%f', 'now')";
    const NUMBER: &'static str = "INTEGER";
    const KEY: &'static str = "BLOB";
    // expires_at: nanoseconds since that boot.
    const TIMES: &'static str = "since TEXT, boot BLOB, expires_at INTEGER";
    const OPTIONS: &'static str = " STRICT, WITHOUT ROWID";

    fn text(text: &str) -> String {
        format!("CAST({} AS TEXT)", Self::bytes(text.as_bytes()))
    }

    // By the clock that all processes of the machine share, as in the backend. Read before the statement,
    // which holds the write lock of the file already.
    fn remaining() -> dlock_core::Result<String> {
        let (now, boot) = (Timestamp::now().as_nanos(), boot()?);
        let left = format!("(expires_at - {now}) / 1000");
        Ok(format!("CASE WHEN boot = {boot} THEN {left} ELSE -1 END"))
    }

    fn ends_after(ttl: Duration) -> dlock_core::Result<String> {
        let end = (Timestamp::now() + ttl).as_nanos().min(i64::MAX as u64);
        Ok(format!("boot = {}, expires_at = {end}", boot()?))
    }

    // The file's write lock is the only one there is, and a deletion of nothing takes it. It fails as
    // `BUSY_SNAPSHOT` where the transaction had read before and somebody has written since, so what is read
    // under the lock is always what is newest.
    async fn around(conn: &mut Self::Connection, table: &str, wait: Wait) -> sqlx::Result<Around> {
        let lock = format!("DELETE FROM {table} WHERE 0");
        let ms = match wait {
            Wait::Block => return Ok([lock, String::new(), String::new()]),
            Wait::NoWait | Wait::SkipLocked => 0,
            Wait::AtMost(limit) => whole(limit, Duration::from_millis(1)),
        };
        let shown = Self::ask(conn, "PRAGMA busy_timeout".to_owned()).await?;
        let own: Option<i64> = shown.first().map(|row| Self::read(row, 0)).transpose()?.flatten();
        let back = format!("PRAGMA busy_timeout = {}", own.unwrap_or(0));
        Ok([format!("PRAGMA busy_timeout = {ms}; {lock}"), back.clone(), back])
    }

    by_the_driver!();
}

/// This boot, as a literal.
#[cfg(feature = "sqlite")]
fn boot() -> dlock_core::Result<String> {
    let boot = crate::sqlite::boot::BootId::current()?;
    Ok(<sqlx::Sqlite as Dialect>::bytes(boot.as_bytes()))
}

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
        let text = Pg::text("'; --");
        assert_eq!(text, "convert_from(decode('273b202d2d', 'hex'), 'UTF8')");
    }
}
