//! How long a session can be relied on.
//!
//! A server ends a session that was silent for the negotiated timeout *T*, and gives its locks away. The
//! client must stop relying on it before, by its own clock. So the deadline counts from when the last
//! answered request was *sent*, and ends before *T* is over.
//!
//! # Which answers count
//!
//! In an ensemble the *leader* ends sessions. It hears of them from the servers that clients are connected
//! to, in the answers to its pings, every half tick. A server that is cut off from the leader keeps answering
//! reads and pings until its `syncLimit` is over, ten seconds by default: for that long a client would rely
//! on a session that the leader has ended. So only the answer to a write counts, which needs a majority. A
//! write is refused if the session is over.
//!
//! `sync` is not enough. A leader answers it to its own clients without a majority. One that was paused while
//! another replaced it does so until it notices, which takes up to a tick, while its successor may have ended
//! the session already (tested in `tests/it/stale_leader.rs`). A read behind such a `sync` may be old, too:
//! no lock is granted without a write in the last half of the session's time.
//!
//! # What the margin is for
//!
//! A server that *fails*, or is cut off, just after such an answer may not have told the leader that it heard
//! from the session. Its last report is at most half a tick old, and covers everything until then. For an
//! idle client that is a ping of its driver, which is sent after a silence of 0.15 *T*, checked every 0.05
//! *T*. So the leader counts from no earlier than 0.20 *T* and half a tick before the send time of the
//! answered request: less than 0.29 *T* where a tick is at most *T*/6. The deadline leaves out *T*/3; the
//! rest of that, 0.05 *T*, is for the network.
//!
//! A *leader* that is cut off answers no more writes. The next leader gives every session the whole of *T*
//! from its start, which is after the last answered write.
//!
//! With longer ticks, up to *T*/2, the third covers a client that is cut off alone, but not one that is cut
//! off together with its server.
//!
//! What could break it otherwise:
//!
//! * *The machine or the process is suspended.* The clock counts suspension.
//! * *The client was paused for longer than 0.20 T, is answered as soon as it resumes, and within half a tick
//!   its server fails.* Then the margin may be too short: `docs/zookeeper.md` says so.
//! * *The clock runs slow.* The engine takes its drift margin off on top.
//! * *Answers come late.* They count from the send time, so late ones are worth less, never more.
//! * *The driver says that a session is over too late*, up to a second after the server gave its locks away.
//!   Nothing here waits for it.
//! * *The client reconnects to a server that allows only shorter sessions.* That server shortens it, and the
//!   driver does not report it. So all servers must have the same limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::Timestamp;

/// Until when a session is believed in.
#[derive(Debug)]
pub(crate) struct Deadline {
    /// When the last request was sent that a majority had a part in answering.
    confirmed: AtomicU64,
    timeout: Duration,
}

impl Deadline {
    /// Of a session that was asked for at that time.
    pub(crate) fn new(asked: Timestamp, timeout: Duration) -> Self {
        Self {
            confirmed: AtomicU64::new(asked.as_nanos()),
            timeout,
        }
    }

    /// A write that was sent at that time has been answered.
    pub(crate) fn confirm(&self, sent: Timestamp) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// From when the belief counts.
    pub(crate) fn confirmed(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// How long it lasts from there.
    pub(crate) fn span(&self) -> Duration {
        believed(self.timeout)
    }

    /// Whether enough is left to hand out a lock without asking once more.
    pub(crate) fn is_ample(&self, now: Timestamp) -> bool {
        now.since(self.confirmed()) <= self.span() / 2
    }

    /// When a server that hears no more has ended it, at the earliest.
    pub(crate) fn lapses(&self) -> Timestamp {
        self.confirmed() + self.timeout
    }
}

/// How long a client believes in a session of that timeout.
pub(crate) fn believed(timeout: Duration) -> Duration {
    timeout - timeout / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_answer_never_takes_back_what_a_later_question_earned() {
        let s = Duration::from_secs;
        let t = |n| Timestamp::ZERO + s(n);
        let deadline = Deadline::new(t(100), s(12));
        assert_eq!((deadline.span(), deadline.lapses()), (s(8), t(112)));
        deadline.confirm(t(103));
        deadline.confirm(t(101));
        assert_eq!(deadline.confirmed(), t(103));
        assert!(deadline.is_ample(t(107)) && !deadline.is_ample(t(108)));
    }

    /// The driver looks every twentieth of the timeout whether nothing was sent for three of them.
    #[test]
    fn the_margin_covers_the_delay_of_a_failing_server() {
        for timeout in [1, 3, 12, 60, 3600].map(Duration::from_secs) {
            let silence = timeout / 20 * 4;
            let rest = |tick: Duration| timeout.checked_sub(believed(timeout) + silence + tick / 2);
            assert!(rest(timeout / 6) >= Some(timeout / 21), "{timeout:?}");
            assert!(rest(timeout / 4) > Some(Duration::ZERO), "{timeout:?}");
        }
    }
}
