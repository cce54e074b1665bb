//! The limits of claims: a claim must be narrow enough that a rule can break it.

use std::fmt::Debug;
use std::ops::Mul;
use std::time::Duration;

use dlock_core::Nature;

use super::{Claims, Need};

/// The usual factor by which the longest wait exceeds the mean.
pub(super) const USUAL_STARVATION: u32 = 10;

/// One for the acquire, one for the release.
pub(super) const USUAL_ROUND_TRIPS: u32 = 2;

/// A claimed bound: its name, what is claimed, its usual value, and the maximum that can be claimed.
type Bound<T> = (&'static str, T, T, T);

/// The shortest lease that rules about time use, if the subject accepts it. If the skew is not small compared
/// to it, it hides what they look for: a lease that ends early, or a deadline that is too late.
const SHORTEST_LEASE: Duration = Duration::from_millis(120);

/// The largest number that a rule counts up to.
const MOST_COUNTED: u32 = 1 << 16;

impl Claims {
    fn bounds(&self) -> [Bound<Duration>; 8] {
        let ms = Duration::from_millis;
        let drift = Duration::from_micros(self.skew.ppm.into());
        [
            ("slack", self.slack, ms(250), ms(5_000)),
            ("op_bound", self.op_bound, ms(2_000), ms(60_000)),
            ("give_up", self.give_up, ms(11_000), ms(60_000)),
            ("wake_p99", self.wake_p99, ms(100), ms(5_000)),
            ("cancel_prompt", self.cancel_prompt, ms(500), ms(10_000)),
            ("drop_prompt", self.drop_prompt, ms(500), ms(10_000)),
            ("skew per second", drift, ms(10), ms(100)),
            ("fixed skew", self.skew.fixed, ms(2), ms(1_000)),
        ]
    }

    /// A larger depth or backlog proves no less.
    fn counts(&self) -> [Bound<u32>; 4] {
        let (depth, backlog) = (self.reentry_depth, self.watch_backlog);
        [
            ("reentry_depth", depth, MOST_COUNTED, MOST_COUNTED),
            ("round_trips", self.round_trips, USUAL_ROUND_TRIPS, MOST_COUNTED),
            ("watch_backlog", backlog, MOST_COUNTED, MOST_COUNTED),
            ("starvation_factor", self.starvation_factor, USUAL_STARVATION, 100),
        ]
    }

    /// Checks that the bounds are narrow enough for a rule to break them: a slack of an hour would excuse
    /// everything. Also checks that no claim is withdrawn that the capabilities declare: its rules would not
    /// run, but users would still find it. And nothing is claimed that they do not have.
    ///
    /// # Errors
    /// A withdrawn claim that is declared, a claim that is not, or the bounds that are too wide, with the
    /// maximum that can be claimed: slack and `wake_p99` 5 s, `op_bound` and `give_up` 60 s, `cancel_prompt`
    /// and `drop_prompt` 10 s, skew 10 % + 1 s and a quarter of the shortest lease (120 ms, or the minimum
    /// that is claimed), starvation factor 100, a depth of re-entry, a backlog or a number of round trips of
    /// 65536.
    pub fn check(&self) -> Result<(), String> {
        let is_declared = |need: &Need| match need {
            Need::Lease => self.capabilities.nature == Nature::Lease,
            other => other.is_carried() && self.could(*other),
        };
        let mut declared: Vec<Need> = self.without.iter().copied().filter(is_declared).collect();
        declared.sort_unstable();
        declared.dedup();
        if !declared.is_empty() {
            return Err(format!(
                "{declared:?} cannot be withdrawn with `without`, because the capabilities declare it: leave \
                    it out there, so that it is refused"
            ));
        }
        let vain: Vec<&Need> = self.claimed.iter().filter(|need| !self.has(**need)).collect();
        if !vain.is_empty() {
            return Err(format!(
                "{vain:?} cannot be claimed with `claim`, because the capabilities do not have it: declare \
                    it there"
            ));
        }
        let lease = self.capabilities.min_ttl.max(SHORTEST_LEASE);
        let over_lease = format!("the skew over {lease:?}, the shortest lease in use,");
        let skew = (&*over_lease, self.skew.of(lease), Duration::ZERO, lease / 4);
        let mut too_wide = exceeding(self.bounds().into_iter().chain([skew]));
        too_wide.extend(exceeding(self.counts()));
        match too_wide.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "these claims are too wide to be judged: {}",
                too_wide.join("; ")
            )),
        }
    }

    /// The bounds of more than twice the usual value, for the report: a pass under them proves less.
    pub fn wide(&self) -> Vec<String> {
        let mut wide = wide(self.bounds());
        wide.extend(self::wide(self.counts()));
        wide
    }
}

fn exceeding<'a, T: Debug + PartialOrd>(bounds: impl IntoIterator<Item = (&'a str, T, T, T)>) -> Vec<String> {
    let beyond = bounds.into_iter().filter(|(_, claimed, _, most)| claimed > most);
    let said =
        beyond.map(|(name, claimed, _, most)| format!("{name} is {claimed:?}, and the maximum is {most:?}"));
    said.collect()
}

fn wide<T>(bounds: impl IntoIterator<Item = Bound<T>>) -> Vec<String>
where
    T: Copy + Debug + PartialOrd + Mul<u32, Output = T>,
{
    let bounds = bounds.into_iter();
    let wide = bounds.filter(|(_, claimed, usual, _)| *claimed > *usual * 2);
    let said = wide.map(|(name, claimed, usual, _)| format!("{name} {claimed:?} (usual: {usual:?})"));
    said.collect()
}
