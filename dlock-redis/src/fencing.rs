//! Raising tokens.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Fencing, LeaseKey, Raised, Renewal};
use dlock_core::{Error, ErrorKind, FenceGate, Result, Strength, Token};

use crate::failure::invalid;
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
        if i64::try_from(to.get()).is_err() {
            return Err(invalid(format!(
                "Redis counts tokens up to {}, not to {to}",
                i64::MAX
            )));
        }
        let c = &self.backend;
        let mut call = c.about(&c.scripts.raise, lease).arg(to.to_string());
        let (_, mut reply) = call.ask().await?;
        c.pushed(&lease.name, reply.pushed());
        let digits = reply.bytes()?;
        if digits.is_empty() {
            return Ok(Raised::NotHeld);
        }
        let raised = token(&digits)?;
        // It may be raised, and may be forgotten.
        let unheard = "the token was raised, and the replicas did not acknowledge it: ask again";
        self.acknowledged(lease, Some(raised), unheard).await?;
        Ok(Raised::Raised(raised))
    }
}

impl RedisLock {
    /// What is left of a lease of which something was changed, where replicas have to acknowledge that.
    ///
    /// # Errors
    /// `Unknown` if they did not: it is done all the same, and asking again settles it.
    pub(crate) async fn acknowledged(
        &self,
        lease: &LeaseKey,
        token: Option<Token>,
        unheard: &'static str,
    ) -> Result<Option<Renewal>> {
        let Some(replicas) = &self.backend.replicas else {
            return Ok(None);
        };
        let confirmed = replicas.confirm(lease, token).await.map(Some);
        confirmed.map_err(|e| Error::new(ErrorKind::Unknown, unheard).with_source(e))
    }
}
