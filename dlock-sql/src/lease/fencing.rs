//! Raising tokens.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Fencing, LeaseKey, Raised};
use dlock_core::{FenceGate, Result, Strength, Token};

use super::connection::again;
use super::dialect::Dialect;
use super::lock::{Lease, named};
use crate::gate::check_token;

#[async_trait]
impl<D: Dialect> Fencing for Lease<D> {
    /// Tokens are never less than the server's clock, so they go on growing where a backup was put back or a
    /// standby lost the last commits, as far as that clock does not stand behind.
    fn strength(&self) -> Strength {
        Strength::AcrossDataLoss {
            clock_skew: Duration::ZERO,
        }
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        named(&lease.name, check_token(to))?;
        named(&lease.name, again(|| D::raise(&self.db, lease, to)).await.0)
    }
}
