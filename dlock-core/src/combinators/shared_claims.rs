//! The claims that several backends share.

use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::spi::{Lock, capabilities_of};

/// The claims that hold for whichever of the backends gets a request: the capabilities of all, the tightest
/// limit of any.
pub(super) fn shared_claims<'a>(
    name: &'static str,
    of: impl IntoIterator<Item = &'a dyn Lock>,
) -> Result<Capabilities> {
    claims_of_all(name, of.into_iter().map(capabilities_of))
}

fn claims_of_all(name: &'static str, of: impl IntoIterator<Item = Capabilities>) -> Result<Capabilities> {
    let bad = |message| Error::new(ErrorKind::InvalidInput, message);
    let mut of = of.into_iter();
    let mut all = of.next().ok_or_else(|| bad("at least one backend is needed"))?;
    all.backend = name;
    for one in of {
        if one.nature != all.nature {
            return Err(bad(
                "backends of leases and backends of sessions cannot be combined: use backends of one nature",
            ));
        }
        // Before the set is reduced: `without` also clears the strength.
        all.strength = all.strength.min(one.strength);
        all.max_owner_len = all.max_owner_len.min(one.max_owner_len);
        for capability in Capability::ALL {
            if !one.has(*capability) {
                all = all.without(*capability);
            }
        }
        all.min_ttl = all.min_ttl.max(one.min_ttl);
        all.max_ttl = all.max_ttl.min(one.max_ttl);
        all.ttl_granularity = common_multiple(all.ttl_granularity, one.ttl_granularity);
        all.max_name_len = all.max_name_len.min(one.max_name_len);
        all.max_held = tightest(all.max_held, one.max_held);
        all.max_waiters = tightest(all.max_waiters, one.max_waiters);
        all.name_hash_bits = tightest(all.name_hash_bits, one.name_hash_bits);
        all.clock_sensitive |= one.clock_sensitive;
    }
    if all.min_ttl > all.max_ttl {
        return Err(bad(
            "no ttl is accepted by all backends: the minimum of one is above the maximum of another",
        ));
    }
    Ok(all)
}

fn tightest<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Each store rounds a ttl up to its own multiple; only a common multiple is rounded by neither.
fn common_multiple(a: Duration, b: Duration) -> Duration {
    let (x, y) = (a.as_nanos().max(1), b.as_nanos().max(1));
    let (mut m, mut n) = (x, y);
    while n != 0 {
        (m, n) = (n, m % n);
    }
    let nanos = (x / m).saturating_mul(y);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Nature;
    use crate::token::Strength;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn combined_claims_are_the_intersection() {
        let mut a = Capabilities::new("a")
            .with(Capability::Renew)
            .with(Capability::Queue)
            .with_fencing(Strength::AcrossRestart)
            .with_owner_label(100)
            .with_ttl(10 * MS..=1000 * MS, 4 * MS);
        a.max_held = Some(7);
        let mut b = Capabilities::new("b")
            .with(Capability::Renew)
            .with_fencing(Strength::WhileStateSurvives)
            .with_owner_label(20)
            .with_ttl(20 * MS..=9000 * MS, 6 * MS)
            .with_max_name_len(2048);
        b.clock_sensitive = true;
        let all = claims_of_all("both", [a, b]).unwrap();
        assert_eq!(all.backend, "both");
        assert!(all.has(Capability::Renew) && !all.has(Capability::Queue));
        assert_eq!(all.strength, Some(Strength::WhileStateSurvives));
        assert_eq!(
            (all.min_ttl, all.max_ttl, all.ttl_granularity),
            (20 * MS, 1000 * MS, 12 * MS)
        );
        assert_eq!(
            (all.max_name_len, all.max_owner_len, all.max_held),
            (1024, 20, Some(7))
        );
        assert!(all.clock_sensitive);
    }

    #[test]
    fn an_unfenced_backend_unfences_all() {
        let fenced = Capabilities::new("a").with_fencing(Strength::AcrossRestart);
        let all = claims_of_all("both", [fenced.clone(), Capabilities::new("b")]).unwrap();
        assert!(!all.has(Capability::Fencing) && all.strength.is_none());
        let all = claims_of_all("both", [Capabilities::new("b"), fenced]).unwrap();
        assert!(!all.has(Capability::Fencing) && all.strength.is_none());
    }

    #[test]
    fn incompatible_backends_are_refused() {
        let lease = Capabilities::new("a").with_ttl(10 * MS..=20 * MS, MS);
        let session = Capabilities::new("b").with_nature(Nature::Session);
        let slow = Capabilities::new("c").with_ttl(30 * MS..=40 * MS, MS);
        for of in [vec![], vec![lease.clone(), session], vec![lease, slow]] {
            assert_eq!(
                claims_of_all("x", of).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
    }
}
