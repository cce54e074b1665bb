//! Optimistic locking: a write names the version that was read, and is refused if the row has changed since.
//!
//! Nothing is held between reading and writing, however long that takes.
//!
//! ```no_run
//! # type Done = Result<(), Box<dyn std::error::Error>>;
//! # #[cfg(feature = "postgres")]
//! # async fn f(pool: sqlx::PgPool, runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> Done {
//! use dlock_sql::direct::optimistic::{Change, TRIES, Updated, Versioned};
//! use sqlx::{Postgres, Row as _};
//!
//! // CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 0)
//! let stock = Versioned::<Postgres>::new("stock", "id", "version", "n");
//! let sold = stock.update(&pool, &*runtime, TRIES, 7_i64, |row| {
//!     let n: i64 = row.try_get("n")?;
//!     Ok::<_, Box<dyn std::error::Error>>((n > 0).then(|| Change::new().set("n", n - 1)))
//! });
//! match sold.await? {
//!     Updated::Written { conflicts, .. } => println!("sold, after {conflicts} conflicts"),
//!     Updated::Unchanged { .. } => println!("sold out"),
//!     other => println!("{other:?}"),
//! }
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! The check and the write are one statement, which raises the version: of all that read one version, one
//! writes.
//!
//! # What it does not
//!
//! * **Writes that ignore the version** are not detected. All writers of the table must raise it.
//! * **A row that is deleted and inserted again** must not begin with an earlier version; otherwise a writer
//!   that read the old row overwrites the new one. Keep the row, or begin with a number that is never used
//!   twice.
//! * Fairness: under load a slow writer may be refused again and again. Use a lock then.
//!
//! # What could break it, and why it does not
//!
//! * *The answer of a write is lost*: it is not repeated, and the error [says so](Error::may_have_happened).
//! * *A transaction that cannot see newer versions*, as MySQL's by default, would be refused at every try. So
//!   [`Versioned::update`] takes a pool, and each statement autocommits. Inside a transaction use
//!   [`Versioned::write`], and repeat the transaction.
//! * *A pool of one connection*: reading and writing share one, and none is held during a pause.
//! * *All retry at once*: the pauses are random, up to a bound that doubles.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::time::Duration;

use dlock_core::{ErrorKind, Runtime};
use sqlx::{Arguments as _, Encode, Pool, Type};

use super::dialect::Store;
use super::failure::{Error, Failure, Result};
use super::pooled::Pooled;

/// A sensible number of tries.
pub const TRIES: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

/// A table whose rows have a version: an integer column that is not NULL.
#[derive(Debug)]
pub struct Versioned<DB> {
    table: &'static str,
    key: &'static str,
    version: &'static str,
    columns: &'static str,
    database: PhantomData<fn() -> DB>,
}

/// The outcome of an update. `conflicts` is how often another writer was faster before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
#[allow(missing_docs)] // the two fields are said above and below
pub enum Updated {
    /// The row was written, and has this version now.
    Written { version: i64, conflicts: u32 },
    /// The step decided to write nothing to the version that was read.
    Unchanged { version: i64, conflicts: u32 },
    /// There is no such row.
    Missing { conflicts: u32 },
    /// Another writer was faster in every try. Nothing was written.
    GaveUp { conflicts: u32 },
}

/// New values for columns. The version is raised with them.
#[must_use]
pub struct Change<DB: Store> {
    /// Assignments, each with a comma behind it.
    set: String,
    values: Result<DB::Arguments>,
}

impl<DB: Store> Change<DB> {
    /// Changes only the version.
    #[allow(clippy::new_without_default)] // it would say nothing that `new` does not
    pub fn new() -> Self {
        Self {
            set: String::new(),
            values: Ok(DB::Arguments::default()),
        }
    }

    /// Sets a column.
    pub fn set<'v, T: Encode<'v, DB> + Type<DB>>(mut self, column: &'static str, value: T) -> Self {
        self.values = self.values.and_then(|mut values| {
            let place = add::<DB, T>(&mut values, value)?;
            self.set += &format!("{column} = {place}, ");
            Ok(values)
        });
        self
    }
}

impl<DB: Store> fmt::Debug for Change<DB> {
    // Not the values, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("set", &self.set)
            .finish_non_exhaustive()
    }
}

impl<DB: Store> Versioned<DB> {
    /// Rows of `table` that are found by the column `key`, with their version in the column `version`, and of
    /// which `columns` (a list) are read. The names are SQL, and constants of the program.
    pub const fn new(
        table: &'static str,
        key: &'static str,
        version: &'static str,
        columns: &'static str,
    ) -> Self {
        Self {
            table,
            key,
            version,
            columns,
            database: PhantomData,
        }
    }

    /// Reads a row: its version, and the row with the version before the columns that were asked for.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn read<'k, K>(&self, conn: &mut DB::Connection, key: K) -> Result<Option<(i64, DB::Row)>>
    where
        K: Encode<'k, DB> + Type<DB>,
    {
        let (table, version, columns, by) = (self.table, self.version, self.columns, self.key);
        let mut values = DB::Arguments::default();
        let key = add::<DB, K>(&mut values, key)?;
        let integer = DB::INTEGER;
        let sql = format!("SELECT CAST({version} AS {integer}), {columns} FROM {table} WHERE {by} = {key}");
        let Some(row) = DB::all(conn, sql, values, true).await?.into_iter().next() else {
            return Ok(None);
        };
        let version = DB::read(&row, 0)?.ok_or_else(|| {
            let text = format!("a row of {table} has no version; make the column NOT NULL");
            Error::new(ErrorKind::BackendData, text)
        })?;
        Ok(Some((version, row)))
    }

    /// Writes if the row still has that version: one statement, once. Answers the new version; `None` if it
    /// has another by now, or is gone: roll your transaction back, and begin with reading.
    ///
    /// # Cancel safety
    /// Dropped, it may be done or not. In a transaction, roll back.
    ///
    /// # Errors
    /// Any [`Failure`]. Outside of a transaction it [may have happened](Error::may_have_happened).
    pub async fn write<'k, K>(
        &self,
        conn: &mut DB::Connection,
        key: K,
        expected: i64,
        change: Change<DB>,
    ) -> Result<Option<i64>>
    where
        K: Encode<'k, DB> + Type<DB>,
    {
        let (table, version, by) = (self.table, self.version, self.key);
        let (set, mut values) = (change.set, change.values?);
        let key = add::<DB, K>(&mut values, key)?;
        let mut sql = format!("UPDATE {table} SET {set}{version} = {version} + 1 WHERE {by} = {key}");
        DB::add(&mut values, expected)?;
        sql += &format!(" AND {version} = {}", placeholder::<DB>(&values));
        let found = DB::execute(conn, sql, values).await;
        match found.map_err(Error::of_commit)? {
            0 => Ok(None),
            1 => Ok(Some(expected + 1)),
            n => {
                let text =
                    format!("the key of {table} matched {n} rows, and all were written; make it unique");
                Err(Error::new(ErrorKind::BackendData, text))
            }
        }
    }

    /// Reads a row, lets `step` decide what to write, and writes it. If another writer was faster, it repeats
    /// that, up to `tries` times in all.
    ///
    /// `step` is called with each version that was read, so it must have no side effect. The first column of
    /// its row is the version. If it returns `None` or an error, nothing is written; its error is any type
    /// that converts from an [`Error`]. Deadlocks, serialization failures and lock timeouts count as
    /// conflicts: none of them has written anything.
    ///
    /// Without a conflict it takes two statements, each of which autocommits (connections must be in
    /// autocommit mode). The pause after a conflict is random, up to 2 ms at first and 100 ms later.
    ///
    /// # Cancel safety If the future is dropped, the last write may be done or not. Its connection is closed
    /// (not in SQLite).
    ///
    /// # Errors The error of `step`, or any [`Failure`] that repeating does not solve. If
    /// [`may_have_happened`](Error::may_have_happened), check the row before repeating it.
    pub async fn update<K, E: From<Error>>(
        &self,
        pool: &Pool<DB>,
        runtime: &dyn Runtime,
        tries: NonZeroU32,
        key: K,
        mut step: impl FnMut(&DB::Row) -> std::result::Result<Option<Change<DB>>, E>,
    ) -> std::result::Result<Updated, E>
    where
        K: for<'k> Encode<'k, DB> + Type<DB> + Clone,
    {
        let mut conflicts = 0;
        loop {
            let mut pooled = Pooled::of(pool).await?;
            // `None` is a conflict. The inner error is that of the step, the outer one the database's.
            let once = async {
                let Some((version, row)) = self.read(&mut pooled.conn, key.clone()).await? else {
                    return Ok(Some(Ok(Updated::Missing { conflicts })));
                };
                let change = match step(&row) {
                    Ok(Some(change)) => change,
                    Ok(None) => return Ok(Some(Ok(Updated::Unchanged { version, conflicts }))),
                    Err(e) => return Ok(Some(Err(e))),
                };
                let written = self.write(&mut pooled.conn, key.clone(), version, change).await?;
                Ok(written.map(|version| Ok(Updated::Written { version, conflicts })))
            };
            let tried: Result<_> = once.await;
            if !matches!(&tried, Err(e) if e.failure() == Failure::ConnectionLost) {
                pooled.give_back();
            }
            let again = [Failure::Deadlock, Failure::Serialization, Failure::LockTimeout];
            match tried {
                Ok(Some(done)) => return done,
                Err(e) if !again.contains(&e.failure()) => return Err(e.into()),
                _ => {}
            }
            conflicts += 1;
            if conflicts >= tries.get() {
                return Ok(Updated::GaveUp { conflicts });
            }
            let mut random = [0; 4];
            runtime.fill_random(&mut random);
            let drawn = f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX);
            let longest = Duration::from_millis((1 << conflicts.min(7)).min(100));
            runtime.sleep(longest.mul_f64(drawn)).await;
        }
    }
}

/// One more value of the caller's, and how the statement calls it.
fn add<'v, DB: Store, T: Encode<'v, DB> + Type<DB>>(to: &mut DB::Arguments, value: T) -> Result<String> {
    to.add(value).map_err(sqlx::Error::Encode)?;
    Ok(placeholder::<DB>(to))
}

/// How the statement calls the last of its values.
fn placeholder<DB: Store>(values: &DB::Arguments) -> String {
    let mut place = String::new();
    // A string takes everything.
    let _ = values.format_placeholder(&mut place);
    place
}
