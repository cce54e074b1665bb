//! How a lock is acquired and held.

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::spi::Acquire;
use crate::timestamp::nanos;

/// Whether and how often a held lock is renewed automatically. For [`LockOptions::auto_renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AutoRenew {
    /// Renews after a third of the effective ttl, or up to an eighth of that sooner, so that clients do not
    /// renew in step.
    On,
    /// Never renews: the lock expires with its ttl unless [`Guard::renew`](crate::Guard::renew) is called. In
    /// a session store ([`Nature::Session`](crate::Nature::Session)) the session, and the hold with it, is
    /// kept alive until then.
    Off,
    /// Renews at this interval: more than zero, and at most half of the ttl.
    Every(Duration),
}

/// The drift margin: how much earlier than the store the client considers a lease expired.
///
/// It consists of a share of the lease, for clocks that run at different speeds, and of a fixed part, for
/// their resolution. A lease lock excludes others only while the two clocks drift apart by no more than this.
///
/// # Examples
/// ```
/// # use dlock_core as dlock;
/// use std::time::Duration;
/// use dlock::Drift;
/// let margin = Drift::DEFAULT.margin(Duration::from_secs(30));
/// assert_eq!(margin, Duration::from_millis(302));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// The share of the lease, in parts per million.
    pub ppm: u32,
    /// The fixed part, added to the share.
    pub fixed: Duration,
}

impl Drift {
    /// 1 % and 2 ms.
    pub const DEFAULT: Self = Self::new(10_000, Duration::from_millis(2));

    /// Creates a margin of `ppm` parts per million of the lease plus `fixed`.
    pub const fn new(ppm: u32, fixed: Duration) -> Self {
        Self { ppm, fixed }
    }

    /// Returns the margin of a lease of this length.
    pub fn margin(self, lease: Duration) -> Duration {
        let nanos = nanos(lease);
        let share = match nanos.checked_mul(u64::from(self.ppm)) {
            Some(millionths) => millionths / 1_000_000,
            // A lease of years needs wider numbers, which processors do not divide natively.
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

/// Options for how a lock is acquired and held.
///
/// A value is applied on top of what its handle has, first the client's defaults. Options that are not set
/// keep their value. The result is then checked against the backend's capabilities.
///
/// | option | unless set |
/// |---|---|
/// | [`ttl`](Self::ttl) | 30 s |
/// | [`wait_limit`](Self::wait_limit) | none: `acquire` waits as long as needed |
/// | [`priority`](Self::priority) | 5 |
/// | [`owner_label`](Self::owner_label) | none |
/// | [`auto_renew`](Self::auto_renew) | [`AutoRenew::On`] |
/// | [`max_hold`](Self::max_hold), [`min_hold`](Self::min_hold) | none |
/// | [`drift_margin`](Self::drift_margin) | [`Drift::DEFAULT`] |
/// | [`warn_after`](Self::warn_after) | none |
///
/// # Examples
/// ```
/// # use dlock_core as dlock;
/// use std::time::Duration;
/// use dlock::{AutoRenew, LockOptions};
/// let nightly = LockOptions::new()
///     .ttl(Duration::from_secs(60))
///     .wait_limit(Duration::from_secs(5))
///     .owner_label("nightly@web-3")
///     .max_hold(Duration::from_secs(3600));
/// // The same, without the two limits.
/// let by_hand = nightly.clone().wait_limit(None).max_hold(None);
/// # let _ = by_hand;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LockOptions {
    // `None` means not set. In a nested `Option`, the inner `None` removes a default.
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
    /// How much longer than its wait limit an acquire may take. At the limit, the store gets this long to
    /// confirm that the request is withdrawn. If it does, the error is `Timeout`; if it does not answer, the
    /// error is `Unknown`.
    ///
    /// Longer than a round trip around the world, and than a commit to a slow disk.
    pub const WITHDRAWAL: Duration = Duration::from_millis(250);

    /// Creates options of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long the lock stays taken after its holder has vanished. Must be within
    /// [`Capabilities::min_ttl`] and [`max_ttl`](Capabilities::max_ttl).
    ///
    /// A holder that crashes delays the others by up to this. A holder that is paused for longer loses the
    /// lock.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long [`acquire`](crate::Lock::acquire) waits at most, plus up to
    /// [`WITHDRAWAL`](Self::WITHDRAWAL) if the store does not answer. With zero it tries once. With `None` it
    /// waits as long as needed.
    pub fn wait_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.wait_limit = Some(limit.into());
        self
    }

    /// Sets the priority among waiters, from 1 (served last) to 10 (served first). Equal priorities are
    /// served in order of arrival. Anything but 5 needs [`Capability::Priority`].
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets a label that [`inspect`](crate::Client::inspect) shows to operators. It is no identity: two
    /// holders with the same label exclude one another. An empty label removes it. Needs
    /// [`Capability::OwnerLabel`]; at most [`Capabilities::max_owner_len`] bytes.
    pub fn owner_label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.owner_label = Some(label.into());
        self
    }

    /// Sets whether and how often the lock is renewed automatically.
    pub fn auto_renew(mut self, auto_renew: AutoRenew) -> Self {
        self.auto_renew = Some(auto_renew);
        self
    }

    /// Sets the longest time that one hold may last, renewals included. When it is over, the lock is lost
    /// with reason `MaxHold` and released. Must be more than zero. With `None` a hold lasts for as long as it
    /// is renewed.
    pub fn max_hold(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.max_hold = Some(limit.into());
        self
    }

    /// Sets the shortest time that the name stays taken. After an earlier release it stays taken until this
    /// long after the acquisition.
    ///
    /// This keeps a job that finished quickly from running again on a machine whose clock is slightly behind.
    /// At most the ttl, and the maximum hold. With `None` the name is free on release. Needs
    /// [`Capability::MinimumHold`].
    pub fn min_hold(mut self, at_least: impl Into<Option<Duration>>) -> Self {
        self.min_hold = Some(at_least.into());
        self
    }

    /// Sets how much earlier than the store the client considers the lease expired. The margin must be
    /// shorter than the ttl.
    pub fn drift_margin(mut self, drift: Drift) -> Self {
        self.drift = Some(drift);
        self
    }

    /// Emits [`GuardEvent::HeldLong`](crate::GuardEvent::HeldLong) each time that the lock has been held for
    /// another `held_for`. Must be more than zero. With `None` it never does.
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
                "the ttl {:?} must be longer than its drift margin {:?}",
                self.ttl,
                self.drift.margin(self.ttl)
            ));
        }
        if let AutoRenew::Every(period) = self.auto_renew
            && (period.is_zero() || period > self.ttl / 2)
        {
            return invalid(format!(
                "the renewal period {period:?} must be more than zero and at most half of the ttl {:?}",
                self.ttl
            ));
        }
        caps.check_priority(self.priority)?;
        if self.max_hold.is_some_and(|d| d.is_zero()) {
            return invalid("`max_hold` must be more than zero".to_owned());
        }
        if self.warn_after.is_some_and(|d| d.is_zero()) {
            return invalid("`warn_after` must be more than zero".to_owned());
        }
        if let Some(min_hold) = self.min_hold {
            if min_hold > self.ttl {
                return invalid(format!(
                    "the minimum hold {min_hold:?} must not be longer than the ttl {:?}",
                    self.ttl
                ));
            }
            if self.max_hold.is_some_and(|max| max < min_hold) {
                return invalid("the minimum hold must not be longer than the maximum hold".to_owned());
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
    fn invalid_and_unsupported_options_are_refused() {
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
    fn unset_options_are_inherited() {
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
