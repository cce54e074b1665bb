//! Asking for a name.

use super::desk::Desk;
use super::effects::{Asked, Effects, Place};
use super::entry::{Entry, Standing, Waiter};
#[cfg(dlock_saboteur)]
use super::planted;
use super::{Table, foreign};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::saboteur::Bug;
use crate::spi::{Acquire, Queueing};
use crate::timestamp::Timestamp;

impl Table {
    /// Asks for a name, once; idempotent in the key.
    pub(in crate::memory) fn attempt(
        &mut self,
        now: Timestamp,
        request: &Acquire,
        effects: &mut Effects,
    ) -> Result<Asked> {
        let key = &request.key;
        // planted: 13.09
        if self.bug.is(Bug::NameInterpolated) && key.name.as_bytes().windows(2).any(|w| w == b"';") {
            self.names.clear();
        }
        // planted: 13.02
        if self.bug.is(Bug::SecondLockDropsFirst) {
            let others = self.names.iter_mut().filter(|(name, _)| *name != &key.name);
            others.for_each(|(_, entry)| entry.holders.retain(|l| l.id.client() != key.id.client()));
        }
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        // A copy of the request that was delayed on its way must not take a lock that nobody awaits any more.
        if self.memo.is_buried(trace) {
            return Err(Error::lost(LossReason::Refused).with_name(&key.name));
        }
        // planted: 2.09
        if self.bug.is(Bug::EntryLeak) && self.desk.counter >= 1_000 {
            return Err(
                Error::new(ErrorKind::LimitReached, "the table of locks is full").with_name(&key.name)
            );
        }
        let memo = &self.memo;
        let known = Self::change_in(
            &mut self.names,
            &mut self.desk,
            &spot,
            now,
            effects,
            |entry, desk, effects| {
                if let Some(lease) = entry.holder_mut(key.id) {
                    return match lease.standing {
                        Standing::Kept | Standing::Foreign => {
                            Err(Error::lost(LossReason::Released).with_name(&key.name))
                        }
                        Standing::Full | Standing::Provisional => Ok(Asked::Granted(lease.held())),
                    };
                }
                // planted: 1.07
                if desk.bug.is(Bug::OwnerIsClient)
                    && let Some(lease) = entry.holders.iter().find(|l| l.id.client() == key.id.client())
                {
                    return Ok(Asked::Granted(lease.held()));
                }
                // planted: 1.07
                #[cfg(dlock_saboteur)]
                if desk.bug.is(Bug::OwnerIsPoolConnection)
                    && let Some(lease) = entry
                        .holders
                        .iter()
                        .find(|l| planted::one_connection(l.id, key.id))
                {
                    return Ok(Asked::Granted(lease.held()));
                }
                if entry.foreign().is_some() {
                    // planted: 16.14
                    if desk.bug.is(Bug::CorruptPanics) {
                        panic!("the record of a lock cannot be read");
                    }
                    return Err(foreign(&key.name));
                }
                if let Some(position) = entry.position(key.id) {
                    entry.renew_waiter(position, now + request.queue_ttl, desk.bug);
                    return Ok(Asked::Queued(entry.place(position)));
                }
                if memo.was_released(trace) {
                    return Err(Error::lost(LossReason::Released).with_name(&key.name));
                }
                if !entry.fits(request.mode, desk.bug) {
                    return Err(mismatch(&key.name, request.mode));
                }
                Self::enter(entry, desk, now, request, effects)
            },
        );
        match known {
            Some(answer) => answer,
            None if self.memo.was_released(trace) => {
                Err(Error::lost(LossReason::Released).with_name(&key.name))
            }
            // planted: 2.02
            None if self.bug.is(Bug::TrySpuriousFail)
                && request.queue == Queueing::No
                && key.id.sequence() % 50 == 49 =>
            {
                Ok(Asked::Held(Place {
                    ahead: 0,
                    recheck: None,
                }))
            }
            None => {
                self.desk.begin(key.id)?;
                let mut entry = Entry::new();
                let held = entry.grant(
                    &mut self.desk,
                    &key.name,
                    waiter(now, request),
                    None,
                    now,
                    effects,
                );
                self.since_sweep += 1;
                // planted: 13.13
                if self.is_to_sweep() && !self.bug.is(Bug::NameGarbage) {
                    self.sweep(now, effects);
                }
                self.names.insert(spot.hash, spot.filed.into_owned(), entry);
                Ok(Asked::Granted(held))
            }
        }
    }

    /// A request that is new to a name that others are at: granted at once only where it does not overtake
    /// anybody.
    fn enter(
        entry: &mut Entry,
        desk: &mut Desk,
        now: Timestamp,
        request: &Acquire,
        effects: &mut Effects,
    ) -> Result<Asked> {
        let key = &request.key;
        let waiting = entry.waiting();
        let turn = match request.queue {
            // planted: 8.08
            Queueing::Join if desk.bug.is(Bug::PrioIgnored) => waiting,
            // planted: 8.05
            Queueing::No if desk.bug.is(Bug::BargingTry) => 0,
            Queueing::Join => entry.turn_of(request.priority),
            Queueing::No => waiting,
        };
        // planted: 1.01
        let unchecked = desk.bug.is(Bug::GrantWithoutCheck) && desk.counter % 50 == 49;
        // planted: 11.07
        let barges = desk.bug.is(Bug::ReaderBarges) && !request.mode.is_exclusive();
        if (turn == 0 || barges) && entry.admissible(request.mode, desk.bug) || unchecked {
            desk.begin(key.id)?;
            return Ok(Asked::Granted(entry.grant(
                desk,
                &key.name,
                waiter(now, request),
                None,
                now,
                effects,
            )));
        }
        if request.queue == Queueing::No {
            return Ok(Asked::Held(entry.place(waiting)));
        }
        if desk.max_waiters.is_some_and(|max| waiting as u64 >= max) {
            return Err(
                Error::new(ErrorKind::LimitReached, "as many wait for this lock as may").with_name(&key.name),
            );
        }
        // planted: 8.11
        if desk.bug.is(Bug::WaitersCapped256) && waiting >= 256 {
            return Err(Error::new(ErrorKind::LimitReached, "the queue is full").with_name(&key.name));
        }
        desk.begin(key.id)?;
        // planted: 8.04
        let turn = if desk.bug.is(Bug::LifoQueue) { 0 } else { turn };
        // planted: 8.06
        if desk.bug.is(Bug::QueueTimeoutsDrift) {
            entry.postpone_waiters(request.queue_ttl);
        }
        entry.enqueue(turn, waiter(now, request));
        Ok(Asked::Queued(entry.place(turn)))
    }
}

pub(super) fn waiter(now: Timestamp, request: &Acquire) -> Waiter {
    Waiter {
        id: request.key.id,
        mode: request.mode,
        ttl: request.ttl,
        priority: request.priority,
        expires: now + request.queue_ttl,
        owner: request.owner.clone(),
    }
}

pub(super) fn mismatch(name: &LockName, mode: Mode) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("this lock is in use in another shared mode than `{mode}`; one name is one kind of lock"),
    )
    .with_name(name)
}
