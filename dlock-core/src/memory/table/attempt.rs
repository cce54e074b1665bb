//! Asking for a name.

use super::desk::Desk;
use super::effects::{Asked, Effects};
use super::entry::{Entry, Standing, Waiter};
use super::{Table, foreign};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::name::LockName;
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
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        // A copy of the request that was delayed on its way must not take a lock that nobody awaits any more.
        if self.memo.is_buried(trace) {
            return Err(Error::lost(LossReason::Refused).with_name(&key.name));
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
                if entry.foreign().is_some() {
                    return Err(foreign(&key.name));
                }
                if let Some(position) = entry.position(key.id) {
                    entry.renew_waiter(position, now + request.queue_ttl);
                    return Ok(Asked::Queued(entry.place(position)));
                }
                if memo.was_released(trace) {
                    return Err(Error::lost(LossReason::Released).with_name(&key.name));
                }
                if !entry.fits(request.mode) {
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
                if self.is_to_sweep() {
                    self.sweep(now, effects);
                }
                self.names.insert(spot.hash, key.name.clone(), entry);
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
            Queueing::Join => entry.turn_of(request.priority),
            Queueing::No => waiting,
        };
        if turn == 0 && entry.admissible(request.mode) {
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
        desk.begin(key.id)?;
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
