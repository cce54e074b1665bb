//! A lock that its owner may enter again, as a row of a table: who has it and how often stands there for
//! everybody to read.
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
//!     // Deep inside, by whoever was given the owner:
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
//! * One owner at a time, in all processes, until it has left as often as it entered, or its time is over by
//!   **the database's clock** (in SQLite the machine's since boot, as in [the backend](crate::sqlite)). An
//!   owner is a value with 128 random bits; its label is for readers, and two owners of the same label are
//!   strangers.
//! * The count is in the table, and nowhere else. After a crash of its owner it runs out with the time.
//! * The token grows with each owner that comes to a name, and stays while it enters again. It lasts as long
//!   as the row, which nothing here deletes: one row for each name that was ever used.
//! * A change is made once, also if its answer is lost: the row remembers the last change, and a repeated one
//!   is known.
//! * [`Hold::is_valid`] is no later than the end in the table: it is counted from before the request.
//!
//! # What it does not
//!
//! * **It does not renew itself** and tells nobody of a loss: use [`Owner::renew`], and the
//!   [gate](super::gate) with the token where it matters. The locks of `dlock::Client` do both.
//! * It does not wait: [`Entered::Busy`] says for how long at most it is held.
//! * A [`Hold`] that is dropped is held until its time is over: a destructor cannot speak to a database.
//!
//! # What could break it, and why it does not
//!
//! Every change is one transaction that locks the row, reads it, decides (`state.rs`), writes and commits.
//!
//! * *Two at once*: the second waits for the row, and reads it when the first has committed: PostgreSQL in
//!   `READ COMMITTED`, which is asked for; MySQL always reads the newest where it locks; SQLite locks the
//!   file first.
//! * *Two find no row*: it is inserted before it is locked, so nobody locks a gap.
//! * *The process stops in the transaction*: the name is blocked for others until the server ends the
//!   connection. Set `idle_in_transaction_session_timeout` (PostgreSQL) or `wait_timeout` (MySQL). When the
//!   process goes on, it writes what it read: nobody could change it meanwhile.
//! * *The commit's answer is lost*: the same change is sent again, and recognised. Without any answer the
//!   owner keeps it in mind and takes it back before it does anything else. A late copy cannot come: its
//!   transaction has the row locked, so whoever takes it back waits for its end.
//! * *The future is dropped*: its connection is closed, so nothing open goes back to the pool. The owner
//!   takes the change back; if the owner is dropped too, it runs out.
//! * *It ran out and the owner enters again*: that is a new hold with a new token, and the old ones of that
//!   owner are lost, which the token tells.
//! * *It is entered again for a shorter time*: the time in the table is never made shorter while it is held.

mod owner;
mod state;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, LockName, Runtime, Token};
use sqlx::Pool;

pub use self::owner::{Entered, Hold, Owner};
use self::state::{Id, Row};
use super::dialect::Store;
use super::failure::{Error, Failure, Result};
use super::pooled::Pooled;
use super::tables::Tables;
use super::version::Part;

/// How often a change is tried that meets a deadlock, or whose answer is lost.
const TRIES: u32 = 4;

/// A table of re-entrant locks. Cheap to clone.
#[derive(Debug)]
pub struct ReentrantRows<DB: Store> {
    pool: Pool<DB>,
    tables: Tables,
    runtime: Arc<dyn Runtime>,
    /// Whether the tables were seen to be of our version.
    checked: Arc<AtomicBool>,
}

/// Who holds a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// What the owner is called.
    pub label: String,
    /// How often it has entered and not left.
    pub holds: u32,
    /// The token that it has since it entered first.
    pub token: Token,
    /// For how long it lasts at most, unless it is renewed.
    pub remaining: Duration,
}

impl<DB: Store> ReentrantRows<DB> {
    /// Those in the database of that pool. Each call uses one of its connections at a time, so one is enough.
    pub fn new(pool: Pool<DB>, tables: Tables, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            pool,
            tables,
            runtime,
            checked: Arc::default(),
        }
    }

    /// Makes the tables (`…reentrant`, and `…direct` with its version), if they are not there, and brings
    /// older ones up to this version. That takes the right to make tables; at work, `SELECT`, `INSERT` and
    /// `UPDATE` on the first and `SELECT` on the second are enough.
    ///
    /// # Cancel safety
    /// Cancelled, they are made or not; call it again.
    ///
    /// # Errors
    /// `PermissionDenied` if this user may not make tables; `Unsupported` if a newer dlock has made them;
    /// others as they come.
    pub async fn create_table(&self) -> Result<()> {
        let mut pooled = Pooled::of(&self.pool).await?;
        self.part().bring_up::<DB>(&mut pooled.conn).await?;
        pooled.give_back();
        Ok(())
    }

    /// A step is never changed after a release; a new version adds one.
    fn part(&self) -> Part<'_> {
        let (table, n, bytes, text) = (self.tables.reentrant(), DB::NUMBER, DB::BYTES, DB::TEXT);
        let (key, times, options) = (DB::KEY, DB::TIMES, DB::OPTIONS);
        let create = format!(
            "CREATE TABLE IF NOT EXISTS {table} (name {key} NOT NULL PRIMARY KEY, holds {n} NOT NULL, \
             owner_label {text} NOT NULL, owner_id {bytes} NOT NULL, token {n} NOT NULL, \
             last_change {bytes} NOT NULL, {times}){options}"
        );
        Part {
            name: "reentrant",
            steps: vec![create],
            tables: &self.tables,
        }
    }

    /// Looks at the version of the tables, once.
    async fn check(&self, conn: &mut DB::Connection) -> Result<()> {
        if !self.checked.load(Ordering::Relaxed) {
            self.part().check::<DB>(conn).await?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A new owner. The label is for whoever reads the table: a name of the service and the machine, say.
    ///
    /// # Errors
    /// `InvalidInput` if the label is longer than 255 characters, or has a NUL in it.
    pub fn owner(&self, label: &str) -> Result<Owner<DB>> {
        let fits = label.chars().count() <= 255 && !label.contains('\0');
        check(
            fits,
            "the label of an owner has at most 255 characters, none of them NUL",
        )?;
        Ok(Owner {
            id: self.draw(),
            rows: self.clone(),
            label: label.to_owned(),
            unsettled: VecDeque::new(),
        })
    }

    /// Who holds a name, if anybody does.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// Any [`Failure`].
    pub async fn inspect(&self, name: &LockName) -> Result<Option<Holder>> {
        check_name(name)?;
        let mut pooled = Pooled::of(&self.pool).await?;
        self.check(&mut pooled.conn).await?;
        let row = self.read(&mut pooled.conn, name, "", "").await?;
        pooled.give_back();
        let held = row.filter(Row::is_held);
        Ok(held.map(|row| Holder::of(&row)).transpose()?)
    }

    fn draw(&self) -> Id {
        let mut id = Id::default();
        self.runtime.fill_random(&mut id);
        id
    }

    async fn read(
        &self,
        conn: &mut DB::Connection,
        name: &LockName,
        before: &str,
        locking: &str,
    ) -> Result<Option<Row>> {
        let text = format!(
            "{before}SELECT holds, owner_label, owner_id, token, last_change, {} \
             FROM {} WHERE name = {}{locking}",
            DB::remaining()?,
            self.tables.reentrant(),
            DB::bytes(name.as_bytes()),
        );
        let rows = DB::ask(conn, text).await.map_err(Error::of)?;
        rows.first().map(read_row::<DB>).transpose()
    }

    /// One change of one name: what `decide` makes of its row is written, and committed. Repeated, if that
    /// may help and does no harm.
    async fn change<T>(
        &self,
        name: &LockName,
        change: &Id,
        mut decide: impl FnMut(&Row) -> dlock_core::Result<Decided<T>>,
    ) -> Result<T> {
        let (mut tries, mut doubt) = (0, None);
        loop {
            tries += 1;
            let e = match self.change_once(name, change, &mut decide).await {
                Ok(done) => return Ok(done),
                Err(e) => e,
            };
            // Not a lock that takes too long: the caller knows better how long to wait.
            let again = matches!(
                e.failure(),
                Failure::Deadlock | Failure::Serialization | Failure::ConnectionLost
            );
            if e.may_have_happened() {
                doubt = Some(e.clone());
            }
            if !again || tries >= TRIES {
                // Why the last try failed says nothing of one before it whose commit went unanswered.
                return Err(doubt.unwrap_or(e));
            }
        }
    }

    async fn change_once<T>(
        &self,
        name: &LockName,
        change: &Id,
        decide: &mut impl FnMut(&Row) -> dlock_core::Result<Decided<T>>,
    ) -> Result<T> {
        let mut pooled = Pooled::of(&self.pool).await?;
        self.check(&mut pooled.conn).await?;
        let mut tx = DB::begin(&mut pooled.conn).await.map_err(Error::of)?;
        let decided = self.decide_in(&mut tx, name, change, decide).await;
        let ended = match &decided {
            Ok(Decided { write: Some(_), .. }) => tx.commit().await.map_err(Error::of_commit),
            _ => tx.rollback().await.map_err(Error::of),
        };
        // A connection that is in error, and with it perhaps in a transaction, is not given back.
        if ended.is_ok() {
            pooled.give_back();
        }
        // The first error tells why.
        let answer = decided?.answer;
        ended.map(|()| answer)
    }

    async fn decide_in<T>(
        &self,
        conn: &mut DB::Connection,
        name: &LockName,
        change: &Id,
        decide: &mut impl FnMut(&Row) -> dlock_core::Result<Decided<T>>,
    ) -> Result<Decided<T>> {
        let (table, key, none) = (
            self.tables.reentrant(),
            DB::bytes(name.as_bytes()),
            DB::bytes(&[]),
        );
        // First that there is a row, as in the gate: one that is not there cannot be locked.
        let or_nothing = DB::or_nothing("name");
        let make = format!(
            "INSERT INTO {table} (name, holds, owner_label, owner_id, token, last_change) \
             VALUES ({key}, 0, '', {none}, 0, {none}) {or_nothing}; "
        );
        let Some(row) = self.read(conn, name, &make, DB::LOCKING).await? else {
            let text = "the row of a re-entrant lock vanished while it was locked; does something else \
                        delete from that table?";
            return Err(Error::new(ErrorKind::BackendData, text));
        };
        let decided = decide(&row)?;
        if let Some(assignments) = &decided.write {
            let change = DB::bytes(change);
            let text = format!("UPDATE {table} SET {assignments}, last_change = {change} WHERE name = {key}");
            DB::ask(conn, text).await.map_err(Error::of)?;
        }
        Ok(decided)
    }
}

// Not derived, which would ask it of the database.
impl<DB: Store> Clone for ReentrantRows<DB> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            tables: self.tables.clone(),
            runtime: self.runtime.clone(),
            checked: self.checked.clone(),
        }
    }
}

/// What becomes of a row, and what the caller is told once that is committed.
struct Decided<T> {
    /// Assignments.
    write: Option<String>,
    answer: T,
}

fn read_row<DB: Store>(row: &DB::Row) -> Result<Row> {
    let none = || foreign("a column is NULL");
    let number = |at| DB::read_number(row, at).map_err(Error::of);
    let bytes = |at| DB::read_bytes(row, at).map_err(Error::of);
    Ok(Row {
        holds: number(0)?.ok_or_else(none)?,
        label: DB::read_text(row, 1).map_err(Error::of)?.ok_or_else(none)?,
        owner: bytes(2)?.ok_or_else(none)?,
        token: number(3)?.ok_or_else(none)?,
        last_change: bytes(4)?.ok_or_else(none)?,
        // One that was never held has no end.
        remaining: number(5)?.unwrap_or(0),
    })
}

fn token(number: i64) -> dlock_core::Result<Token> {
    let token = u64::try_from(number).ok().and_then(Token::new);
    token.ok_or_else(|| foreign("a token is below one"))
}

fn foreign(what: &str) -> dlock_core::Error {
    let text = format!("a row of the table of re-entrant locks was not written by dlock: {what}");
    dlock_core::Error::new(ErrorKind::BackendData, text)
}

impl Holder {
    fn of(row: &Row) -> dlock_core::Result<Self> {
        Ok(Self {
            label: row.label.clone(),
            holds: u32::try_from(row.holds).unwrap_or(u32::MAX),
            token: token(row.token)?,
            remaining: Duration::from_micros(u64::try_from(row.remaining).unwrap_or(0)),
        })
    }
}

fn check(fits: bool, rule: &'static str) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::InvalidInput, rule)),
    }
}

/// MySQL's column, and a length that all backends take.
fn check_name(name: &LockName) -> Result<()> {
    let fits = name.as_bytes().len() <= 1024;
    check(fits, "the name of a re-entrant row has at most 1024 bytes").map_err(|e| e.with_name(name))
}

/// The columns end in the year 9999.
fn check_ttl(ttl: Duration) -> Result<()> {
    let fits = (Duration::from_millis(1)..=Duration::from_secs(366 * 24 * 3600)).contains(&ttl);
    check(
        fits,
        "the ttl of a re-entrant row is between a millisecond and a year",
    )
}
