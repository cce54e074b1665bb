//! When a lease is renewed, and until when it may be held.

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Nature;
use crate::options::{AutoRenew, Terms};
use crate::spi::LeaseKey;
use crate::timestamp::{Timestamp, nanos};

/// Later than any time that is ever reached.
pub(super) const NEVER: u64 = u64::MAX;

/// Deadline = a time before the send + the granted life − the drift margin (I3).
pub(super) fn deadline_of(options: &Terms, counted_from: Timestamp, expires_in: Duration) -> Timestamp {
    counted_from + expires_in.saturating_sub(options.drift.margin(expires_in))
}

/// All leases of a session live as long as it, so a lease without auto-renewal need not end with the
/// session's next sign of life: the keeper follows the session for it until its ttl is over. Returns the
/// terms for the keeper, and that time.
pub(super) fn kept_by_session(
    options: Arc<Terms>,
    nature: Nature,
    counted_from: Timestamp,
) -> (Arc<Terms>, u64) {
    if nature != Nature::Session || options.auto_renew != AutoRenew::Off {
        return (options, NEVER);
    }
    let lapse_at = deadline_of(&options, counted_from, options.ttl).as_nanos();
    let mut kept = (*options).clone();
    kept.auto_renew = AutoRenew::On;
    (Arc::new(kept), lapse_at)
}

pub(super) fn max_hold_at(options: &Terms, acquired_at: Timestamp) -> Timestamp {
    options.max_hold.map_or(Timestamp::MAX, |d| acquired_at + d)
}

/// When to renew a lease that counts from `counted_from`; `NEVER` without auto-renewal.
///
/// If the engine chooses the period, it is shortened by a varying part of up to an eighth. Otherwise clients
/// that began at the same moment, as all do after a restart of the store, would renew at the same moment for
/// ever. Leases of one client that are renewed in one request count from one moment, and stay together.
pub(super) fn renew_at(
    options: &Terms,
    key: &LeaseKey,
    counted_from: Timestamp,
    expires_in: Duration,
) -> u64 {
    let Some(period) = options.renew_period(expires_in) else {
        return NEVER;
    };
    let sooner = match options.auto_renew {
        AutoRenew::On => {
            let part = scatter(key.id.client() as u64 ^ counted_from.as_nanos()) >> 32;
            Duration::from_nanos(((u128::from(nanos(period) / 8) * u128::from(part)) >> 32) as u64)
        }
        _ => Duration::ZERO,
    };
    (counted_from + (period - sooner)).as_nanos()
}

/// Turns related numbers into unrelated bits (splitmix64).
pub(super) fn scatter(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_early_by_up_to_an_eighth_of_a_period() {
        let name = crate::LockName::new("x").unwrap();
        let of = |client| LeaseKey::new(name.clone(), crate::request_id::RequestId::new(client, 1));
        let ttl = Duration::from_secs(24);
        let terms = |auto_renew| Terms {
            auto_renew,
            ..Terms::DEFAULT
        };
        let after = |terms: &Terms, client, second| {
            let from = Timestamp::ZERO + Duration::from_secs(second);
            Timestamp::from_nanos(renew_at(terms, &of(client), from, ttl)).since(from)
        };
        let on = terms(AutoRenew::On);
        let mut seen = std::collections::HashSet::new();
        for client in 0..10 {
            for second in 1..=10 {
                let period = after(&on, client, second);
                assert!(
                    (Duration::from_secs(7)..=Duration::from_secs(8)).contains(&period),
                    "{period:?}"
                );
                seen.insert(period);
            }
        }
        assert_eq!(seen.len(), 100);
        // A period that the user chose is not shortened.
        let every = terms(AutoRenew::Every(Duration::from_secs(5)));
        assert_eq!(after(&every, 1, 1), Duration::from_secs(5));
    }
}
