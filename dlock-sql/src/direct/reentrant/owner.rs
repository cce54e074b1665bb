//! Who enters and leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use dlock_core::{Drift, LockName, LossReason, Timestamp, Token};

use super::state::{Id, Own, Row, token};
use super::{Holder, ReentrantRows, check_name, check_ttl};
use crate::direct::dialect::Store;
use crate::direct::failure::{Error, Result};

/// What came of entering.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Entered {
    /// It is the owner's, perhaps once more.
    Held(Hold),
    /// Another owner has it.
    Busy(Holder),
}

/// One of the times that an owner holds a name, to be given back to [`Owner::leave`].
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

/// Who may enter again what it has entered: this value, wherever it is handed to. It makes one change at a
/// time; what is not known of the one before, since a future was dropped or the database did not answer, is
/// [settled](Self::settle) first.
pub struct Owner<DB: Store> {
    pub(super) rows: ReentrantRows<DB>,
    pub(super) id: Id,
    pub(super) label: String,
    pub(super) names: BTreeMap<LockName, Own>,
    /// Whose rows may say something else.
    pub(super) in_doubt: BTreeSet<LockName>,
}

impl<DB: Store> Owner<DB> {
    /// Enters: if the name is free, or this owner's already.
    ///
    /// It is held for `ttl` at most from when the database sees the request, or as long as an outer hold or a
    /// renewal lasts.
    ///
    /// # Cancel safety
    /// Dropped, it may be entered or not; the next call of this owner takes it back.
    ///
    /// # Errors
    /// `InvalidInput` for a ttl below a millisecond or above a year, or a name above 1024 bytes; `Unknown` if
    /// the database did not answer, as if it was dropped; `Unsupported` if a newer dlock has made the table;
    /// any [`Failure`](crate::direct::Failure).
    pub async fn enter(&mut self, name: &LockName, ttl: Duration) -> Result<Entered> {
        check_name(name)?;
        check_ttl(ttl)?;
        self.settle().await?;
        let known = self.known(name);
        self.in_doubt.insert(name.clone());
        let (deadline, id, label) = (deadline(ttl), &self.id, &self.label);
        let decide = |row: &Row| -> Result<_> {
            let is_held = row.is_held();
            if is_held && row.owner != id {
                return Ok((None, Err(row.holder()?)));
            }
            let own = row.entered(&known);
            let (label, id, today) = (DB::text(label), DB::bytes(id), DB::TODAY);
            let mut set = format!("holds = {}, token = {}", own.holds, own.token);
            if !is_held {
                set += &format!(", owner_label = {label}, owner_id = {id}, since = {today}");
            }
            // What is there is never made shorter: it has less left when this is written.
            if !is_held || row.remaining < ttl {
                set += &format!(", {}", DB::ends_after(ttl)?);
            }
            Ok((Some(set), Ok(own)))
        };
        let entered = self.rows.change(name, decide).await;
        if !matches!(&entered, Err(e) if e.may_have_happened()) {
            self.in_doubt.remove(name);
        }
        Ok(match entered? {
            Ok(own) => {
                self.names.insert(name.clone(), own);
                Entered::Held(Hold {
                    name: name.clone(),
                    token: token(own.token)?,
                    holds: own.holds,
                    deadline,
                })
            }
            Err(holder) => Entered::Busy(holder),
        })
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
        match self.names.get_mut(&hold.name) {
            Some(own) if own.token == hold.token.get() => {
                own.holds = own.holds.saturating_sub(1);
                self.in_doubt.insert(hold.name.clone());
            }
            _ => return Err(lost(&hold.name)),
        }
        match self.settle_all().await?.contains(&hold.name) {
            true => Err(lost(&hold.name)),
            false => Ok(()),
        }
    }

    /// Lets a hold last for `ttl` from now on, or longer, with all others of this owner and name.
    ///
    /// # Cancel safety
    /// Dropped, it may be renewed in the table, and then ends sooner here than there.
    ///
    /// # Errors
    /// `Lost` if its time was over before; `InvalidInput` for a ttl below a millisecond or above a year; any
    /// [`Failure`](crate::direct::Failure), after which the hold is what it was.
    pub async fn renew(&mut self, hold: &mut Hold, ttl: Duration) -> Result<()> {
        check_ttl(ttl)?;
        self.settle().await?;
        let (deadline, token) = (deadline(ttl), hold.token.get());
        let decide = |row: &Row| -> Result<_> {
            let is_ours = row.is_held() && row.owner == self.id && row.token == token;
            let is_longer = is_ours && row.remaining < ttl;
            let set = is_longer.then(|| DB::ends_after(ttl)).transpose()?;
            Ok((set, is_ours))
        };
        if !self.rows.change(&hold.name, decide).await? {
            return Err(lost(&hold.name));
        }
        hold.deadline = hold.deadline.max(deadline);
        Ok(())
    }

    /// Takes back entries that were not answered, and completes leaves. Called by all others first.
    ///
    /// # Cancel safety
    /// Dropped, it is as before; call it again.
    ///
    /// # Errors
    /// Any [`Failure`](crate::direct::Failure): then it is still not known.
    pub async fn settle(&mut self) -> Result<()> {
        self.settle_all().await.map(drop)
    }

    /// Which of the names were lost.
    async fn settle_all(&mut self) -> Result<Vec<LockName>> {
        let mut lost = Vec::new();
        while let Some(name) = self.in_doubt.first().cloned() {
            let own = self.known(&name);
            let decide = |row: &Row| -> Result<_> {
                let (write, is_ours) = row.settled(&self.id, &own);
                Ok((write.map(|holds| format!("holds = {holds}")), is_ours))
            };
            let is_ours = self.rows.change(&name, decide).await?;
            self.in_doubt.remove(&name);
            if !is_ours || own.holds == 0 {
                self.names.remove(&name);
            }
            if !is_ours {
                lost.push(name);
            }
        }
        Ok(lost)
    }

    fn known(&self, name: &LockName) -> Own {
        self.names.get(name).copied().unwrap_or_default()
    }
}

/// Never the owner's id: who knows it is the owner.
impl<DB: Store> fmt::Debug for Owner<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_struct("Owner");
        d.field("label", &self.label).field("names", &self.names);
        d.finish_non_exhaustive()
    }
}

/// Until when a client may believe in what it asks for now.
fn deadline(ttl: Duration) -> Timestamp {
    Timestamp::now() + ttl.saturating_sub(Drift::DEFAULT.margin(ttl))
}

fn lost(name: &LockName) -> Error {
    Error::from(dlock_core::Error::lost(LossReason::Expired)).with_name(name)
}
