//! Obligations to the store: when they arise, how long they last, and what is recorded when they are met.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, Phase};
use super::jobs::{Duty, Job};
use super::lease::Lease;
use super::lease_state::LeaseState;
use crate::capabilities::Nature;
use crate::error::LossReason;
use crate::observe;
use crate::options::Terms;
use crate::spi::{LeaseKey, Release, Released};
use crate::timestamp::Timestamp;

impl Core {
    /// Hands an obligation to the keeper.
    pub(super) fn owe(&self, job: Job) {
        let job = Arc::new(job);
        {
            let mut state = self.state();
            // Under the mutex, which the keeper locks to end: it finds the job, or the obligation ends with
            // it.
            if self.phase() == Phase::Closed {
                return;
            }
            state.inbox.push(job);
        }
        self.wake_keeper();
    }

    /// The time by which a lease of this length has expired in the store, counted from now. Sessions outlive
    /// ttls.
    pub(super) fn moot_at(&self, lease: Duration) -> Timestamp {
        match self.caps.nature {
            Nature::Session => Timestamp::MAX,
            _ => self.now() + lease + self.op_timeout,
        }
    }

    /// Owes the release of a lease that has ended here but may not have ended in the store.
    pub(super) fn owe_release(&self, lease: &Arc<Lease>) {
        // Not the span alone: a renewal whose answer was lost may have extended a claim window to the full
        // ttl.
        let moot_at = self.moot_at(lease.span().max(lease.options.ttl));
        let duty = Duty::Release(Some(lease.clone()));
        self.owe(Job::new(duty, lease.key.clone(), moot_at));
    }

    /// The lease has ended, and a copy of its request may still be in transit: it would be granted to nobody,
    /// for a whole ttl. So it is abandoned, but not before the release is answered: an abandon that overtook
    /// the release would make it find nothing.
    pub(super) fn abandon_late_copy(&self, lease: &Lease) {
        if lease.late_copy {
            self.owe_abandon(lease.key.clone(), &lease.options);
        }
    }

    /// Records the outcome of a release.
    pub(super) fn settle(&self, lease: &Lease, released: Released) {
        let end = if released == Released::Released {
            LeaseState::Released
        } else {
            LeaseState::Lost(LossReason::Refused)
        };
        // The keeper and a user that retries may both get the outcome: it is counted once.
        if lease.end_release(end) {
            match end {
                LeaseState::Released => observe::released(&self.caps, lease, || self.now()),
                _ => observe::lost(&self.caps, lease, LossReason::Refused),
            }
        }
        self.abandon_late_copy(lease);
        self.poke_poller(&lease.key.name);
    }

    /// Owes the undoing of a request. A queue entry that is not renewed may still be granted at the end of
    /// its life, and then lives for one more ttl.
    pub(super) fn owe_abandon(&self, key: LeaseKey, options: &Terms) {
        let longest = options.ttl + options.ttl;
        self.owe(Job::new(Duty::Abandon, key, self.moot_at(longest)));
    }

    /// Releases at once, or after the minimum hold.
    pub(super) fn release_mode(&self, lease: &Lease) -> Release {
        match lease.options.min_hold {
            None => Release::Now,
            Some(at_least) => {
                let rest = at_least.saturating_sub(self.now().since(lease.acquired_at));
                if rest.is_zero() {
                    Release::Now
                } else {
                    Release::KeepFor(rest)
                }
            }
        }
    }
}
