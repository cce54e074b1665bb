//! The faults of a simulated network.

use std::ops::Range;
use std::time::Duration;

use super::rng::SimRng;

/// The odds of a [`Link`](super::Link). Every probability is per message, from 0.0 to 1.0.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FaultPlan {
    /// How long a message takes, one way. Messages overtake one another.
    pub delay: Range<Duration>,
    /// How likely a message is held back for [`slow_delay`](Self::slow_delay) instead.
    pub slow: f64,
    /// How long a message that is held back takes.
    pub slow_delay: Range<Duration>,
    /// How likely a request never arrives.
    pub drop_request: f64,
    /// How likely a reply never arrives, though the request took effect.
    pub drop_reply: f64,
    /// How likely an idempotent request is delivered twice, each with a delay of its own.
    pub duplicate: f64,
    /// How likely a push never arrives.
    pub drop_push: f64,
    /// How likely a call has no bound of its own: if its reply is lost, it never returns.
    pub hang: f64,
    /// How long a call waits for its reply before it answers `Unknown`.
    pub call_bound: Duration,
}

impl FaultPlan {
    /// A network in which nothing takes time and nothing fails.
    pub fn perfect() -> Self {
        Self {
            delay: Duration::ZERO..Duration::ZERO,
            slow: 0.0,
            slow_delay: Duration::ZERO..Duration::ZERO,
            drop_request: 0.0,
            drop_reply: 0.0,
            duplicate: 0.0,
            drop_push: 0.0,
            hang: 0.0,
            call_bound: Duration::from_secs(1),
        }
    }

    /// A network without faults: 50 µs to 2 ms one way.
    pub fn healthy() -> Self {
        Self {
            delay: Duration::from_micros(50)..Duration::from_millis(2),
            ..Self::perfect()
        }
    }

    /// Odds drawn at random: each fault is absent from most plans, so that a run shows what one or two of
    /// them do, and frequent where it is present.
    pub fn random(rng: &mut SimRng) -> Self {
        let mut odds = |most: f64| {
            let present = rng.chance(0.4);
            let size = rng.below(1_000) as f64 / 1_000.0;
            if present { size * most } else { 0.0 }
        };
        Self {
            slow: odds(0.2),
            drop_request: odds(0.2),
            drop_reply: odds(0.2),
            duplicate: odds(0.3),
            drop_push: odds(0.7),
            hang: odds(1.0),
            slow_delay: Duration::from_millis(5)..Duration::from_millis(3_000),
            delay: Duration::from_micros(50)..Duration::from_micros(200 + rng.below(30_000)),
            call_bound: Duration::from_millis(50 + rng.below(1_000)),
        }
    }
}

/// Which direction of a [`Link`](super::Link) is a black hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Partition {
    /// Neither requests nor replies arrive.
    Both,
    /// Requests do not arrive.
    Requests,
    /// Requests take effect; replies and pushes do not arrive.
    Replies,
}

impl Partition {
    pub(super) fn stops_requests(self) -> bool {
        matches!(self, Self::Both | Self::Requests)
    }

    pub(super) fn stops_replies(self) -> bool {
        matches!(self, Self::Both | Self::Replies)
    }
}
