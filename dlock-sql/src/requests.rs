//! What every backend on rows asks of a request, before any I/O.

use std::time::Duration;

use dlock_core::spi::Acquire;
use dlock_core::{Capabilities, RequestId, Result};

use crate::failure::invalid;

/// The id of the row by which the changes of a name are counted, where that is a row beside its holders.
pub(crate) const RESERVED: RequestId = RequestId::new(u128::MAX, u64::MAX);

/// The request with its times in whole milliseconds.
///
/// # Errors
/// Those of [`Capabilities::check`]; `InvalidInput` for an id that is the backend's own.
pub(crate) fn check(capabilities: &Capabilities, request: &Acquire) -> Result<Acquire> {
    capabilities.check(request)?;
    if request.key.id == RESERVED {
        return Err(invalid("the largest of all request ids is the backend's own"));
    }
    let mut checked = request.clone();
    (checked.ttl, checked.queue_ttl) = (round_up(request.ttl), round_up(request.queue_ttl));
    Ok(checked)
}

/// The granularity of a ttl is a millisecond. What is longer than SQL can count in microseconds is as long as
/// that.
pub(crate) fn round_up(d: Duration) -> Duration {
    let millis = u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Duration::from_millis(millis.min(i64::MAX as u64 / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rounded_up_to_milliseconds() {
        for (nanos, rounded) in [(1, 1_000), (30_000_000, 30_000), (0, 0)] {
            assert_eq!(round_up(Duration::from_nanos(nanos)).as_micros(), rounded);
        }
        assert!(i64::try_from(round_up(Duration::MAX).as_micros()).is_ok());
    }
}
