//! What the engine owes the store: releases and withdrawals that nobody waits for any more (I1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::lease::Lease;
use super::lease_state::LeaseState;
use super::place::Place;
use crate::error::LossReason;
use crate::spi::LeaseKey;
use crate::timestamp::Timestamp;

/// One obligation. It is tried until the store has answered, or until what it is about has lapsed by itself.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) duty: Duty,
    pub(crate) key: LeaseKey,
    /// By then the store has let it lapse: nothing renews it any more. `MAX` for stores whose sessions
    /// outlive ttls.
    pub(crate) moot_at: Timestamp,
    tries: AtomicU32,
    pub(crate) place: Place,
}

#[derive(Debug)]
pub(crate) enum Duty {
    /// End a lease. The lease, if there is one, is told how it went, at the latest when the job is dropped.
    Release(Option<Arc<Lease>>),
    /// Undo a request of which the outcome is not known or not wanted.
    Abandon,
}

impl Job {
    pub(crate) fn new(duty: Duty, key: LeaseKey, moot_at: Timestamp) -> Self {
        Self {
            duty,
            key,
            moot_at,
            tries: AtomicU32::new(0),
            place: Place::nowhere(),
        }
    }

    /// Counts a failed try and says the how-manieth it was.
    pub(crate) fn failed(&self) -> u32 {
        self.tries.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// With the keeper goes what it owes: whoever observes the lease is told that nobody will hear any more how
/// its release went.
impl Drop for Job {
    fn drop(&mut self) {
        if let Duty::Release(Some(lease)) = &self.duty {
            lease.end_release(LeaseState::Lost(LossReason::Closed));
        }
    }
}
