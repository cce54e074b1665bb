//! Who enters and leaves, what it has, and what it still owes.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use dlock_core::{Drift, ErrorKind, LockName, LossReason, Timestamp, Token};

use super::state::{Enter, Id, Own, Row};
use super::{Decided, Holder, ReentrantRows, check_name, check_ttl, token};
use crate::direct::dialect::Store;
use crate::direct::failure::{Error, Result};

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

/// One of the times that an owner holds a name. Give it back to [`Owner::leave`]; dropped, it is held until
/// its time is over.
#[derive(Debug)]
#[must_use]
pub struct Hold {
    name: LockName,
    token: Token,
    holds: u32,
    deadline: Timestamp,
}

impl Hold {
    /// For the [gate](crate::direct::gate). The same for all holds of one owner that lie in one another.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How often the owner held it when it had entered, this time included: 1 for the outermost.
    pub fn holds(&self) -> u32 {
        self.holds
    }

    /// Whether its time is not over yet, on this machine's clock that counts suspension, less a margin for
    /// its drift. What a renewal has added to *another* hold of the same name is not known here.
    pub fn is_valid(&self) -> bool {
        Timestamp::now() < self.deadline
    }

    /// How long that is so.
    pub fn remaining(&self) -> Duration {
        Timestamp::now().until(self.deadline)
    }
}

/// Until when a client may believe in what it asked for at that time.
fn deadline(asked: Timestamp, ttl: Duration) -> Timestamp {
    asked + ttl.saturating_sub(Drift::DEFAULT.margin(ttl))
}

/// Who may enter again what it has entered: this value, wherever it is handed to.
///
/// It makes one change at a time. One whose outcome is not known, since its future was dropped or the
/// database did not answer, is kept in mind, and [settled](Self::settle) before the next.
pub struct Owner<DB: Store> {
    pub(super) rows: ReentrantRows<DB>,
    pub(super) id: Id,
    pub(super) label: String,
    pub(super) unsettled: VecDeque<Unsettled>,
}

/// A change that may be stored: a leave of that token, to be completed, or an entry, to be taken back.
#[derive(Clone, Debug)]
pub(super) struct Unsettled {
    name: LockName,
    change: Id,
    leaves: Option<i64>,
}

impl<DB: Store> Owner<DB> {
    /// Enters: if the name is free, or this owner's already.
    ///
    /// It is held for `ttl` at most from the moment at which the database sees the request, and longer if an
    /// outer hold or a renewal lasts longer.
    ///
    /// # Cancel safety
    /// Dropped, it may be entered or not; the next call of this owner takes it back.
    ///
    /// # Errors
    /// `InvalidInput` for a ttl below a millisecond or above a year, or a name above 1024 bytes;
    /// `LimitReached` when it is held a thousand times; `Unknown` if the database did not answer, with the
    /// same to follow as if it was dropped; any [`Failure`](crate::direct::Failure).
    pub async fn enter(&mut self, name: &LockName, ttl: Duration) -> Result<Entered> {
        check_name(name)?;
        check_ttl(ttl)?;
        self.settle().await?;
        let change = self.rows.draw();
        self.unsettled.push_back(Unsettled {
            name: name.clone(),
            change,
            leaves: None,
        });
        let entered = self.try_enter(name, ttl, change).await;
        if entered.as_ref().err().is_none_or(|e| !e.may_have_happened()) {
            // The only one: all others were settled before.
            self.unsettled.clear();
        }
        entered.map_err(|e| e.with_name(name))
    }

    async fn try_enter(&self, name: &LockName, ttl: Duration, change: Id) -> Result<Entered> {
        let deadline = deadline(Timestamp::now(), ttl);
        let held = |number: i64, holds: i64| -> dlock_core::Result<Entered> {
            Ok(Entered::Held(Hold {
                name: name.clone(),
                token: token(number)?,
                holds: u32::try_from(holds).unwrap_or(u32::MAX),
                deadline,
            }))
        };
        let too_many = |text| Err(dlock_core::Error::new(ErrorKind::LimitReached, text));
        let decide = |row: &Row| {
            let (write, answer) = match row.enter(&self.id, &change) {
                // Written by an earlier try of this call, which was made later than it was asked for.
                Enter::Done => (None, held(row.token, row.holds)?),
                Enter::First => {
                    let Some(number) = row.token.checked_add(1) else {
                        return too_many("a re-entrant row has no token left");
                    };
                    let write = format!(
                        "holds = 1, owner_label = {}, owner_id = {}, token = {number}, since = {}, \
                         {}expires_at = {}",
                        DB::text(&self.label),
                        DB::bytes(&self.id),
                        DB::TODAY,
                        DB::of_this_boot()?,
                        DB::expiry_after(ttl),
                    );
                    (Some(write), held(number, 1)?)
                }
                Enter::More => {
                    let holds = row.holds + 1;
                    let write = format!("holds = {holds}, {}", at_least::<DB>(ttl));
                    (Some(write), held(row.token, holds)?)
                }
                Enter::TooMany => {
                    return too_many("this owner holds the row as often as it can be held: a thousand times");
                }
                Enter::Busy => (None, Entered::Busy(Holder::of(row)?)),
            };
            Ok(Decided { write, answer })
        };
        self.rows.change(name, &change, decide).await
    }

    /// Leaves once. When it has left as often as it entered, the name is free.
    ///
    /// # Cancel safety
    /// Dropped, it may be left or not; the next call of this owner completes it.
    ///
    /// # Errors
    /// `Lost` if its time was over before: another owner may have had it. Any
    /// [`Failure`](crate::direct::Failure): it is left, or the next call of this owner completes it.
    pub async fn leave(&mut self, hold: Hold) -> Result<()> {
        // Owed before anything is tried: there is no hold any more that could be given back once more.
        self.unsettled.push_back(Unsettled {
            name: hold.name.clone(),
            change: self.rows.draw(),
            leaves: Some(number(hold.token)),
        });
        match self.settle_all().await? {
            Some(Own::Lost) => Err(lost(&hold.name)),
            _ => Ok(()),
        }
    }

    /// Lets a hold last for `ttl` from now on, with all others of this owner and name; not shorter than
    /// before.
    ///
    /// # Cancel safety
    /// Dropped, it may be renewed in the table; the hold then ends sooner here than there.
    ///
    /// # Errors
    /// `Lost` if its time was over before; `InvalidInput` for a ttl below a millisecond or above a year; any
    /// [`Failure`](crate::direct::Failure), after which the hold is what it was.
    pub async fn renew(&mut self, hold: &mut Hold, ttl: Duration) -> Result<()> {
        check_ttl(ttl)?;
        self.settle().await?;
        let change = self.rows.draw();
        let deadline = deadline(Timestamp::now(), ttl);
        let decide = |row: &Row| {
            let answer = row.own(&self.id, number(hold.token), &change);
            let write = (answer == Own::Held).then(|| at_least::<DB>(ttl));
            Ok(Decided { write, answer })
        };
        let renewed = self.rows.change(&hold.name, &change, decide).await;
        match renewed.map_err(|e| e.with_name(&hold.name))? {
            Own::Lost => Err(lost(&hold.name)),
            Own::Done | Own::Held => {
                hold.deadline = hold.deadline.max(deadline);
                Ok(())
            }
        }
    }

    /// Sees to changes whose outcome is not known: an entry is taken back, a leave is completed. Called by
    /// all others first.
    ///
    /// # Cancel safety
    /// Dropped, it is as before; call it again.
    ///
    /// # Errors
    /// Any [`Failure`](crate::direct::Failure): then it is still not known.
    pub async fn settle(&mut self) -> Result<()> {
        self.settle_all().await.map(drop)
    }

    /// In the order in which they came; what became of the last one.
    async fn settle_all(&mut self) -> Result<Option<Own>> {
        let mut last = None;
        while let Some(first) = self.unsettled.front() {
            last = Some(
                self.settle_one(first)
                    .await
                    .map_err(|e| e.with_name(&first.name))?,
            );
            self.unsettled.pop_front();
        }
        Ok(last)
    }

    /// Leaves, or takes back an entry that is the last thing that has happened to the row. Nobody has changed
    /// it since, so if the entry is not there it never was: its transaction, which had to lock the row, is
    /// over now that we have it locked.
    async fn settle_one(&self, u: &Unsettled) -> Result<Own> {
        let change = match u.leaves {
            Some(_) => u.change,
            None => self.rows.draw(),
        };
        let decide = |row: &Row| {
            let answer = match u.leaves {
                Some(token) => row.own(&self.id, token, &u.change),
                None if row.enter(&self.id, &u.change) == Enter::Done => Own::Held,
                None => Own::Done,
            };
            let write = (answer == Own::Held).then(|| format!("holds = {}", row.holds - 1));
            Ok(Decided { write, answer })
        };
        self.rows.change(&u.name, &change, decide).await
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

/// Never shorter than it was: an outer hold relies on that.
fn at_least<DB: Store>(ttl: Duration) -> String {
    format!(
        "expires_at = {}(expires_at, {})",
        DB::GREATEST,
        DB::expiry_after(ttl)
    )
}

fn number(token: Token) -> i64 {
    // It came from such a number.
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn lost(name: &LockName) -> Error {
    Error::from(dlock_core::Error::lost(LossReason::Expired)).with_name(name)
}
