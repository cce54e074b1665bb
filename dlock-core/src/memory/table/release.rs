//! Ending a lease, and undoing a request.

use std::time::Duration;

use super::Table;
use super::effects::Effects;
use super::entry::{self, Standing};
use crate::inspection::Change;
use crate::name::LockName;
use crate::saboteur::Bug;
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
        // planted: 14.05
        if self.bug.is(Bug::CrossNameRelease) {
            let slot = |name: &LockName| {
                let hash = name
                    .as_bytes()
                    .iter()
                    .fold(7_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
                hash.wrapping_mul(0x9e37_79b1) >> 26
            };
            let others = self
                .names
                .iter_mut()
                .filter(|(name, _)| *name != &key.name && slot(name) == slot(&key.name));
            others.for_each(|(_, entry)| entry.holders.clear());
        }
        // planted: 14.07
        if self.bug.is(Bug::DropAllOnOne) && self.held_by(key.id.client()) >= 8 {
            let others = self.names.iter_mut().filter(|(name, _)| *name != &key.name);
            others.for_each(|(_, entry)| entry.holders.retain(|l| l.id.client() != key.id.client()));
        }
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
                // planted: 3.06, 4.02, 15.06, 15.07
                let session = |l: &entry::Lease| l.id.client() == key.id.client();
                let session = entry.holders.iter().position(session);
                let other = match () {
                    () if desk.bug.is(Bug::ReleaseByName) => Some(0),
                    () if desk.bug.is(Bug::ReleaseBySession) => session,
                    () if desk.bug.is(Bug::DelayedReleaseApplies) && memo.was_released(trace) => Some(0),
                    () if desk.bug.is(Bug::DupReleaseFreesNext) && memo.was_released(trace) => Some(0),
                    // planted: 11.05
                    #[cfg(dlock_saboteur)]
                    () if desk.bug.is(Bug::ReadUnlockIgnoresOwner) && desk.notes.has_read(key.id) => Some(0),
                    // planted: 4.04
                    () if desk.bug.is(Bug::UnlockRetryFreesRelock) && memo.was_released(trace) => session,
                    () => None,
                };
                let Some(mut index) = own.or(other.filter(|_| !entry.holders.is_empty())) else {
                    return false;
                };
                // planted: 4.01
                let how = if desk.bug.is(Bug::LazyRelease) && entry.waiting() == 0 {
                    Release::KeepFor(Duration::from_millis(20))
                } else {
                    how
                };
                // planted: 11.03
                if desk.bug.is(Bug::WriterAfterFirstReader) && !entry.holders[index].mode.is_exclusive() {
                    entry.holders.clear();
                    return true;
                }
                // planted: 11.05
                if desk.bug.is(Bug::ReaderReleasesOther) {
                    index = 0;
                }
                // planted: 8.10
                if desk.bug.is(Bug::HerdWakeup) {
                    let everybody = entry.waiting_ids().map(|id| LeaseKey::new(key.name.clone(), id));
                    effects.news().sooner.extend(everybody);
                }
                let lease = &mut entry.holders[index];
                if lease.standing == Standing::Kept {
                    return true; // a retry: it does not make the minimum hold any longer
                }
                desk.ended(key.id);
                memo.note_released(trace);
                match how {
                    // planted: 4.13
                    Release::KeepFor(rest) if !rest.is_zero() && !desk.bug.is(Bug::MinHoldForgotten) => {
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
                        // planted: 11.06
                        if desk.bug.is(Bug::WriterStarved) && !entry.holders.is_empty() {
                            entry.admit_readers_first(desk, &key.name, now, effects);
                        }
                    }
                }
                true
            },
        );
        // planted: 7.03
        if self.bug.is(Bug::TokenResetOnRelease) && self.names.get(&key.name).is_none() {
            self.desk.counter = 0;
        }
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
        // planted: 15.09
        if !self.bug.is(Bug::NoTombstone) {
            self.memo.bury(trace, now);
        }
        let abandoned = self
            .change(&key.name, now, effects, |entry, desk, effects| {
                // planted: 14.04
                if desk.bug.is(Bug::CloneSharesOwner) {
                    entry.holders.retain(|l| l.id.client() != key.id.client());
                }
                // planted: 11.08
                if desk.bug.is(Bug::CancelledWriterBlocks)
                    && entry.position(key.id).is_some()
                    && entry.holders.iter().any(|l| !l.mode.is_exclusive())
                    && entry.is_writer(key.id)
                {
                    return Abandoned::Withdrawn;
                }
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
            .unwrap_or(Abandoned::Nothing);
        // planted: 8.12
        if self.bug.is(Bug::CancelEatsWakeup) {
            effects.news().granted.clear();
        }
        abandoned
    }
}
