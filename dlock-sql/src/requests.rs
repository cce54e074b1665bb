//! What every backend on rows asks of a request, before any I/O.

use std::time::Duration;

use dlock_core::spi::{Acquire, RenewItem, RenewKind, RenewOutcome};
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

/// The outcomes of items, by their numbers.
pub(crate) type Outcomes = Vec<(usize, Result<RenewOutcome>)>;

/// The items of a renewal with their times in whole milliseconds. One with a ttl out of range is its own
/// failure, found before anything is asked.
pub(crate) fn split(capabilities: &Capabilities, items: &[RenewItem]) -> (Vec<(usize, RenewItem)>, Outcomes) {
    let (mut good, mut outcomes) = (Vec::with_capacity(items.len()), Outcomes::new());
    for (n, item) in items.iter().enumerate() {
        let checked = match item.kind {
            RenewKind::Lease => capabilities.check_ttl(item.ttl),
            _ => Ok(()),
        };
        let mut item = item.clone();
        item.ttl = round_up(item.ttl);
        match checked {
            Ok(()) => good.push((n, item)),
            Err(e) => outcomes.push((n, Err(e))),
        }
    }
    (good, outcomes)
}

/// The answer to a renewal of those items.
pub(crate) fn in_order(items: &[RenewItem], mut outcomes: Outcomes) -> Vec<RenewOutcome> {
    outcomes.sort_by_key(|(n, _)| *n);
    let named = |((_, outcome), item): ((usize, Result<_>), &RenewItem)| {
        outcome.unwrap_or_else(|e| RenewOutcome::Failed(e.with_name(&item.key.name)))
    };
    outcomes.into_iter().zip(items).map(named).collect()
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
