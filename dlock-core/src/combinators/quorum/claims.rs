//! What a quorum of given members can claim.

use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::{Capabilities, Capability};
use crate::combinators::shared_claims::shared_claims;
use crate::error::{Error, ErrorKind, Result};
use crate::spi::Lock;
use crate::token::Strength;

/// A grant takes two exchanges with the members, whose time counts against the ttl.
pub(super) const MIN_TTL: Duration = Duration::from_millis(50);

/// What no quorum can do, whatever its members can. The module's documentation says why.
const NEVER: [Capability; 9] = [
    Capability::Permits,
    Capability::Queue,
    Capability::Priority,
    Capability::Gate,
    Capability::Watch,
    Capability::Inspect,
    Capability::ForceRelease,
    Capability::List,
    Capability::Upgrade,
];

pub(super) fn claims(members: &[Arc<dyn Lock>]) -> Result<Capabilities> {
    let mut all = shared_claims("quorum", members.iter().map(|member| &**member))?;
    for capability in NEVER {
        all = all.without(capability);
    }
    match all.has(Capability::Raise) {
        true => all.strength = all.strength.min(Some(Strength::AcrossRestart)),
        false => all = all.without(Capability::Fencing),
    }
    // A quorum is no member of another one.
    all = all.without(Capability::Raise);
    all.max_waiters = None;
    all.min_ttl = rounded_up(all.min_ttl.max(MIN_TTL), all.ttl_granularity);
    if all.min_ttl > all.max_ttl {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "the members must accept a ttl of at least {MIN_TTL:?}, which a quorum needs for its two \
                    exchanges"
            ),
        ));
    }
    Ok(all)
}

fn rounded_up(ttl: Duration, granularity: Duration) -> Duration {
    let grain = granularity.as_nanos().max(1);
    let nanos = ttl.as_nanos().div_ceil(grain).saturating_mul(grain);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_what_all_stores_can_keep() {
        let ms = Duration::from_millis;
        assert_eq!(rounded_up(ms(50), ms(1)), ms(50));
        assert_eq!(rounded_up(ms(50), ms(40)), ms(80));
        assert_eq!(rounded_up(ms(50), Duration::ZERO), ms(50));
    }
}
