//! Who enters and leaves, and what it still owes.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use dlock_core::{ErrorKind, LockName, LossReason, Timestamp, Token};

use super::hold::{Entered, Hold, deadline};
use super::state::{Enter, Id, Own, Row, enter, own};
use super::{Decided, ReentrantRows, check_name, check_ttl, holder, token};
use crate::direct::dialect::{Extend, Store};
use crate::direct::failure::{Error, Result};

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

/// A change that may be stored.
#[derive(Clone, Debug)]
pub(super) struct Unsettled {
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
                    let write = format!(
                        "holds = 1, owner_label = {}, owner_id = {}, token = {number}, last_change = {}, \
                         since = {}, {}",
                        DB::text(label),
                        DB::bytes(&id),
                        DB::bytes(&change),
                        DB::TODAY,
                        DB::lasting(ttl, Extend::Anew)?,
                    );
                    (Some(write), held(number, 1)?)
                }
                Enter::More => {
                    let holds = row.holds + 1;
                    let (last, lasting) = (DB::bytes(&change), DB::lasting(ttl, Extend::AtLeast)?);
                    let write = format!("holds = {holds}, last_change = {last}, {lasting}");
                    (Some(write), held(row.token, holds)?)
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
    /// `Lost` if its time was over before: another owner may have had it. Any
    /// [`Failure`](crate::direct::Failure): it is left, or the next call of this owner completes it.
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
            let write = (answer == Own::Held).then(|| one_less::<DB>(row, &change));
            Ok(Decided { write, answer })
        };
        self.rows.change(name, decide).await
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
        let (id, change, number) = (self.id, self.rows.draw(), number(hold.token));
        let asked = Timestamp::now();
        let decide = |row: &Row| {
            let answer = own(row, &id, number, &change);
            let write = match answer {
                Own::Held => {
                    let (last, lasting) = (DB::bytes(&change), DB::lasting(ttl, Extend::AtLeast)?);
                    Some(format!("last_change = {last}, {lasting}"))
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

    /// Takes back an entry that is the last thing that has happened to the row. Nobody has changed it since,
    /// so if it is not there it never was: its transaction, which had to lock the row, is over now that we
    /// have it locked.
    async fn take_back(&self, name: &LockName, change: Id) -> Result<Own> {
        let (id, back) = (self.id, self.rows.draw());
        let decide = |row: &Row| {
            let is_there = enter(row, &id, &change) == Enter::Done;
            let write = is_there.then(|| one_less::<DB>(row, &back));
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

fn one_less<DB: Store>(row: &Row, change: &Id) -> String {
    format!("holds = {}, last_change = {}", row.holds - 1, DB::bytes(change))
}

fn number(token: Token) -> i64 {
    // It came from such a number.
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

fn lost(name: &LockName) -> Error {
    Error::from(dlock_core::Error::lost(LossReason::Expired)).with_name(name)
}
