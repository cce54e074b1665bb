//! A lock that its owner may enter again, as a row of a table: who has it and how often stands there for everybody to read.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn f(pool: sqlx::PgPool, runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> Result<(), Box<dyn std::error::Error>> {
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
//! * One owner at a time, in all processes, until it has left as often as it entered, or its time is over by **the database's clock**. An owner is a
//!   value with 128 random bits; its label is for readers, and two owners of the same label are strangers.
//! * The count is in the table, and nowhere else. After a crash of its owner it runs out with the time.
//! * The token grows with each owner that comes to a name, and stays while it enters again. It lasts as long as the row, which nothing here deletes: one row
//!   for each name that was ever used.
//! * A change is made once, also if its answer is lost: the row remembers which change was the last, and a repeated one is recognised.
//! * [`Hold::is_valid`] is no later than the end in the table: it is counted from before the request.
//!
//! # What it does not
//!
//! * **It does not renew itself** and tells nobody of a loss: use [`Owner::renew`], and the [gate](super::gate) with the token where it matters. The locks of
//!   `dlock::Client` do both.
//! * It does not wait: [`Entered::Busy`] says for how long at most it is held.
//! * A [`Hold`] that is dropped is held until its time is over: a destructor cannot speak to a database.
//! * In SQLite the clock is the machine's since boot, as in [the backend](crate::sqlite).
//!
//! # What could break it, and why it does not
//!
//! Every change is one transaction that locks the row, reads it, decides (`state.rs`), writes and commits.
//!
//! * *Two at once*: the second waits for the row, and reads it when the first has committed: PostgreSQL in `READ COMMITTED`, which is asked for; MySQL always
//!   reads the newest where it locks; SQLite locks the file before it reads.
//! * *Two find no row*: it is made in a transaction of its own before the other, so nobody locks a gap.
//! * *The process stops in the transaction*: the row is locked until the server ends the connection, and its name is blocked for others as long.
//!   Set `idle_in_transaction_session_timeout` (PostgreSQL) or `wait_timeout` (MySQL). When it goes on, it writes what it read: nobody could change it meanwhile.
//! * *The clock is read before the wait for the row* (MySQL's statement clock): who holds looks alive for longer, and what is written ends sooner, though never sooner than
//!   ttl after the request was sent. Both err on the safe side.
//! * *The commit's answer is lost*: the same change is sent again, and recognised. If there is no answer at all, the owner keeps it in mind and takes it back
//!   before it does anything else. A copy that arrives late cannot come: the row is locked by its transaction, so whoever
//!   takes it back waits for its end.
//! * *The future is dropped*: the same; the owner takes it back, or if the owner is dropped too, it runs out.
//! * *It ran out and the owner enters again*: that is a new hold with a new token, and the old ones of that owner are lost, which the token tells.
//! * *It is entered again for a shorter time*: the time in the table is never made shorter while it is held, since the outer hold relies on it.

mod state;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Drift, ErrorKind, LockName, LossReason, Runtime, Timestamp, Token};
use sqlx::{Pool, Transaction};

use self::state::{Enter, Id, Own, Row, enter, own};
use super::database::{Extend, Store, Value, all_own, execute_own};
use super::failure::{Error, Failure, Result};
use super::gate::create;
use super::row::Wait;
use super::tables::Tables;

/// How often a change is tried that meets a deadlock, or whose answer is lost.
const TRIES: u32 = 4;

/// MySQL's column; the others take more.
const LONGEST_LABEL: usize = 255;

/// MySQL's column, and a length that all backends take.
const LONGEST_NAME: usize = 1024;

/// Long enough for anything; the columns end in the year 9999.
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 3600);

/// A table of re-entrant locks. Cheap to clone.
pub struct ReentrantRows<DB: Store> {
    pool: Pool<DB>,
    tables: Tables,
    runtime: Arc<dyn Runtime>,
}

impl<DB: Store> ReentrantRows<DB> {
    /// Those in the database of that pool. Each call uses one of its connections at a time, so one is enough.
    pub fn new(pool: Pool<DB>, tables: Tables, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            pool,
            tables,
            runtime,
        }
    }

    /// Makes the table, if it is not there. It takes the right to create tables; at work, `SELECT`, `INSERT` and `UPDATE` on it are enough.
    ///
    /// # Cancel safety
    /// Cancelled, the table exists or not; call it again.
    ///
    /// # Errors
    /// `PermissionDenied` if this user may not create tables; others as they come.
    pub async fn create_table(&self) -> Result<()> {
        let mut conn = self.pool.acquire().await.map_err(Error::of)?;
        let text = DB::reentrant_table(&self.tables.reentrant().to_string());
        create::<DB>(&mut conn, &text).await
    }

    /// A new owner. The label is for whoever reads the table: a name of the service and the machine, say.
    ///
    /// # Errors
    /// `InvalidInput` if the label is longer than 255 characters, or has a NUL in it.
    pub fn owner(&self, label: &str) -> Result<Owner<DB>> {
        if label.chars().count() > LONGEST_LABEL || label.contains('\0') {
            let text = "the label of an owner has at most 255 characters, none of them NUL";
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
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
        // A transaction, for poolers: outside of one they may part a statement from its execution.
        let mut tx = self.pool.begin().await.map_err(Error::of)?;
        let row = self.read(&mut tx, name, "").await?;
        tx.rollback().await.map_err(Error::of)?;
        row.filter(Row::is_held).map(|row| holder(&row)).transpose()
    }

    fn draw(&self) -> Id {
        let mut id = Id::default();
        self.runtime.fill_random(&mut id);
        id
    }

    async fn read(&self, conn: &mut DB::Connection, name: &LockName, locking: &str) -> Result<Option<Row>> {
        let text = format!(
            "SELECT holds, owner_label, owner_id, token, last_change, {} FROM {} WHERE name = ?{locking}",
            DB::remaining()?,
            self.tables.reentrant(),
        );
        let values = vec![Value::Bytes(name.as_bytes().to_vec())];
        let rows = all_own::<DB>(conn, &text, values).await.map_err(Error::of)?;
        rows.first().map(read_row::<DB>).transpose()
    }

    /// One change of one name: what `decide` makes of its row is written, and committed. Repeated, if that may help and does no harm.
    async fn change<T>(
        &self,
        name: &LockName,
        mut decide: impl FnMut(&Row) -> dlock_core::Result<Decided<T>>,
    ) -> Result<T> {
        let (mut tries, mut doubt) = (0, None);
        loop {
            tries += 1;
            let e = match self.change_once(name, &mut decide).await {
                Ok(Some(done)) => return Ok(done),
                // There was no row: there is one now.
                Ok(None) if tries < TRIES => continue,
                Ok(None) => {
                    let text = "the row of a re-entrant lock was made and is gone again; does something else delete from that table?";
                    Error::new(ErrorKind::BackendData, text)
                }
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
        decide: &mut impl FnMut(&Row) -> dlock_core::Result<Decided<T>>,
    ) -> Result<Option<T>> {
        let mut tx = self.pool.begin_with(DB::BEGIN).await.map_err(Error::of)?;
        let Some(row) = self.read(&mut tx, name, DB::locking(Wait::Block)).await? else {
            tx.rollback().await.map_err(Error::of)?;
            self.make_row(name).await?;
            return Ok(None);
        };
        let decided = decide(&row)?;
        if let Some((assignments, mut values)) = decided.write {
            let text = format!(
                "UPDATE {} SET {assignments} WHERE name = ?",
                self.tables.reentrant()
            );
            values.push(Value::Bytes(name.as_bytes().to_vec()));
            execute_own::<DB>(&mut tx, &text, values)
                .await
                .map_err(Error::of)?;
            commit(tx).await?;
        } else {
            tx.rollback().await.map_err(Error::of)?;
        }
        Ok(Some(decided.answer))
    }

    async fn make_row(&self, name: &LockName) -> Result<()> {
        let text = format!(
            "INSERT INTO {} (name, holds, owner_label, owner_id, token, last_change) VALUES (?, 0, ?, ?, 0, ?) {}",
            self.tables.reentrant(),
            DB::or_nothing("name"),
        );
        let values = vec![
            Value::Bytes(name.as_bytes().to_vec()),
            Value::Text(String::new()),
            Value::Bytes(Vec::new()),
            Value::Bytes(Vec::new()),
        ];
        let mut tx = self.pool.begin_with(DB::BEGIN).await.map_err(Error::of)?;
        execute_own::<DB>(&mut tx, &text, values)
            .await
            .map_err(Error::of)?;
        // If it is not known whether it is there, the next look tells.
        tx.commit().await.map_err(Error::of)
    }
}

// Not derived, which would ask it of the database.
impl<DB: Store> Clone for ReentrantRows<DB> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            tables: self.tables.clone(),
            runtime: self.runtime.clone(),
        }
    }
}

impl<DB: Store> fmt::Debug for ReentrantRows<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantRows")
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

/// What becomes of a row, and what the caller is told once that is committed.
struct Decided<T> {
    /// Assignments, and their values.
    write: Option<(String, Vec<Value>)>,
    answer: T,
}

async fn commit<DB: Store>(tx: Transaction<'_, DB>) -> Result<()> {
    tx.commit().await.map_err(Error::of_commit)
}

fn read_row<DB: Store>(row: &DB::Row) -> Result<Row> {
    let none = || {
        let text = "a row of the table of re-entrant locks was not written by dlock: a column is NULL";
        Error::new(ErrorKind::BackendData, text)
    };
    let number = |at| DB::number(row, at).map_err(Error::of);
    let bytes = |at| DB::bytes(row, at).map_err(Error::of);
    Ok(Row {
        holds: number(0)?.ok_or_else(none)?,
        label: DB::text(row, 1).map_err(Error::of)?.ok_or_else(none)?,
        owner: bytes(2)?.ok_or_else(none)?,
        token: number(3)?.ok_or_else(none)?,
        last_change: bytes(4)?.ok_or_else(none)?,
        // One that was never held has no end.
        remaining: number(5)?.unwrap_or(0),
    })
}

fn token(number: i64) -> Result<Token> {
    let token = u64::try_from(number).ok().and_then(Token::new);
    token.ok_or_else(|| {
        let text =
            format!("a row of the table of re-entrant locks was not written by dlock: its token is {number}");
        Error::new(ErrorKind::BackendData, text)
    })
}

fn holder(row: &Row) -> Result<Holder> {
    Ok(Holder {
        label: row.label.clone(),
        holds: u32::try_from(row.holds).unwrap_or(u32::MAX),
        token: token(row.token)?,
        remaining: Duration::from_micros(u64::try_from(row.remaining).unwrap_or(0)),
    })
}

fn check_name(name: &LockName) -> Result<()> {
    if name.as_bytes().len() > LONGEST_NAME {
        let e = Error::new(
            ErrorKind::InvalidInput,
            "the name of a re-entrant row has at most 1024 bytes",
        );
        return Err(e.with_name(name));
    }
    Ok(())
}

fn check_ttl(ttl: Duration) -> Result<()> {
    if ttl < Duration::from_millis(1) || ttl > LONGEST_TTL {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "the ttl of a re-entrant row is between a millisecond and a year",
        ));
    }
    Ok(())
}

/// Until when a client may believe in what it asked for at that time.
fn deadline(asked: Timestamp, ttl: Duration) -> Timestamp {
    let believed = ttl.saturating_sub(Drift::DEFAULT.margin(ttl));
    asked + believed
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

/// What came of entering.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Entered {
    /// It is ours, perhaps once more.
    Held(Hold),
    /// Another owner has it.
    Busy(Holder),
}

/// Once of as often as an owner holds a name. To be given back to [`Owner::leave`]; dropped, it is held until its time is over.
#[derive(Debug)]
#[must_use]
pub struct Hold {
    name: LockName,
    token: Token,
    holds: u32,
    deadline: Timestamp,
}

impl Hold {
    /// What is held.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// For the [gate](super::gate). The same for all holds of one owner that lie in one another.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How often the owner held it when it had entered, this time included: 1 for the outermost.
    pub fn holds(&self) -> u32 {
        self.holds
    }

    /// Whether its time is not over yet, on this machine's clock that counts suspension, less a margin for its drift. What a renewal has added to
    /// *another* hold of the same name is not known here.
    pub fn is_valid(&self) -> bool {
        Timestamp::now() < self.deadline
    }

    /// How long that is so.
    pub fn remaining(&self) -> Duration {
        Timestamp::now().until(self.deadline)
    }
}

/// Who may enter again what it has entered: this value, wherever it is handed to.
///
/// It makes one change at a time. One whose outcome is not known, since its future was dropped or the database did not answer, is kept in
/// mind, and [settled](Self::settle) before the next.
pub struct Owner<DB: Store> {
    rows: ReentrantRows<DB>,
    id: Id,
    label: String,
    unsettled: VecDeque<Unsettled>,
}

/// A change that may be stored.
#[derive(Clone, Debug)]
struct Unsettled {
    name: LockName,
    change: Id,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// To be taken back.
    Enter,
    /// To be completed.
    Leave { token: i64 },
}

impl<DB: Store> Owner<DB> {
    /// Enters: if the name is free, or this owner's already.
    ///
    /// It is held for `ttl` at most from the moment at which the database sees the request, and longer if an outer hold or a renewal lasts longer.
    ///
    /// # Cancel safety
    /// Dropped, it may be entered or not; the next call of this owner takes it back.
    ///
    /// # Errors
    /// `InvalidInput` for a ttl below a millisecond or above a year, or a name above 1024 bytes; `LimitReached` when it is held a thousand times;
    /// `Unknown` if the database did not answer, with the same to follow as if it was dropped; any [`Failure`].
    pub async fn enter(&mut self, name: &LockName, ttl: Duration) -> Result<Entered> {
        check_name(name)?;
        check_ttl(ttl)?;
        self.settle().await?;
        let change = self.rows.draw();
        self.unsettled.push_back(Unsettled {
            name: name.clone(),
            change,
            what: What::Enter,
        });
        let asked = Timestamp::now();
        let entered = self.try_enter(name, ttl, change, asked).await;
        let known = entered.as_ref().err().is_none_or(|e| !e.may_have_happened());
        if known {
            // The only one: all others were settled before.
            self.unsettled.clear();
        }
        entered.map_err(|e| e.with_name(name))
    }

    async fn try_enter(
        &self,
        name: &LockName,
        ttl: Duration,
        change: Id,
        asked: Timestamp,
    ) -> Result<Entered> {
        let (id, label) = (self.id, &self.label);
        let held = |number: i64, holds: i64| -> dlock_core::Result<Entered> {
            Ok(Entered::Held(Hold {
                name: name.clone(),
                token: token(number)?,
                holds: u32::try_from(holds).unwrap_or(u32::MAX),
                deadline: deadline(asked, ttl),
            }))
        };
        let decide = |row: &Row| {
            let (write, answer) = match enter(row, &id, &change) {
                // Written by an earlier try of this call, which was made later than it was asked for.
                Enter::Done => (None, held(row.token, row.holds)?),
                Enter::First => {
                    let number = row.token.checked_add(1).ok_or_else(|| {
                        dlock_core::Error::new(ErrorKind::LimitReached, "a re-entrant row has no token left")
                    })?;
                    let text = format!(
                        "holds = 1, owner_label = ?, owner_id = ?, token = ?, last_change = ?, since = {}, {}",
                        DB::TODAY,
                        DB::lasting(ttl, Extend::Anew)?,
                    );
                    let values = vec![
                        Value::Text(label.clone()),
                        Value::Bytes(id.to_vec()),
                        Value::Number(number),
                        Value::Bytes(change.to_vec()),
                    ];
                    (Some((text, values)), held(number, 1)?)
                }
                Enter::More => {
                    let holds = row.holds + 1;
                    let text = format!(
                        "holds = ?, last_change = ?, {}",
                        DB::lasting(ttl, Extend::AtLeast)?
                    );
                    let values = vec![Value::Number(holds), Value::Bytes(change.to_vec())];
                    (Some((text, values)), held(row.token, holds)?)
                }
                Enter::TooMany => {
                    let text = "this owner holds the row as often as it can be held: a thousand times";
                    return Err(dlock_core::Error::new(ErrorKind::LimitReached, text));
                }
                Enter::Busy => (None, Entered::Busy(holder(row)?)),
            };
            Ok(Decided { write, answer })
        };
        self.rows.change(name, decide).await
    }

    /// Leaves once. When it has left as often as it entered, the name is free.
    ///
    /// # Cancel safety
    /// Dropped, it may be left or not; the next call of this owner completes it.
    ///
    /// # Errors
    /// `Lost` if its time was over before: another owner may have had it. Any [`Failure`]: it is left, or the next call of this owner
    /// completes it.
    pub async fn leave(&mut self, hold: Hold) -> Result<()> {
        // Owed before anything is tried: there is no hold any more that could be given back once more.
        let change = self.rows.draw();
        self.unsettled.push_back(Unsettled {
            name: hold.name.clone(),
            change,
            what: What::Leave {
                token: number(hold.token),
            },
        });
        match self.settle_all().await? {
            Some(Own::Lost) => Err(lost(&hold.name)),
            _ => Ok(()),
        }
    }

    async fn try_leave(&self, name: &LockName, token: i64, change: Id) -> Result<Own> {
        let id = self.id;
        let decide = |row: &Row| {
            let answer = own(row, &id, token, &change);
            let write = (answer == Own::Held).then(|| one_less(row, &change));
            Ok(Decided { write, answer })
        };
        self.rows.change(name, decide).await
    }

    /// Lets a hold last for `ttl` from now on, with all others of this owner and name; not shorter than before.
    ///
    /// # Cancel safety
    /// Dropped, it may be renewed in the table; the hold then ends sooner here than there.
    ///
    /// # Errors
    /// `Lost` if its time was over before; `InvalidInput` for a ttl below a millisecond or above a year; any [`Failure`], after which the hold
    /// is what it was.
    pub async fn renew(&mut self, hold: &mut Hold, ttl: Duration) -> Result<()> {
        check_ttl(ttl)?;
        self.settle().await?;
        let (id, change, number) = (self.id, self.rows.draw(), number(hold.token));
        let asked = Timestamp::now();
        let decide = |row: &Row| {
            let answer = own(row, &id, number, &change);
            let write = match answer {
                Own::Held => {
                    let text = format!("last_change = ?, {}", DB::lasting(ttl, Extend::AtLeast)?);
                    Some((text, vec![Value::Bytes(change.to_vec())]))
                }
                Own::Done | Own::Lost => None,
            };
            Ok(Decided { write, answer })
        };
        let renewed = self.rows.change(&hold.name, decide).await;
        match renewed.map_err(|e| e.with_name(&hold.name))? {
            Own::Lost => Err(lost(&hold.name)),
            Own::Done | Own::Held => {
                hold.deadline = hold.deadline.max(deadline(asked, ttl));
                Ok(())
            }
        }
    }

    /// Sees to changes whose outcome is not known: an entry is taken back, a leave is completed. Nothing to do if there is none. Called by all
    /// others first.
    ///
    /// # Cancel safety
    /// Dropped, it is as before; call it again.
    ///
    /// # Errors
    /// Any [`Failure`]: then it is still not known.
    pub async fn settle(&mut self) -> Result<()> {
        self.settle_all().await.map(drop)
    }

    /// In the order in which they came; what became of the last one.
    async fn settle_all(&mut self) -> Result<Option<Own>> {
        let mut last = None;
        while let Some(Unsettled { name, change, what }) = self.unsettled.front().cloned() {
            let settled = match what {
                What::Enter => self.take_back(&name, change).await,
                What::Leave { token } => self.try_leave(&name, token, change).await,
            };
            last = Some(settled.map_err(|e| e.with_name(&name))?);
            self.unsettled.pop_front();
        }
        Ok(last)
    }

    /// An entry that is the last thing that has happened to the row is taken back. It was made by us and nobody has changed it since, so if it is not there
    /// it never was: its transaction, which had to lock the row, is over now that we have it locked.
    async fn take_back(&self, name: &LockName, change: Id) -> Result<Own> {
        let (id, back) = (self.id, self.rows.draw());
        let decide = |row: &Row| {
            let is_there = enter(row, &id, &change) == Enter::Done;
            let write = is_there.then(|| one_less(row, &back));
            let answer = Own::Done;
            Ok(Decided { write, answer })
        };
        self.rows.change(name, decide).await
    }
}

/// Never the owner's id: who knows it is the owner.
impl<DB: Store> fmt::Debug for Owner<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("label", &self.label)
            .field("unsettled", &self.unsettled.len())
            .finish_non_exhaustive()
    }
}

fn one_less(row: &Row, change: &Id) -> (String, Vec<Value>) {
    let values = vec![Value::Number(row.holds - 1), Value::Bytes(change.to_vec())];
    ("holds = ?, last_change = ?".to_owned(), values)
}

fn number(token: Token) -> i64 {
    // It came from such a number.
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn lost(name: &LockName) -> Error {
    Error::from(dlock_core::Error::lost(LossReason::Expired)).with_name(name)
}
