//! What the engine owes the store: releases and withdrawals whose callers are gone (I1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::lease::Lease;
use super::lease_state::LeaseState;
use super::place::Place;
use crate::error::LossReason;
use crate::spi::LeaseKey;
use crate::timestamp::Timestamp;

/// One obligation. It is retried until the store has answered, or until the lease or request has expired.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) duty: Duty,
    pub(crate) key: LeaseKey,
    /// The time by which it has expired in the store, since nothing renews it. `MAX` for stores whose
    /// sessions outlive ttls.
    pub(crate) moot_at: Timestamp,
    tries: AtomicU32,
    pub(crate) place: Place,
}

#[derive(Debug)]
pub(crate) enum Duty {
    /// End a lease. The outcome is recorded in the lease, if there is one, at the latest when the job is
    /// dropped.
    Release(Option<Arc<Lease>>),
    /// Undo a request whose outcome is not known or not wanted.
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

    /// Counts a failed try and returns their number.
    pub(crate) fn failed(&self) -> u32 {
        self.tries.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Obligations end with the keeper: observers of the lease learn that the outcome of its release will never
/// be known.
impl Drop for Job {
    fn drop(&mut self) {
        if let Duty::Release(Some(lease)) = &self.duty {
            lease.end_release(LeaseState::Lost(LossReason::Closed));
        }
    }
}
