//! Tokens raised.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Fencing, LeaseKey, Raised};
use dlock_core::{Error, ErrorKind, FenceGate, Result, Strength, Token};

use crate::config::invalid;
use crate::lock::RedisLock;
use crate::reply::token;

#[async_trait]
impl Fencing for RedisLock {
    fn strength(&self) -> Strength {
        Strength::AcrossDataLoss {
            clock_skew: Duration::ZERO,
        }
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let named = |e: Error| e.with_name(&lease.name);
        if i64::try_from(to.get()).is_err() {
            return Err(named(invalid(format!(
                "Redis counts to {} and not to the token {to}",
                i64::MAX
            ))));
        }
        let c = &self.backend;
        let call = c.about(&c.scripts.raise, lease).arg(to.to_string());
        let (_, mut reply) = call.ask().await.map_err(named)?;
        let digits = reply.bytes().map_err(named)?;
        c.pushed(&lease.name, reply.pushed());
        match digits.as_slice() {
            b"" => Ok(Raised::NotHeld),
            digits => {
                let raised = token(digits).map_err(named)?;
                if let Some(replicas) = &c.replicas {
                    let confirmed = replicas.confirm(lease, Some(raised)).await;
                    // It may be raised, and may be forgotten.
                    confirmed.map_err(|e| {
                        let message =
                            "the token was raised, and the replicas did not acknowledge it: ask again";
                        named(Error::new(ErrorKind::Unknown, message).with_source(e))
                    })?;
                }
                Ok(Raised::Raised(raised))
            }
        }
    }
}
