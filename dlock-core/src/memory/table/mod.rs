//! The lock table: a state machine without I/O, without a clock and without async.
//!
//! Each method takes the time as an argument, changes the state, and reports what others must be told in
//! [`Effects`]. All of them pass through [`Table::change`]: what has run out is taken back, the queue is
//! admitted, the change is made, the queue is admitted again, and a name that is empty then is forgotten.

mod attempt;
mod desk;
mod effects;
mod entry;
mod memo;
mod names;
mod release;
mod sweep;
mod tampering;
#[cfg(test)]
mod tests;

use std::time::Duration;

use attempt::mismatch;
use desk::Desk;
pub(super) use desk::Settings;
pub(super) use effects::{Asked, Conversion, Effects, Held, News, Place};
use entry::{Entry, Standing};
use memo::{Memo, Trace};
use names::Names;
pub(super) use tampering::foreign;

use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::inspection::{Change, Inspection};
use crate::mode::Mode;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::{LeaseKey, Raised};
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The largest token that can be raised to, so that minting never overflows and any store can keep it as a
/// signed number.
const MAX_RAISED: u64 = i64::MAX as u64;

/// Where the record of a name is, if there is one.
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
#[derive(Debug)]
pub(super) struct Table {
    names: Names,
    /// How many new names there were since those that ran out were looked for.
    since_sweep: usize,
    desk: Desk,
    memo: Memo,
}

impl Table {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            names: Names::default(),
            since_sweep: 0,
            desk: Desk::new(settings),
            memo: Memo::default(),
        }
    }

    /// Extends a lease and confirms a claim window; `None` if there is no such lease.
    pub(super) fn renew(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        ttl: Duration,
        effects: &mut Effects,
    ) -> Option<Held> {
        self.change(&key.name, now, effects, |entry, _, _| {
            let lease = entry
                .holder_mut(key.id)
                .filter(|l| l.standing != Standing::Kept)?;
            lease.extend(now, ttl);
            Some(lease.held())
        })
        .flatten()
    }

    /// Extends a queue entry and asks again; `None` if there is neither it nor a grant that it became.
    pub(super) fn ask_again(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        queue_ttl: Duration,
        effects: &mut Effects,
    ) -> Option<Asked> {
        self.change(&key.name, now, effects, |entry, _, _| {
            if let Some(position) = entry.position(key.id) {
                entry.renew_waiter(position, now + queue_ttl);
                return Some(Asked::Queued(entry.place(position)));
            }
            let lease = entry
                .holder_mut(key.id)
                .filter(|l| l.standing != Standing::Kept)?;
            Some(Asked::Granted(lease.held()))
        })
        .flatten()
    }

    /// Turns a lease into another mode.
    pub(super) fn convert(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        to: Mode,
        effects: &mut Effects,
    ) -> Result<Conversion> {
        self.change(&key.name, now, effects, |entry, desk, effects| {
            let index = entry
                .holders
                .iter()
                .position(|l| l.id == key.id && l.standing != Standing::Kept)
                .ok_or_else(|| Error::lost(LossReason::Refused).with_name(&key.name))?;
            if !entry.fits(to) {
                return Err(mismatch(&key.name, to));
            }
            let from = entry.holders[index].mode;
            let others = entry.holders.len() > 1;
            if to.is_exclusive() && !from.is_exclusive() && others {
                // Both shared leases stay while both ask: each would wait for the other to go.
                let rival = entry.holders.iter().any(|l| l.upgrading && l.id != key.id);
                if rival {
                    return Ok(Conversion::WouldDeadlock);
                }
                entry.holders[index].upgrading = true;
                return Ok(Conversion::Busy);
            }
            entry.fix_class(to);
            let lease = &mut entry.holders[index];
            if to.is_exclusive() && !from.is_exclusive() {
                // The readers of the same time may have a larger token than this lease had.
                lease.token = desk.mint();
            }
            lease.mode = to;
            lease.upgrading = false;
            lease.extend(now, Duration::from_nanos(lease.ttl_nanos));
            if from != to {
                effects.change(&key.name, || Change::Granted(lease.holder(now)));
            }
            Ok(Conversion::Done(lease.held()))
        })
        .unwrap_or_else(|| Err(Error::lost(LossReason::Refused).with_name(&key.name)))
    }

    /// Raises the token of a lease that is still held, and the counter with it.
    pub(super) fn raise(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        to: Token,
        effects: &mut Effects,
    ) -> Result<Raised> {
        if to.get() > MAX_RAISED {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a token cannot be raised beyond 2^63 - 1",
            ));
        }
        let raised = self.change(&key.name, now, effects, |entry, desk, _| {
            let lease = entry
                .holder_mut(key.id)
                .filter(|l| l.standing != Standing::Kept)?;
            lease.token = lease.token.max(to);
            desk.counter = desk.counter.max(to.get());
            Some(lease.token)
        });
        Ok(raised.flatten().map_or(Raised::NotHeld, Raised::Raised))
    }

    /// Ends every lease of a name.
    pub(super) fn force_release(&mut self, now: Timestamp, name: &LockName, effects: &mut Effects) -> u32 {
        self.change(name, now, effects, |entry, desk, effects| {
            let ended = std::mem::take(&mut entry.holders);
            for lease in &ended {
                if lease.standing != Standing::Kept {
                    desk.ended(lease.id);
                }
                effects.change(name, || Change::Forced { id: lease.id });
            }
            u32::try_from(ended.len()).unwrap_or(u32::MAX)
        })
        .unwrap_or(0)
    }

    /// The state of a name.
    pub(super) fn inspect(&mut self, now: Timestamp, name: &LockName, effects: &mut Effects) -> Inspection {
        self.change(name, now, effects, |entry, _, _| {
            let leases = entry.holders.iter().filter(|l| l.standing != Standing::Foreign);
            let holders = leases.map(|l| l.holder(now)).collect();
            Inspection::new(holders, u32::try_from(entry.waiting()).unwrap_or(u32::MAX))
        })
        .unwrap_or_default()
    }

    /// Takes back what has run out, and tells when the next lease of the name does.
    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        name: &LockName,
        effects: &mut Effects,
    ) -> Option<Timestamp> {
        self.change(name, now, effects, |_, _, _| ());
        self.names.get(name)?.holders.iter().map(|l| l.expires).min()
    }

    /// A number that differs whenever the holders of a name differ; `None` when the name is free.
    pub(super) fn fingerprint(
        &mut self,
        now: Timestamp,
        name: &LockName,
        effects: &mut Effects,
    ) -> Option<u64> {
        self.change(name, now, effects, |_, _, _| ());
        self.names.get(name).map(Entry::fingerprint)
    }

    /// How many names have a record, how many requests are queued, and how many tombstones there are.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let queued = self.names.entries().map(Entry::waiting).sum();
        let names = self.names.len();
        (names, queued, self.memo.tombstones())
    }

    fn spot<'a>(&self, name: &'a LockName) -> Spot<'a> {
        Spot {
            hash: self.names.hash(name),
            name,
        }
    }

    fn change<R>(
        &mut self,
        name: &LockName,
        now: Timestamp,
        effects: &mut Effects,
        change: impl FnOnce(&mut Entry, &mut Desk, &mut Effects) -> R,
    ) -> Option<R> {
        let spot = self.spot(name);
        Self::change_in(&mut self.names, &mut self.desk, &spot, now, effects, change)
    }

    /// The frame around every change of a name that exists. See the module's documentation.
    fn change_in<R>(
        names: &mut Names,
        desk: &mut Desk,
        spot: &Spot<'_>,
        now: Timestamp,
        effects: &mut Effects,
        change: impl FnOnce(&mut Entry, &mut Desk, &mut Effects) -> R,
    ) -> Option<R> {
        let name = spot.name;
        let mut record = names.find(spot.hash, name)?;
        let entry = &mut record.get_mut().entry;
        entry.purge(desk, name, now, effects);
        entry.admit(desk, name, now, effects);
        let answer = change(entry, desk, effects);
        entry.admit(desk, name, now, effects);
        if entry.is_empty() {
            record.remove();
            names.trim();
        }
        Some(answer)
    }
}
