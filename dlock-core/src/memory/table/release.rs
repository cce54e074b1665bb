//! Ending a lease, and undoing a request.

use super::Table;
use super::effects::Effects;
use super::entry::{self, Standing};
use crate::inspection::Change;
use crate::spi::{Abandoned, LeaseKey, Release, Released};
use crate::timestamp::Timestamp;

impl Table {
    /// Ends a lease, at once or after a minimum hold.
    pub(in crate::memory) fn release(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        how: Release,
        effects: &mut Effects,
    ) -> Released {
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        let memo = &mut self.memo;
        let ended = Self::change_in(
            &mut self.names,
            &mut self.desk,
            &spot,
            now,
            effects,
            |entry, desk, effects| {
                let own = entry.holders.iter().position(|l| l.id == key.id);
                let Some(index) = own else {
                    return false;
                };
                let lease = &mut entry.holders[index];
                if lease.standing == Standing::Kept {
                    return true; // a retry: it does not make the minimum hold any longer
                }
                desk.ended(key.id);
                memo.note_released(trace);
                match how {
                    Release::KeepFor(rest) if !rest.is_zero() => {
                        lease.standing = Standing::Kept;
                        lease.expires = now + rest;
                        if effects.observed {
                            effects.news().nudged.push(key.name.clone());
                        }
                        // Whoever is next was told when the lease would run out, and that may be long after
                        // this.
                        if let Some(next) = entry.next_in_line() {
                            effects.news().sooner.push(LeaseKey::new(key.name.clone(), next));
                        }
                    }
                    Release::KeepFor(_) | Release::Now => {
                        entry.holders.remove(index);
                        effects.change(&key.name, || Change::Released { id: key.id });
                    }
                }
                true
            },
        );
        if ended.unwrap_or(false) || self.memo.was_released(trace) {
            Released::Released
        } else {
            Released::NotHeld
        }
    }

    /// Undoes a request, whatever became of it, and keeps it from coming back.
    pub(in crate::memory) fn abandon(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        effects: &mut Effects,
    ) -> Abandoned {
        let trace = self.spot(&key.name).trace(key.id);
        self.memo.bury(trace, now);
        self.change(&key.name, now, effects, |entry, desk, effects| {
            if let Some(position) = entry.position(key.id) {
                entry.withdraw(position);
                desk.ended(key.id);
                effects.news().dropped.push(key.clone());
                return Abandoned::Withdrawn;
            }
            let held = |l: &entry::Lease| l.id == key.id && l.standing != Standing::Kept;
            match entry.holders.iter().position(held) {
                Some(index) => {
                    let lease = entry.holders.remove(index);
                    desk.ended(key.id);
                    effects.change(&key.name, || Change::Released { id: key.id });
                    Abandoned::WasGranted(Some(lease.token))
                }
                // A minimum hold stands: it was asked for, and it is nobody's lease.
                None => Abandoned::Nothing,
            }
        })
        .unwrap_or(Abandoned::Nothing)
    }
}
