//! The lock table: a state machine without I/O, without a clock and without async.
//!
//! Each method changes the state at the time of [`Effects`], and records there what others must be notified
//! of. All methods use [`Table::change`]: the admission rule removes expired entries and makes the change,
//! and a name that is empty afterwards is forgotten.

mod desk;
mod effects;
mod memo;
mod names;
mod sweep;
mod tampering;
#[cfg(test)]
mod tests;

pub(super) use desk::Settings;
use desk::{Books, Desk};
pub(super) use effects::{Effects, News};
use memo::{Memo, Trace};
use names::Names;
use tampering::foreign_in;

use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::inspection::Inspection;
use crate::memory::failure::foreign;
use crate::mode::Mode;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::admission::{Asked, NameState, Settled};
use crate::spi::{
    Abandoned, Acquire, Converted, LeaseKey, Raised, Release, Released, RenewItem, RenewOutcome,
};
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The largest token that can be raised to, so that minting never overflows and any store can keep it as a
/// signed number.
const MAX_RAISED: u64 = i64::MAX as u64;

/// The position of a name's record, if there is one.
struct Spot<'a> {
    name: &'a LockName,
    hash: u64,
}

impl Spot<'_> {
    fn trace(&self, id: RequestId) -> Trace {
        Trace { id, name: self.hash }
    }
}

/// All names of a store.
#[derive(Debug, Default)]
pub(super) struct Table {
    names: Names,
    /// The number of new names since the last sweep.
    since_sweep: usize,
    desk: Desk,
    memo: Memo,
}

impl Table {
    pub(super) fn new(settings: Settings) -> Self {
        let mut table = Self::default();
        table.desk.settings = settings;
        table
    }

    /// Requests a name once. Idempotent in the key.
    pub(super) fn attempt(&mut self, request: &Acquire, effects: &mut Effects) -> Result<Asked> {
        let key = &request.key;
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        // A delayed copy of the request must not take a lock that nobody waits for any more.
        if self.memo.buried.has(&trace) {
            return Err(Error::lost(LossReason::Refused).with_name(&key.name));
        }
        if self.memo.was_released(trace) {
            return Err(Error::lost(LossReason::Released).with_name(&key.name));
        }
        let known = self.change(&spot, effects, |change| match foreign_in(change.name) {
            Some(_) => Err(foreign(&key.name)),
            None => change.attempt(request),
        });
        if let Some(asked) = known {
            return asked;
        }
        // A name without a record has nothing that could have expired.
        let mut state = NameState::default();
        let mut settled = Settled {
            name: &mut state,
            now: effects.now,
            ledger: Books {
                desk: &mut self.desk,
                effects: &mut *effects,
                name: spot.name,
            },
        };
        let asked = settled.attempt(request)?;
        self.since_sweep += 1;
        if self.is_to_sweep() {
            self.sweep(effects);
        }
        self.names.insert(spot.hash, key.name.clone(), state);
        Ok(asked)
    }

    /// Ends a lease, at once or after a minimum hold.
    pub(super) fn release(&mut self, key: &LeaseKey, how: Release, effects: &mut Effects) -> Released {
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        let ended = self.change(&spot, effects, |change| change.release(key.id, how));
        match ended {
            Some(Released::Released) => self.memo.note_released(trace),
            _ if !self.memo.was_released(trace) => return Released::NotHeld,
            _ => {}
        }
        Released::Released
    }

    /// Undoes a request, whatever became of it, and refuses late copies.
    pub(super) fn abandon(&mut self, key: &LeaseKey, effects: &mut Effects) -> Abandoned {
        let spot = self.spot(&key.name);
        self.memo.buried.bury(spot.trace(key.id), effects.now);
        let abandoned = self.change(&spot, effects, |change| change.abandon(key.id));
        abandoned.unwrap_or(Abandoned::Nothing)
    }

    /// Renews a lease and confirms a claim window, or renews a queue entry and asks again.
    pub(super) fn renew(&mut self, sent: Timestamp, item: &RenewItem, effects: &mut Effects) -> RenewOutcome {
        let spot = self.spot(&item.key.name);
        let renewed = self.change(&spot, effects, |change| change.renew(item, sent));
        renewed.unwrap_or(RenewOutcome::Gone)
    }

    /// Converts a lease to another mode.
    pub(super) fn convert(
        &mut self,
        sent: Timestamp,
        key: &LeaseKey,
        to: Mode,
        effects: &mut Effects,
    ) -> Result<Converted> {
        let converted = self.change(&self.spot(&key.name), effects, |change| {
            change.convert(key, to, sent)
        });
        converted.unwrap_or_else(|| Err(Error::lost(LossReason::Refused).with_name(&key.name)))
    }

    /// Raises the token of a lease that is still held, and the counter with it.
    pub(super) fn raise(&mut self, key: &LeaseKey, to: Token, effects: &mut Effects) -> Result<Raised> {
        if to.get() > MAX_RAISED {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a token cannot be raised beyond 2^63 - 1",
            ));
        }
        let raised = self.change(&self.spot(&key.name), effects, |change| change.raise(key.id, to));
        Ok(raised.unwrap_or(Raised::NotHeld))
    }

    /// Ends every lease of a name.
    pub(super) fn force_release(&mut self, name: &LockName, effects: &mut Effects) -> u32 {
        let ended = self.change(&self.spot(name), effects, |change| change.force_release());
        ended.unwrap_or(0)
    }

    /// The state of a name.
    pub(super) fn inspect(&mut self, name: &LockName, effects: &mut Effects) -> Inspection {
        let inspected = self.change(&self.spot(name), effects, |change| {
            let mut seen = change.name.inspect(change.now);
            if foreign_in(change.name).is_some() {
                seen.holders.clear();
            }
            seen
        });
        inspected.unwrap_or_default()
    }

    /// The names that begin with that prefix and are held or waited for.
    pub(super) fn list(&self, prefix: &[u8], now: Timestamp) -> Vec<LockName> {
        let all = self
            .names
            .records()
            .filter(|(name, _)| name.as_bytes().starts_with(prefix));
        let in_use = all.filter(|(_, state)| state.entries().any(|entry| entry.expires > now));
        in_use.map(|(name, _)| name.clone()).collect()
    }

    /// Removes expired entries, and returns when the name's next lease expires.
    pub(super) fn expire(&mut self, name: &LockName, effects: &mut Effects) -> Option<Timestamp> {
        let ends = self.change(&self.spot(name), effects, |change| {
            change.name.holders().iter().map(|l| l.expires).min()
        });
        ends.flatten()
    }

    /// A number that differs whenever the holders of a name differ; `None` when the name is free.
    pub(super) fn fingerprint(&mut self, name: &LockName, effects: &mut Effects) -> Option<u64> {
        let number = self.change(&self.spot(name), effects, |change| {
            let token = |t: Option<Token>| t.map_or(0, Token::get);
            let each = change.name.holders().iter();
            let number = each.map(|l| token(l.token) * 2 + u64::from(l.mode.is_exclusive()));
            (!change.name.is_empty()).then(|| number.fold(1, u64::wrapping_add))
        });
        number.flatten()
    }

    /// How many names have a record, how many requests are queued, and how many tombstones there are.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let queued = self.names.states().map(NameState::waiting).sum();
        let names = self.names.len();
        (names, queued, self.memo.buried.len())
    }

    fn spot<'a>(&self, name: &'a LockName) -> Spot<'a> {
        Spot {
            hash: self.names.hash(name),
            name,
        }
    }

    /// Wraps every change of an existing name. See the module's documentation.
    fn change<R>(
        &mut self,
        spot: &Spot<'_>,
        effects: &mut Effects,
        change: impl FnOnce(&mut Settled<'_, Books<'_>>) -> R,
    ) -> Option<R> {
        let mut record = self.names.find(spot.hash, spot.name)?;
        let (desk, name, now) = (&mut self.desk, spot.name, effects.now);
        let books = Books { desk, effects, name };
        let answer = change(&mut Settled::begin(&mut record.get_mut().state, now, books));
        if record.get().state.is_empty() {
            record.remove();
            self.names.trim();
        }
        Some(answer)
    }
}
