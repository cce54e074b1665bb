//! A re-entrant lock as a row of a table, which shows its owner and how often it was entered.
//!
//! ```no_run
//! # type Done = Result<(), Box<dyn std::error::Error>>;
//! # #[cfg(feature = "postgres")]
//! # async fn f(pool: sqlx::PgPool, runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> Done {
//! use std::time::Duration;
//! use dlock_core::LockName;
//! use dlock_sql::direct::reentrant::{Entered, ReentrantRows};
//! use dlock_sql::direct::Tables;
//!
//! let rows = ReentrantRows::new(pool, Tables::default(), runtime);
//! rows.create_table().await?; // once
//! let mut owner = rows.owner("billing@web-3")?;
//! let invoice = LockName::new("invoice/42")?;
//! if let Entered::Held(outer) = owner.enter(&invoice, Duration::from_secs(30)).await? {
//!     // Deep inside, in a function that was given the owner:
//!     if let Entered::Held(inner) = owner.enter(&invoice, Duration::from_secs(30)).await? {
//!         assert_eq!((inner.holds(), inner.token()), (2, outer.token()));
//!         owner.leave(inner).await?;
//!     }
//!     owner.leave(outer).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! What an operator sees (PostgreSQL):
//!
//! ```sql
//! SELECT convert_from(name, 'UTF8'), holds, owner_label, token, since, expires_at
//! FROM dlock_reentrant WHERE holds > 0 AND expires_at > clock_timestamp();
//! ```
//!
//! # What it promises
//!
//! * There is one owner at a time, over all processes, until it has left as often as it entered, or its ttl
//!   is over by **the database's clock** (in SQLite the machine's since boot, as in [the
//!   backend](crate::sqlite)). An owner is a value with 128 random bits; two with the same label are
//!   different owners.
//! * The token grows with each new owner of a name, and stays when the owner enters again. The row keeps it
//!   and is never deleted here: there is one row for each name that was ever used.
//! * A change counts once, even if its answer is lost and it is repeated.
//! * [`Hold::is_valid`] ends no later than the row does: it counts from before the request.
//!
//! # What it does not
//!
//! * **It does not renew itself** and reports no loss: use [`Owner::renew`], and the [gate](super::gate) with
//!   the token where it matters. The locks of `dlock::Client` do both.
//! * It does not wait: [`Entered::Busy`] says for how long at most it is held. A dropped [`Hold`] stays until
//!   its ttl is over: a destructor cannot send a request.
//!
//! # What could break it, and why it does not
//!
//! Every change is one transaction that locks the row, reads it, decides, writes and commits. It writes the
//! *total count* of the owner's holds, which the owner knows, and never an increment.
//!
//! * *Two at once*: the second waits for the row, and reads it when the first has committed (PostgreSQL in
//!   `READ COMMITTED`, which is asked for; MySQL where it locks; SQLite locks the file).
//! * *Two find no row*: it is inserted before it is locked, so no gap is locked.
//! * *The process stops in the transaction*: the name is blocked until the server ends the connection
//!   (`idle_in_transaction_session_timeout` in PostgreSQL, `wait_timeout` in MySQL). When the process
//!   resumes, its write is based on what it read: the row could not change meanwhile.
//! * *The commit's answer is lost, or the future is dropped*: before anything else the owner writes the count
//!   that it knows, without the unanswered entry and without the hold that it was leaving. The lost change
//!   cannot come later: its transaction has the row locked, so the next writer waits for its end, and its
//!   connection is closed instead of going back to the pool. If the owner is dropped too, the hold runs out.
//! * *It expired and the owner enters again*: that is a new hold with a new token, and the old ones are lost.
//! * *It is entered again with a shorter ttl*: the end in the table never moves backward while it is held.

mod owner;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{ErrorKind, LockName, Runtime, Token};
use sqlx::Pool;

pub use self::owner::{Entered, Hold, Owner};
use self::state::{Id, Row, VERSION, foreign};
use super::dialect::Store;
use super::failure::{Error, Failure, Result};
use super::pooled::Pooled;
use super::tables::{Tables, create};

/// How often a change is tried if it meets a deadlock.
const TRIES: u32 = 4;

/// A table of re-entrant locks. Cheap to clone.
#[derive(Debug)]
pub struct ReentrantRows<DB: Store> {
    pool: Pool<DB>,
    tables: Tables,
    runtime: Arc<dyn Runtime>,
}

/// The holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner's label.
    pub label: String,
    /// How often it has entered without leaving.
    pub holds: u32,
    /// The fencing token, since the first entry.
    pub token: Token,
    /// The time left, unless it is renewed.
    pub remaining: Duration,
}

impl<DB: Store> ReentrantRows<DB> {
    /// Uses the database of that pool. Each call uses one connection at a time, so one is enough.
    pub fn new(pool: Pool<DB>, tables: Tables, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            pool,
            tables,
            runtime,
        }
    }

    /// Creates the table, `…reentrant`, if it is missing. That needs the right to create tables; later
    /// `SELECT`, `INSERT` and `UPDATE` on it suffice.
    ///
    /// # Cancel safety If the future is dropped, the table may exist or not; call it again.
    ///
    /// # Errors Any [`Failure`]: `Denied` if this user may not create tables.
    pub async fn create_table(&self) -> Result<()> {
        let (key, n, bytes, times, options) = (DB::KEY, DB::NUMBER, DB::BYTES, DB::TIMES, DB::OPTIONS);
        let text = format!(
            "CREATE TABLE IF NOT EXISTS {}reentrant (name {key} NOT NULL PRIMARY KEY, holds {n} NOT NULL, \
             owner_label TEXT NOT NULL, owner_id {bytes} NOT NULL, token {n} NOT NULL, {times}, \
             version {n} NOT NULL DEFAULT {VERSION}){options}",
            self.tables
        );
        let mut pooled = Pooled::of(&self.pool).await?;
        create::<DB>(&mut pooled.conn, &text).await?;
        pooled.give_back();
        Ok(())
    }

    /// Makes an owner. The label is for people who read the table, such as a name of the service and the
    /// machine.
    ///
    /// # Errors `InvalidInput` if the label has more than 255 characters, or a NUL.
    pub fn owner(&self, label: &str) -> Result<Owner<DB>> {
        if label.chars().count() > 255 || label.contains('\0') {
            return Err(invalid(
                "the label of an owner has at most 255 characters, none of them NUL",
            ));
        }
        let mut id = Id::default();
        self.runtime.fill_random(&mut id);
        Ok(Owner {
            rows: self.clone(),
            id,
            label: label.to_owned(),
            names: BTreeMap::new(),
            in_doubt: BTreeSet::new(),
        })
    }

    /// The holder of a name, if there is one.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors Any [`Failure`]; `Unsupported` if a newer version of dlock has created the table.
    pub async fn inspect(&self, name: &LockName) -> Result<Option<Holder>> {
        check_name(name)?;
        let mut pooled = Pooled::of(&self.pool).await?;
        let row = self.read(&mut pooled.conn, name, "", "").await?;
        pooled.give_back();
        row.filter(Row::is_held).map(|row| row.holder()).transpose()
    }

    async fn read(
        &self,
        conn: &mut DB::Connection,
        name: &LockName,
        before: &str,
        locking: &str,
    ) -> Result<Option<Row>> {
        let (table, key, remaining) = (&self.tables, DB::bytes(name.as_bytes()), DB::remaining()?);
        let select = format!("SELECT holds, owner_label, owner_id, token, version, {remaining}");
        let text = format!("{before}{select} FROM {table}reentrant WHERE name = {key}{locking}");
        let rows = DB::ask(conn, text).await?;
        rows.first().map(Row::of::<DB>).transpose()
    }

    /// One change of one name: what `decide` makes of its row is written, and committed.
    async fn change<T>(
        &self,
        name: &LockName,
        mut decide: impl FnMut(&Row) -> Result<(Option<String>, T)>,
    ) -> Result<T> {
        let mut tries = 1;
        loop {
            let changed = self.change_once(name, &mut decide).await;
            match changed.as_ref().map_err(Error::failure) {
                // Which has changed nothing. How long to wait for what is locked or lost the caller knows.
                Err(Failure::Deadlock | Failure::Serialization) if tries < TRIES => tries += 1,
                _ => return changed.map_err(|e| e.with_name(name)),
            }
        }
    }

    async fn change_once<T>(
        &self,
        name: &LockName,
        decide: &mut impl FnMut(&Row) -> Result<(Option<String>, T)>,
    ) -> Result<T> {
        let (table, key) = (&self.tables, DB::bytes(name.as_bytes()));
        // After an error it is not given back: it may be in the transaction still.
        let mut pooled = Pooled::of(&self.pool).await?;
        let mut tx = DB::begin(&mut pooled.conn).await?;
        // First that there is a row, as in the gate: one that is not there cannot be locked.
        let (columns, none) = ("name, holds, owner_label, owner_id, token", DB::bytes(&[]));
        let or_nothing = DB::or_nothing("name");
        let make = format!(
            "INSERT INTO {table}reentrant ({columns}) VALUES ({key}, 0, '', {none}, 0) {or_nothing}; "
        );
        let row = self.read(&mut tx, name, &make, DB::LOCKING).await?;
        let gone = "it was deleted while it was locked; does another program delete from this table?";
        let (write, answer) = decide(&row.ok_or_else(|| foreign(gone))?)?;
        match write {
            Some(set) => {
                let write = format!("UPDATE {table}reentrant SET {set} WHERE name = {key}");
                DB::ask(&mut tx, write).await?;
                tx.commit().await.map_err(Error::of_commit)?;
            }
            None => tx.rollback().await?,
        }
        pooled.give_back();
        Ok(answer)
    }
}

// Not derived, which would ask it of the database.
impl<DB: Store> Clone for ReentrantRows<DB> {
    fn clone(&self) -> Self {
        Self::new(self.pool.clone(), self.tables.clone(), self.runtime.clone())
    }
}

fn invalid(rule: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, rule)
}

/// MySQL's column, and a length that all backends take.
fn check_name(name: &LockName) -> Result<()> {
    if name.as_bytes().len() <= 1024 {
        return Ok(());
    }
    Err(invalid("the name of a re-entrant row has at most 1024 bytes").with_name(name))
}

/// The columns end in the year 9999.
fn check_ttl(ttl: Duration) -> Result<()> {
    const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
    if (Duration::from_millis(1)..=YEAR).contains(&ttl) {
        return Ok(());
    }
    Err(invalid(
        "the ttl of a re-entrant row is between a millisecond and a year",
    ))
}
