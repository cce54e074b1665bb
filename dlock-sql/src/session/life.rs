//! Until when a connection can be relied on.
//!
//! The server ends a session that it has heard nothing of for the ttl: `idle_session_timeout`,
//! `wait_timeout`. It begins to count when it has answered, which is not before the request was *sent*. So
//! each belief counts from when the last request was sent that was answered, and lasts one ttl; the engine
//! takes its margin for drift off that.
//!
//! What could break it, and why it does not:
//!
//! * *The answer comes late*, or this process was stopped meanwhile. It counts from the send time, so it is
//!   worth less, never more.
//! * *The lock comes at the end of a long wait.* A wait is sent anew every third of a ttl, and the grant
//!   counts from when its *turn* was sent: see [`connection`](super::connection).
//! * *The session is ended sooner*, by an operator, or a job that ends idle ones. Then its connection ends as
//!   well, which is seen at once where the driver can listen while it is idle (PostgreSQL), and else at the
//!   next ping. Until that is seen two may believe to hold the lock: the fence keeps the first one out. The
//!   docs say so.
//! * *Another server answers* than the one that has the locks, behind a proxy. Each answer names its backend,
//!   and another one than at the beginning is a loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::Timestamp;

/// What is known of the life of one connection.
#[derive(Debug)]
pub(super) struct Life {
    confirmed: AtomicU64,
    ttl: Duration,
}

impl Life {
    /// Of a connection whose first request was sent at that time, and was answered.
    pub(super) fn new(sent: Timestamp, ttl: Duration) -> Self {
        Self {
            confirmed: AtomicU64::new(sent.as_nanos()),
            ttl,
        }
    }

    /// A request that was sent at that time has been answered by the session.
    pub(super) fn confirm(&self, sent: Timestamp) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// From when the belief counts.
    pub(super) fn confirmed(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// How long it lasts from there.
    pub(super) fn span(&self) -> Duration {
        self.ttl
    }

    /// When a server that hears no more has ended it, at the earliest.
    pub(super) fn lapses(&self) -> Timestamp {
        self.confirmed() + self.ttl
    }

    /// Whether enough is left to hand out a lock without asking once more.
    pub(super) fn is_ample(&self, now: Timestamp) -> bool {
        now.since(self.confirmed()) <= self.ttl / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_never_takes_back_what_a_later_request_earned() {
        let t = |n| Timestamp::ZERO + Duration::from_secs(n);
        let life = Life::new(t(100), Duration::from_secs(10));
        life.confirm(t(103));
        life.confirm(t(101));
        assert_eq!((life.confirmed(), life.lapses()), (t(103), t(113)));
        assert!(life.is_ample(t(108)) && !life.is_ample(t(109)));
    }
}
