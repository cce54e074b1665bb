//! How long a client's lease can be relied on.
//!
//! The leader ends a lease that it has not renewed for its ttl, and the keys on it go. The client must stop
//! relying on it before, by its own clock. So the deadline counts from when a renewal was *sent*, and lasts
//! for the ttl.
//!
//! # Which answers count
//!
//! A leader renews a lease alone, in its memory, without a majority. One that was paused while another
//! replaced it keeps answering until it notices, while its successor may have ended the lease already. So a
//! renewal counts only after a second request, sent *after its answer*, was answered through a majority in
//! the same term. Any transaction or read will do: in a busy client it costs nothing, and a client that holds
//! nothing sends only the renewal.
//!
//! The term in an answer is that of the last entry that the member has applied. For a renewal it is taken
//! before the renewal is passed on to the leader. Before a member answers through a majority it has applied
//! an entry of the present leader: so that leader's term is no later than the one in the answer. The member
//! had applied an entry of that very term before it passed on the renewal. So it knew this leader, and passed
//! it to no earlier one. (A member that has caught up by a snapshot reports an older term until it applies
//! its next entry. For that to matter the same member would have to be cut off from all but a paused leader,
//! and to catch up by thousands of entries between a renewal and the next answer.)
//!
//! The *next* leader gives every lease its whole ttl and an election timeout, from its start: after the last
//! renewal that counts.
//!
//! What could break it otherwise:
//!
//! * *The machine or the process is suspended.* The clock counts suspension.
//! * *The clock runs slow.* The engine takes its drift margin off.
//! * *Answers come late.* They count from the send time, so late ones are worth less, never more.
//! * *A paused leader ends leases when it resumes*, by its old state, and the next leader carries that out.
//!   This is a bug of etcd before 3.5.13 and 3.4.31 (its issue 15247): then a lock may be granted to another
//!   too early. The client learns of it at once, by its watch, and the [gate](dlock_core::FenceGate) protects
//!   writes: see `docs/etcd.md`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Timestamp;

/// Until when a lease is believed in.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// When the last renewal was sent that counts.
    confirmed: AtomicU64,
    /// The last one that was answered, and does not count yet.
    renewed: Mutex<Option<Renewed>>,
    ttl: Duration,
}

/// A renewal that a leader has answered: when it was sent, and in which term the member was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    pub(crate) sent: Timestamp,
    pub(crate) term: u64,
}

impl Deadline {
    /// Of a lease that was asked for at that time.
    pub(crate) fn new(asked: Timestamp, ttl: Duration) -> Self {
        Self {
            confirmed: AtomicU64::new(asked.as_nanos()),
            renewed: Mutex::default(),
            ttl,
        }
    }

    /// A leader has answered to a renewal.
    pub(crate) fn renewed(&self, renewed: Renewed) {
        *self.last() = Some(renewed);
    }

    /// The renewal that a request confirms which is sent now.
    pub(crate) fn to_confirm(&self) -> Option<Renewed> {
        *self.last()
    }

    /// A request was answered in that term by way of a majority, and the renewal was to be confirmed before
    /// it was sent. Whether it counts now.
    pub(crate) fn confirm(&self, renewed: Option<Renewed>, term: u64) -> bool {
        let Some(renewed) = renewed.filter(|renewed| renewed.term == term) else {
            return false;
        };
        self.confirmed
            .fetch_max(renewed.sent.as_nanos(), Ordering::AcqRel);
        let mut last = self.last();
        if *last == Some(renewed) {
            *last = None;
        }
        true
    }

    fn last(&self) -> MutexGuard<'_, Option<Renewed>> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From when the belief counts.
    pub(crate) fn confirmed(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// How long it lasts from there.
    pub(crate) fn span(&self) -> Duration {
        self.ttl
    }

    /// Whether enough is left to hand out a lock without asking once more.
    pub(crate) fn is_ample(&self, now: Timestamp) -> bool {
        now.since(self.confirmed()) <= self.ttl / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_takes_nothing_back() {
        let s = Duration::from_secs;
        let t = |n| Timestamp::ZERO + s(n);
        let deadline = Deadline::new(t(100), s(12));
        let renewed = |n| Some(Renewed { sent: t(n), term: 7 });
        assert!(deadline.confirm(renewed(103), 7) && deadline.confirm(renewed(101), 7));
        assert_eq!(deadline.confirmed(), t(103));
        assert!(deadline.is_ample(t(109)) && !deadline.is_ample(t(110)));
    }

    #[test]
    fn a_renewal_counts_once_a_majority_has_answered_later() {
        let s = Duration::from_secs;
        let t = |n| Timestamp::ZERO + s(n);
        let deadline = Deadline::new(t(100), s(12));
        let before = deadline.to_confirm();
        let (sent, term) = (t(104), 7);
        deadline.renewed(Renewed { sent, term });
        // Sent before the answer came, or answered in another term.
        assert!(!deadline.confirm(before, 7));
        assert!(!deadline.confirm(deadline.to_confirm(), 8));
        assert_eq!(deadline.confirmed(), t(100));
        assert!(deadline.confirm(deadline.to_confirm(), 7));
        assert_eq!((deadline.confirmed(), deadline.to_confirm()), (t(104), None));
    }
}
