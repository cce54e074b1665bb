//! A point on a clock that goes on counting while the machine is suspended.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A point in time on the machine's own monotonic clock, in nanoseconds since a fixed point such as boot. The
/// clock counts time in suspension where the system has such a clock.
///
/// After a laptop slept, its leases have expired; a clock that stops during suspension would not notice. It
/// is never a wall clock: setting the date changes nothing.
///
/// | system | clock | counts suspension |
/// |---|---|---|
/// | Linux, Android | `CLOCK_BOOTTIME` | yes |
/// | macOS, iOS and other Apple systems | `CLOCK_MONOTONIC`, which there is not what [`Instant`](std::time::Instant) reads | yes |
/// | Windows | [`Instant`](std::time::Instant), the performance counter | as that counter does; not promised here |
/// | any other | [`Instant`](std::time::Instant) | as that system's clock does; often not |
///
/// Where suspension is not counted, a guard that slept through the end of its lease counts as valid until its
/// next renewal is refused. Until then only the fence gate keeps its writes out.
///
/// Timestamps of different machines or boots cannot be compared; where the clock is an `Instant`, nor can
/// those of different processes. Resuming a *snapshot* of a virtual machine can turn any such clock back.
/// Only fencing helps against that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The earliest timestamp.
    pub const ZERO: Self = Self(0);
    /// The latest timestamp, for "never".
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time now on the real clock. Code that runs under a [`Runtime`](crate::Runtime) asks
    /// [`Runtime::now`](crate::Runtime::now) instead.
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    pub fn now() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        // Darwin's `CLOCK_MONOTONIC` goes on in sleep, Linux's does not.
        #[cfg(target_vendor = "apple")]
        let t = clock_gettime(ClockId::Monotonic);
        #[cfg(not(target_vendor = "apple"))]
        let t = clock_gettime(ClockId::Boottime);
        // The kernel never answers a negative time since boot.
        Self((t.tv_sec as u64) * 1_000_000_000 + t.tv_nsec as u64)
    }

    /// Returns the time now on the real clock. Code that runs under a [`Runtime`](crate::Runtime) asks
    /// [`Runtime::now`](crate::Runtime::now) instead.
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    pub fn now() -> Self {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        let origin = *ORIGIN.get_or_init(Instant::now);
        // One second ahead, so that a timestamp of now is never ZERO.
        Self(1_000_000_000 + u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Creates the timestamp `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from `self` to `later`, or zero if `later` is past.
    pub const fn until(self, later: Self) -> Duration {
        later.since(self)
    }

    /// Returns the timestamp that is `d` earlier, at least [`ZERO`](Self::ZERO).
    pub fn saturating_sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(d)))
    }
}

/// The nanoseconds of a duration, as many as there is room for.
pub(crate) fn nanos(d: Duration) -> u64 {
    let whole = d.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(u64::from(d.subsec_nanos()))
}

/// Saturates at [`Timestamp::MAX`]; no duration is too long.
impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(nanos(d)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} since boot", Duration::from_nanos(self.0))
    }
}
