//! Keeps out a server that has started recently.
//!
//! A member of a quorum that restarts without its leases admits a second holder: it is the member that two
//! majorities have in common, and it has forgotten the first. So it stays out until all leases that it may
//! have forgotten have expired (*delayed restart* in the description of Redlock). The clients keep it out:
//! the server needs no set-up, and no restart is overlooked.
//!
//! INFO has the uptime of a server: `uptime_in_seconds`, its present wall clock minus that of its start, each
//! in whole seconds. The uptime computed here is never longer than the real one.
//!
//! * *It is restarted*, in order or not, on the same machine or another: it is out for that long, for each
//!   client from its next connection on; a process that ends takes its connections with it. The same if it
//!   kept its leases (`appendfsync always`), where this is not needed.
//! * *Its wall clock is set back* after the start: out for longer, by as much.
//! * *Its wall clock is set forward* after the start, as on a machine that boots before it knows the time:
//!   **let in too early, by as much.** Start it after the clock is right (`time-sync.target`).
//! * *`FLUSHALL`, `DEL`, eviction, a machine put back to a snapshot*: **not seen**, since it was up all the
//!   time. The rights in docs/redis.md forbid the first two, and `noeviction` the third.
//! * *A longer lease*: it is refused. `rejoin_after` covers the longest ttl plus the drift margin.

use std::fmt;
use std::time::Duration;

use dlock_core::{Drift, Timestamp};

/// The start of a server is known to that.
const GRAIN: Duration = Duration::from_secs(1);

/// For how long a server must have been up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rejoin(Duration);

/// A server that was up for less than that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    after: Duration,
    up: Duration,
    until: Timestamp,
}

impl Rejoin {
    pub(crate) fn new(after: Duration) -> Self {
        Self(after)
    }

    /// The longest lease that has run out by then, by clocks that drift apart by no more than usual.
    pub(crate) fn longest_ttl(self) -> Duration {
        // A ttl and its own margin are at most that long together, since a margin grows with what it is of.
        let longest = self.0.saturating_sub(Drift::DEFAULT.margin(self.0));
        Duration::from_millis(u64::try_from(longest.as_millis()).unwrap_or(u64::MAX))
    }

    /// Whether a server that says this has been up for long enough. Its clock is in microseconds since 1970,
    /// if it says that.
    pub(crate) fn admits(self, uptime: i64, clock: Option<u64>) -> Result<(), Bar> {
        let up = up_at_least(uptime, clock);
        if up >= self.0 {
            return Ok(());
        }
        // From after the answer: it was asked for before that.
        let until = Timestamp::now() + (self.0 - up);
        Err(Bar {
            after: self.0,
            up,
            until,
        })
    }
}

/// The minimum time that it has been up.
fn up_at_least(uptime: i64, clock: Option<u64>) -> Duration {
    // Its clock was set back to before its start.
    let uptime = Duration::from_secs(u64::try_from(uptime).unwrap_or(0));
    // Both are of one look at the clock, whose whole seconds the uptime counts.
    let beyond = clock.map_or(0, |us| us % 1_000_000);
    (uptime + Duration::from_micros(beyond)).saturating_sub(GRAIN)
}

impl Bar {
    fn left(&self) -> Duration {
        Timestamp::now().until(self.until)
    }

    /// Whether it is not over.
    pub(crate) fn stands(&self) -> bool {
        !self.left().is_zero()
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (after, up) = (self.after, whole(self.up));
        // Rounded up: a client that comes back then is not refused again.
        let tenths = self.left().as_millis().div_ceil(100);
        let left = Duration::from_millis(u64::try_from(tenths * 100).unwrap_or(u64::MAX));
        write!(
            f,
            "was started lately, {up:?} ago as far as is certain, and may have forgotten locks that are held \
             still: by `rejoin_after` it stays out for {after:?} from its start, which is {left:?} more"
        )
    }
}

fn whole(d: Duration) -> Duration {
    Duration::from_millis(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_made_of_an_uptime_is_never_more_than_it_was() {
        // All of these servers say that they began at 10 s.
        for began in [10_000_000_u64, 10_000_001, 10_500_000, 10_999_999] {
            for now in [10_999_999_u64, 11_000_000, 12_345_678, 50_999_999, 51_000_000] {
                let uptime = i64::try_from(now / 1_000_000 - began / 1_000_000).unwrap();
                let real = Duration::from_micros(now - began);
                let exact = up_at_least(uptime, Some(now));
                assert!(exact <= real && real <= exact + S, "{began} {now}: {exact:?}");
                let rough = up_at_least(uptime, None);
                assert!(rough <= exact && real < rough + 2 * S, "{began} {now}: {rough:?}");
            }
        }
        assert_eq!(up_at_least(-3600, Some(1_999_999)), Duration::ZERO);
        assert_eq!(up_at_least(0, None), Duration::ZERO);
    }

    #[test]
    fn the_longest_lease_has_run_out_by_then() {
        for ms in [1, 3, 60, 1_000, 40_000, 86_400_000] {
            let after = Duration::from_millis(ms);
            let ttl = Rejoin::new(after).longest_ttl();
            assert!(
                ttl.is_zero() || ttl + Drift::DEFAULT.margin(ttl) <= after,
                "{after:?}"
            );
        }
        // As the documentation has it.
        assert!(Rejoin::new(40 * S).longest_ttl() >= 30 * S);
        assert!(Rejoin::new(30 * S).longest_ttl() < 30 * S);
    }
}
