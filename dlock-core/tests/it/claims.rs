//! What a backend claims, and the parts that it hands out for it.

use std::sync::Arc;

use async_trait::async_trait;
use dlock_core::spi::{self, Abandoned, Acquire, Attempt, LeaseKey, Release, Released, Wait};
use dlock_core::{Capabilities, Capability, Client, ErrorKind, Result};

use crate::world::*;

/// A backend that hands out no part.
struct Bare(Capabilities);

#[async_trait]
impl spi::Lock for Bare {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    async fn attempt(&self, _: &Acquire) -> Result<Attempt> {
        Ok(Attempt::Held(Wait::default()))
    }

    async fn release(&self, _: &LeaseKey, _: Release) -> Result<Released> {
        Ok(Released::NotHeld)
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        requests.iter().map(|_| Ok(Abandoned::Nothing)).collect()
    }
}

#[test]
fn a_claim_without_its_part_is_refused() {
    use Capability::{Downgrade, Fencing, ForceRelease, Gate, Inspect, Queue, Raise, Renew, Upgrade, Watch};
    simulate(|w| async move {
        let build = |caps| Client::builder(Arc::new(Bare(caps)), w.runtime.clone()).build();
        for claimed in [
            Renew,
            Queue,
            Downgrade,
            Upgrade,
            Fencing,
            Raise,
            Gate,
            Watch,
            Inspect,
            ForceRelease,
        ] {
            let refused = build(Capabilities::new("bare").with(claimed)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains(&format!("{claimed:?}")), "{refused}");
        }
        build(Capabilities::new("bare")).unwrap().close().await.unwrap();
    });
}
