//! Stretches of time as numbers.

use std::time::Duration;

/// Its nanoseconds, as many as there is room for.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
