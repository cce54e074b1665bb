//! How a lock is asked for and held.

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::spi::Acquire;
use crate::timestamp::nanos;

/// Whether and how often a held lock is renewed without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AutoRenew {
    /// Every third of the effective ttl, or up to an eighth of that sooner, so that clients do not renew in
    /// step.
    On,
    /// Never: the lock lapses at its ttl unless [`Guard::renew`](crate::Guard::renew) is called. Where leases
    /// hang on a session ([`Nature::Session`](crate::Nature::Session)) the session is kept alive until then,
    /// and the hold with it.
    Off,
    /// That often; at most half of the ttl.
    Every(Duration),
}

/// How much earlier than the store the client stops believing in a lease: a share of the lease for clocks
/// that run at different speeds, and a fixed part for their resolution. The promise of a lease lock holds
/// while the two clocks drift apart by no more than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// Parts per million of the lease.
    pub ppm: u32,
    /// On top of that.
    pub fixed: Duration,
}

impl Drift {
    /// 1 % and 2 ms.
    pub const DEFAULT: Self = Self::new(10_000, Duration::from_millis(2));

    /// That share in parts per million, and that much on top.
    pub const fn new(ppm: u32, fixed: Duration) -> Self {
        Self { ppm, fixed }
    }

    /// The margin of a lease of that length.
    pub fn margin(self, lease: Duration) -> Duration {
        let nanos = nanos(lease);
        let share = match nanos.checked_mul(u64::from(self.ppm)) {
            Some(millionths) => millionths / 1_000_000,
            // A lease of years: in wider numbers, which no processor divides by itself.
            None => (u128::from(nanos) * u128::from(self.ppm) / 1_000_000)
                .try_into()
                .unwrap_or(u64::MAX),
        };
        Duration::from_nanos(share).saturating_add(self.fixed)
    }
}

impl Default for Drift {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How a lock is asked for and held: what is said in here, and nothing else.
///
/// A value is laid over what its handle has, first the client's defaults: what is not set in it stays as it
/// was. The whole is then checked against the backend's capabilities. Under the defaults lie a ttl of 30 s,
/// [`AutoRenew::On`], priority 5, [`Drift::DEFAULT`], and no limit of any kind.
///
/// ```
/// # use dlock_core as dlock;
/// use std::time::Duration;
/// use dlock::{AutoRenew, LockOptions};
/// let nightly = LockOptions::new()
///     .ttl(Duration::from_secs(60))
///     .wait_limit(Duration::from_secs(5))
///     .owner_label("nightly@web-3")
///     .max_hold(Duration::from_secs(3600));
/// // As nightly, but however long it takes.
/// let by_hand = nightly.clone().wait_limit(None).max_hold(None);
/// # let _ = by_hand;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LockOptions {
    // `None` is not set. Where there are two, the inner `None` takes a default back.
    ttl: Option<Duration>,
    wait_limit: Option<Option<Duration>>,
    priority: Option<u8>,
    owner_label: Option<Arc<str>>,
    auto_renew: Option<AutoRenew>,
    max_hold: Option<Option<Duration>>,
    min_hold: Option<Option<Duration>>,
    drift: Option<Drift>,
    warn_after: Option<Option<Duration>>,
}

impl LockOptions {
    /// By how much a wait limit may be overrun: when it is reached, the store has that long to confirm that
    /// the request is withdrawn, which makes it a `Timeout`. A store that does not answer in that time makes
    /// it an `Unknown`.
    ///
    /// Longer than a round trip to the other side of the world, and than a commit to a slow disk.
    pub const WITHDRAWAL: Duration = Duration::from_millis(250);

    /// Nothing is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// "Free at most this long after I vanish." Within the backend's declared range. A crashed holder costs
    /// the others up to this; a holder that pauses longer than this loses the lock.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long [`acquire`](crate::Lock::acquire) waits at most, and [`WITHDRAWAL`](Self::WITHDRAWAL) on top
    /// if the store is silent. Zero is the same as trying once. `None`: for ever.
    pub fn wait_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.wait_limit = Some(limit.into());
        self
    }

    /// 1 (last) to 10 (first) among those who wait; ties by arrival. Anything but 5 needs
    /// [`Capability::Priority`].
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// A label that `inspect` shows to operators. Not an identity: the same label elsewhere is a stranger. An
    /// empty one is none.
    pub fn owner_label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.owner_label = Some(label.into());
        self
    }

    /// Whether and how often the lock is renewed without being asked.
    pub fn auto_renew(mut self, auto_renew: AutoRenew) -> Self {
        self.auto_renew = Some(auto_renew);
        self
    }

    /// The longest that one hold may last, renewals included. Then it is lost with reason `MaxHold`, and
    /// released. `None`: for as long as it is renewed.
    pub fn max_hold(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.max_hold = Some(limit.into());
        self
    }

    /// "Locked at least for": after an earlier release the name stays taken until that long after the
    /// acquisition. Keeps a job that finished quickly from running again on a machine whose clock is a little
    /// behind. At most the ttl. `None`: free with its release.
    pub fn min_hold(mut self, at_least: impl Into<Option<Duration>>) -> Self {
        self.min_hold = Some(at_least.into());
        self
    }

    /// How much earlier than the store the client stops believing in the lease.
    pub fn drift_margin(mut self, drift: Drift) -> Self {
        self.drift = Some(drift);
        self
    }

    /// Emits [`GuardEvent::HeldLong`](crate::GuardEvent::HeldLong) when it has been held for that long, and
    /// again after each further such time. `None`: never.
    pub fn warn_after(mut self, held_for: impl Into<Option<Duration>>) -> Self {
        self.warn_after = Some(held_for.into());
        self
    }
}

/// What a handle asks for, in full. Laid out flat and shared by its holds: the engine reads it with every
/// acquisition.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) wait_limit: Option<Duration>,
    pub(crate) priority: u8,
    pub(crate) owner_label: Option<Arc<str>>,
    pub(crate) auto_renew: AutoRenew,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) drift: Drift,
    pub(crate) warn_after: Option<Duration>,
}

impl Terms {
    /// What lies under a client's defaults.
    pub(crate) const DEFAULT: Self = Self {
        ttl: Duration::from_secs(30),
        wait_limit: None,
        priority: Acquire::DEFAULT_PRIORITY,
        owner_label: None,
        auto_renew: AutoRenew::On,
        max_hold: None,
        min_hold: None,
        drift: Drift::DEFAULT,
        warn_after: None,
    };

    /// These terms, but for what the options say. Not checked yet.
    pub(crate) fn with(&self, options: LockOptions) -> Self {
        let base = self.clone();
        Self {
            ttl: options.ttl.unwrap_or(base.ttl),
            wait_limit: options.wait_limit.unwrap_or(base.wait_limit),
            priority: options.priority.unwrap_or(base.priority),
            owner_label: options
                .owner_label
                .or(base.owner_label)
                .filter(|label| !label.is_empty()),
            auto_renew: options.auto_renew.unwrap_or(base.auto_renew),
            max_hold: options.max_hold.unwrap_or(base.max_hold),
            min_hold: options.min_hold.unwrap_or(base.min_hold),
            drift: options.drift.unwrap_or(base.drift),
            warn_after: options.warn_after.unwrap_or(base.warn_after),
        }
    }

    /// Checks everything that can be checked before any I/O.
    pub(crate) fn check(&self, caps: &Capabilities) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        caps.check_ttl(self.ttl)?;
        if self.drift.margin(self.ttl) >= self.ttl {
            return invalid(format!(
                "ttl {:?} is not longer than its drift margin {:?}: nothing of the lease would be left",
                self.ttl,
                self.drift.margin(self.ttl)
            ));
        }
        if let AutoRenew::Every(period) = self.auto_renew
            && (period.is_zero() || period > self.ttl / 2)
        {
            return invalid(format!(
                "renewing every {period:?} does not fit a ttl of {:?}: use more than 0, and at most half of \
                    it",
                self.ttl
            ));
        }
        caps.check_priority(self.priority)?;
        if self.max_hold.is_some_and(|d| d.is_zero()) {
            return invalid("a maximum hold of zero would end every hold at once".to_owned());
        }
        if self.warn_after.is_some_and(|d| d.is_zero()) {
            return invalid("a warning after zero would never end".to_owned());
        }
        if let Some(min_hold) = self.min_hold {
            if min_hold > self.ttl {
                return invalid(format!(
                    "a minimum hold of {min_hold:?} is longer than the ttl {:?}, all that a crash leaves",
                    self.ttl
                ));
            }
            if self.max_hold.is_some_and(|max| max < min_hold) {
                return invalid("the minimum hold is longer than the maximum hold".to_owned());
            }
            caps.need(Capability::MinimumHold, "a minimum hold")?;
        }
        if let Some(label) = &self.owner_label {
            caps.check_label(label)?;
        }
        Ok(())
    }

    /// How often a lease of that effective length is renewed; `None` for never.
    pub(crate) fn renew_period(&self, lease: Duration) -> Option<Duration> {
        match self.auto_renew {
            AutoRenew::Off => None,
            AutoRenew::On => Some(lease / 3),
            AutoRenew::Every(period) => Some(period.min(lease / 2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    fn terms(o: LockOptions) -> Terms {
        Terms::DEFAULT.with(o)
    }

    #[test]
    fn senseless_options_are_invalid_and_unclaimed_ones_unsupported() {
        let o = LockOptions::new;
        let refused = |o| {
            terms(o)
                .check(&Capabilities::new("test"))
                .map_err(|e| e.kind())
                .err()
        };
        assert_eq!(refused(o()), None);
        for senseless in [
            o().ttl(Duration::ZERO),
            o().ttl(Duration::MAX),
            o().ttl(10 * MS).drift_margin(Drift::new(0, 10 * MS)),
            o().auto_renew(AutoRenew::Every(Duration::ZERO)),
            o().ttl(100 * MS).auto_renew(AutoRenew::Every(51 * MS)),
            o().priority(0),
            o().priority(11),
            o().max_hold(Duration::ZERO),
        ] {
            assert_eq!(
                refused(senseless.clone()),
                Some(ErrorKind::InvalidInput),
                "{senseless:?}"
            );
        }
        for not_claimed in [o().priority(6), o().min_hold(MS), o().owner_label("me")] {
            assert_eq!(
                refused(not_claimed.clone()),
                Some(ErrorKind::Unsupported),
                "{not_claimed:?}"
            );
        }
    }

    #[test]
    fn what_is_not_set_is_inherited_and_what_is_set_counts() {
        let show = |t: &Terms| format!("{t:?}");
        // Every option, set to something and set to the opposite.
        let one = LockOptions::new()
            .ttl(20 * S)
            .wait_limit(S)
            .priority(7)
            .owner_label("one")
            .auto_renew(AutoRenew::Off)
            .max_hold(60 * S)
            .min_hold(5 * S)
            .drift_margin(Drift::new(1, Duration::ZERO))
            .warn_after(9 * S);
        let other = LockOptions::new()
            .ttl(30 * S)
            .wait_limit(None)
            .priority(5)
            .owner_label("")
            .auto_renew(AutoRenew::On)
            .max_hold(None)
            .min_hold(None)
            .drift_margin(Drift::DEFAULT)
            .warn_after(None);
        let base = terms(one.clone());
        assert_eq!(base.owner_label.as_deref(), Some("one"));
        assert_eq!(show(&base.with(LockOptions::new())), show(&base));
        assert_eq!(show(&base.with(other.clone())), show(&Terms::DEFAULT));
        assert_eq!(show(&base.with(other).with(one)), show(&base));
        let label = base.with(LockOptions::new().owner_label("x"));
        let with_label = Terms {
            owner_label: Some("x".into()),
            ..base
        };
        assert_eq!(show(&label), show(&with_label));
    }

    #[test]
    fn the_margin_is_a_share_and_a_fixed_part() {
        assert_eq!(Drift::DEFAULT.margin(10 * S), 102 * MS);
        assert_eq!(
            Drift::new(u32::MAX, Duration::MAX).margin(Duration::MAX),
            Duration::MAX
        );
    }
}
