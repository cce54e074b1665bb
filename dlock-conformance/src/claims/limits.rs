//! The limits of claims: a claim must be narrow enough that a rule can break it.

use std::time::Duration;

use dlock_core::Nature;

use super::{Claims, Need};

/// The usual factor by which the longest wait exceeds the mean, and the maximum that can be claimed.
pub(super) const USUAL_STARVATION: u32 = 10;
const MOST_STARVATION: u32 = 100;

/// One for the acquire, one for the release.
pub(super) const USUAL_ROUND_TRIPS: u32 = 2;

/// A claimed bound, its usual value, and the maximum that can be claimed.
struct Bound {
    name: &'static str,
    claimed: Duration,
    usual: Duration,
    most: Duration,
}

/// Needs that [`Capabilities`](dlock_core::Capabilities) declare to users of the store. A declared capability
/// is not refused, so if it were withdrawn only here it would be neither tested nor refused.
pub(super) const CARRIED: [Need; 20] = [
    Need::Lease,
    Need::Renew,
    Need::PerGrantTtl,
    Need::Fence,
    Need::FenceDurable,
    Need::Resource,
    Need::Fair,
    Need::Priority,
    Need::Raise,
    Need::Shared,
    Need::Permits,
    Need::Downgrade,
    Need::Upgrade,
    Need::Watch,
    Need::Inspect,
    Need::ForceRelease,
    Need::List,
    Need::MinimumHold,
    Need::OwnerLabel,
    Need::Session,
];

/// The shortest lease that rules about time use, if the subject accepts it. If the skew is not small compared
/// to it, it hides what they look for: a lease that ends early, or a deadline that is too late.
const SHORTEST_LEASE: Duration = Duration::from_millis(120);

/// The largest depth of re-entry and backlog of changes that a rule goes up to.
const MOST_COUNTED: u32 = 1 << 16;

impl Claims {
    fn bounds(&self) -> [Bound; 8] {
        let ms = Duration::from_millis;
        let bound = |name, claimed, usual, most| Bound {
            name,
            claimed,
            usual,
            most,
        };
        [
            bound("slack", self.slack, ms(250), ms(5_000)),
            bound("op_bound", self.op_bound, ms(2_000), ms(60_000)),
            bound("give_up", self.give_up, ms(11_000), ms(60_000)),
            bound("wake_p99", self.wake_p99, ms(100), ms(5_000)),
            bound("cancel_prompt", self.cancel_prompt, ms(500), ms(10_000)),
            bound("drop_prompt", self.drop_prompt, ms(500), ms(10_000)),
            bound(
                "skew per second",
                Duration::from_micros(self.skew.ppm.into()),
                ms(10),
                ms(100),
            ),
            bound("fixed skew", self.skew.fixed, ms(2), ms(1_000)),
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
            other => self.could(*other),
        };
        let taken_back = CARRIED.into_iter().filter(|need| self.without.contains(need));
        let declared: Vec<Need> = taken_back.filter(is_declared).collect();
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
        let mut too_wide: Vec<String> = self
            .bounds()
            .iter()
            .filter(|b| b.claimed > b.most)
            .map(|b| format!("{} is {:?}, and the maximum is {:?}", b.name, b.claimed, b.most))
            .chain(self.uncountable())
            .collect();
        let lease = self.capabilities.min_ttl.max(SHORTEST_LEASE);
        let (skew, most) = (self.skew.of(lease), lease / 4);
        if skew > most {
            too_wide.push(format!(
                "the skew over {lease:?}, the shortest lease in use, is {skew:?}, and the maximum is {most:?}"
            ));
        }
        if self.starvation_factor > MOST_STARVATION {
            let factor = self.starvation_factor;
            too_wide.push(format!(
                "starvation_factor is {factor}, and the maximum is {MOST_STARVATION}"
            ));
        }
        if too_wide.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "these claims are too wide to be judged: {}",
                too_wide.join("; ")
            ))
        }
    }

    /// The numbers that are too large for a rule to count up to.
    fn uncountable(&self) -> impl Iterator<Item = String> {
        let numbers = [
            ("reentry_depth", self.reentry_depth),
            ("round_trips", self.round_trips),
            ("watch_backlog", self.watch_backlog),
        ];
        let beyond = numbers.into_iter().filter(|(_, n)| *n > MOST_COUNTED);
        beyond.map(|(name, n)| format!("{name} is {n}, and the maximum is {MOST_COUNTED}"))
    }

    /// The bounds of more than twice the usual value, for the report: a pass under them proves less.
    pub fn wide(&self) -> Vec<String> {
        self.bounds()
            .iter()
            .filter(|b| b.claimed > b.usual * 2)
            .map(|b| format!("{} {:?} (usual: {:?})", b.name, b.claimed, b.usual))
            .chain(
                (self.round_trips > USUAL_ROUND_TRIPS * 2)
                    .then(|| format!("round_trips {} (usual: {USUAL_ROUND_TRIPS})", self.round_trips)),
            )
            .chain((self.starvation_factor > USUAL_STARVATION * 2).then(|| {
                format!(
                    "starvation_factor {} (usual: {USUAL_STARVATION})",
                    self.starvation_factor
                )
            }))
            .collect()
    }
}
