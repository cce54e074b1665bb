//! Row locks inside your own transaction: `SELECT … FOR UPDATE`.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use dlock_sql::direct::row::{Locked, Rows, Wait};
//! use sqlx::{Postgres, Row as _};
//!
//! let mut tx = pool.begin().await?;
//! let stock = Rows::<Postgres>::of("stock", "SELECT n FROM stock WHERE id = $1").bind(7_i64);
//! match stock.wait(Wait::NoWait).lock(&mut tx).await? {
//!     Locked::Held(mut held) => {
//!         let n: i64 = held.rows()[0].try_get("n")?;
//!         sqlx::query("UPDATE stock SET n = $1 WHERE id = 7").bind(n - 1).execute(&mut *held).await?;
//!     }
//!     Locked::Busy => return Ok(()), // another transaction has it
//!     _ => return Ok(()), // there is no such row
//! }
//! tx.commit().await?; // and with it the lock ends
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! * No other transaction can lock, change or delete the rows until this one has ended, which it cannot while
//!   the [`RowGuard`] borrows it. (A savepoint that is rolled back takes the locks that were taken since.)
//! * Writes in the same transaction need no fencing: if the connection is lost, none is stored.
//! * [`rows`](RowGuard::rows) shows the newest version, read under the lock.
//!
//! # What it does not
//!
//! * **Effects outside of the transaction** (a call to another service, a file) are not protected once the
//!   connection is lost, and no one reports that. Use a lease with a fencing token for them.
//! * **Earlier reads** in the same transaction may be old. Decide by what the guard shows.
//! * SQLite locks no rows, but the whole file against writers; readers go on. Begin with `BEGIN IMMEDIATE`: a
//!   transaction that read before another wrote ends in [`Serialization`](Failure::Serialization).
//! * The server decides how long [`Wait::Block`] waits: for ever in PostgreSQL unless `lock_timeout` is set,
//!   50 s in MySQL, 5 s in SQLite as sqlx opens it. Then it is [`LockTimeout`](Failure::LockTimeout), and the
//!   transaction is over.
//! * Missing rows cannot be locked. MySQL in `REPEATABLE READ` locks the gap instead, which several can do at
//!   once; if they then insert, one ends in a [`Deadlock`](Failure::Deadlock).
//!
//! # What could break it, and why it does not
//!
//! * *`NOWAIT` fails, or a limit is over, and PostgreSQL rejects the rest of the transaction*: the statement
//!   runs behind a savepoint. The limit is restored in the same transaction.
//! * *The row changed during the wait*: PostgreSQL reads it again, and leaves it out if the filter does not
//!   match any more ([`Locked::Nothing`]), or refuses in `REPEATABLE READ`. MySQL reads the newest in any
//!   case.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::{Arguments as _, Encode, Transaction, Type};

use super::dialect::Store;
use super::failure::{Failure, Result};

/// What to do about rows that another transaction has locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Wait, up to the server's own limit.
    #[default]
    Block,
    /// Return [`Locked::Busy`] at once (`NOWAIT`).
    NoWait,
    /// Wait for that long, and then return [`Locked::Busy`]. The server counts it for each row, in
    /// milliseconds; MySQL and MariaDB in whole seconds, rounded up.
    AtMost(Duration),
    /// Skip locked rows (`SKIP LOCKED`): for a work queue, where any row will do. In SQLite the same as
    /// `NoWait`.
    SkipLocked,
}

/// The rows to lock, in a table of yours.
#[must_use]
pub struct Rows<DB: Store> {
    table: &'static str,
    select: &'static str,
    wait: Wait,
    prepared: bool,
    arguments: Result<DB::Arguments>,
}

impl<DB: Store> Rows<DB> {
    /// Selects the rows of a table. `select` has the placeholders of the database (`$1`, or `?`); the locking
    /// clause is added at its end. Lock several rows in the same order everywhere (`ORDER BY`), to avoid
    /// deadlocks.
    pub fn of(table: &'static str, select: &'static str) -> Self {
        Self {
            table,
            select,
            wait: Wait::Block,
            prepared: true,
            arguments: Ok(DB::Arguments::default()),
        }
    }

    /// Binds the value of the next placeholder. Always bind input from outside.
    pub fn bind<'v, T: Encode<'v, DB> + Type<DB>>(mut self, value: T) -> Self {
        self.arguments = self.arguments.and_then(|mut all| {
            all.add(value).map_err(sqlx::Error::Encode)?;
            Ok(all)
        });
        self
    }

    /// Sets what to do about locked rows; [`Wait::Block`] unless set.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = match wait {
            Wait::AtMost(Duration::ZERO) => Wait::NoWait,
            wait => wait,
        };
        self
    }

    /// Does not keep the statement prepared: for a pooler in transaction mode.
    pub fn unprepared(mut self) -> Self {
        self.prepared = false;
        self
    }

    /// Locks the rows until the transaction ends.
    ///
    /// # Cancel safety If the future is dropped, the rows may be locked, and a limit may stay set: in
    /// PostgreSQL until the transaction ends, elsewhere on the connection, which is unusable until the server
    /// has answered. Set a limit, and roll back. In MySQL, if it is dropped between preparing and executing,
    /// the connection waits for ever, and its pool has one less: lock in a task of its own there.
    ///
    /// # Errors Any [`Failure`]; roll back the transaction. Rows that are locked by another are no error,
    /// unless the wait for them timed out.
    pub async fn lock<'t, 'c>(self, tx: &'t mut Transaction<'c, DB>) -> Result<Locked<'t, 'c, DB>> {
        let (words, has_end) = match self.wait {
            Wait::Block => ("", false),
            // Where rows have no locks.
            _ if DB::LOCKING.is_empty() => ("", true),
            Wait::AtMost(_) => ("", true),
            Wait::NoWait => (" NOWAIT", true),
            Wait::SkipLocked => (" SKIP LOCKED", false),
        };
        // On a line of its own, what is added cannot be in a comment.
        let select = format!("{}\n{}{words}", self.select, DB::LOCKING);
        let (arguments, prepared) = (self.arguments?, self.prepared);
        let [before, after, back] = DB::around(tx, self.table, self.wait).await?;
        let found = match DB::ask(tx, before).await {
            Ok(_) => DB::all(tx, select, arguments, prepared).await,
            Err(e) => Err(e),
        };
        let is_busy = has_end && matches!(&found, Err(e) if Failure::of(e) == Failure::LockTimeout);
        // After another failure too: in PostgreSQL it does nothing then, and the transaction stays refused.
        let told = DB::ask(tx, if is_busy { back } else { after }).await;
        // The first error tells why.
        let rows = if is_busy { Vec::new() } else { found? };
        let _ = told?;
        Ok(match rows.is_empty() {
            _ if is_busy => Locked::Busy,
            true => Locked::Nothing,
            false => Locked::Held(RowGuard { tx, rows }),
        })
    }
}

impl<DB: Store> fmt::Debug for Rows<DB> {
    // Not what is bound, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("Rows");
        d.field("select", &self.select).field("wait", &self.wait);
        d.finish_non_exhaustive()
    }
}

/// What came of locking rows.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Locked<'t, 'c, DB: Store> {
    /// They are locked: one at least.
    Held(RowGuard<'t, 'c, DB>),
    /// Another transaction has one of them, and it was not to be waited for. The transaction goes on. (Not
    /// in MariaDB with `innodb_rollback_on_timeout`, which is off by default: use [`Wait::SkipLocked`].)
    Busy,
    /// There are none; with [`Wait::SkipLocked`], none that is free.
    Nothing,
}

/// Rows that are locked until their transaction ends, which this guard gives back when it is dropped. It *is*
/// the transaction's connection, for statements.
#[must_use]
pub struct RowGuard<'t, 'c, DB: Store> {
    tx: &'t mut Transaction<'c, DB>,
    rows: Vec<DB::Row>,
}

impl<DB: Store> RowGuard<'_, '_, DB> {
    /// What they held when they were locked, and hold still, but for what this transaction does.
    pub fn rows(&self) -> &[DB::Row] {
        &self.rows
    }

    /// Asks the server whether the transaction, and with it the lock, is still there: before something that
    /// cannot be rolled back. It may be lost a moment later.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`ConnectionLost`](Failure::ConnectionLost) if it is not, [`Aborted`](Failure::Aborted) if a statement
    /// has failed. (MySQL does not tell that a deadlock has ended it: heed the errors of your statements.)
    pub async fn check(&mut self) -> Result<()> {
        // A query and not a ping, which a transaction that has failed answers.
        Ok(DB::ask(self.tx, "SELECT 1".to_owned()).await.map(drop)?)
    }
}

impl<DB: Store> Deref for RowGuard<'_, '_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.tx
    }
}

impl<DB: Store> DerefMut for RowGuard<'_, '_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.tx
    }
}

impl<DB: Store> fmt::Debug for RowGuard<'_, '_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("RowGuard");
        d.field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}
