//! What is owed to the store, when, and for how long; and what is noted when it is paid.

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
            // Under the lock, which the keeper takes to end: it finds the job, or nobody owes it any more.
            if self.phase() == Phase::Closed {
                return;
            }
            state.inbox.push(job);
        }
        self.wake_keeper();
    }

    /// By when the store has let a lease of that length lapse, counted from now. Sessions outlive ttls.
    pub(super) fn moot_at(&self, lease: Duration) -> Timestamp {
        match self.caps.nature {
            Nature::Session => Timestamp::MAX,
            _ => self.now() + lease + self.op_timeout,
        }
    }

    /// Owes the release of a lease that is over for us but may not be for the store.
    pub(super) fn owe_release(&self, lease: &Arc<Lease>) {
        // Not the span alone: a renewal whose answer was lost may have turned a claim window into a lease of
        // the full ttl.
        let moot_at = self.moot_at(lease.span().max(lease.options.ttl));
        let duty = Duty::Release(Some(lease.clone()));
        self.owe(Job::new(duty, lease.key.clone(), moot_at));
    }

    /// The lease is over, and a copy of its request may still be on its way: it would be granted to nobody,
    /// for a whole ttl. Not before the release is answered: an abandon that overtook it would make it say
    /// that nothing was held.
    pub(super) fn abandon_late_copy(&self, lease: &Lease) {
        if lease.late_copy {
            self.owe_abandon(lease.key.clone(), &lease.options);
        }
    }

    /// Notes the outcome of a release.
    pub(super) fn settle(&self, lease: &Lease, released: Released) {
        let end = if released == Released::Released {
            LeaseState::Released
        } else {
            LeaseState::Lost(LossReason::Refused)
        };
        // The keeper and a user who asks again may both hear of it: it is counted once.
        if lease.end_release(end) {
            match end {
                LeaseState::Released => observe::released(&self.caps, lease, || self.now()),
                _ => observe::lost(&self.caps, lease, LossReason::Refused),
            }
        }
        self.abandon_late_copy(lease);
        self.poke_poller(&lease.key.name);
    }

    /// Owes the undoing of a request. An entry that nobody renews may yet be granted at the end of its life
    /// in the queue, which is a ttl as well.
    pub(super) fn owe_abandon(&self, key: LeaseKey, options: &Terms) {
        let longest = options.ttl + options.ttl;
        self.owe(Job::new(Duty::Abandon, key, self.moot_at(longest)));
    }

    /// At once, or not before the minimum hold is over.
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
