use async_trait::async_trait;

use super::LeaseKey;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::FenceGate;
use crate::token::{Strength, Token};

/// The part for fencing tokens: what their order survives, where they are checked, and how a quorum raises
/// them.
#[async_trait]
pub trait Fencing: Send + Sync {
    /// Returns what the order of the tokens survives. The default is what every backend with tokens promises.
    fn strength(&self) -> Strength {
        Strength::WhileStateSurvives
    }

    /// Returns the fence gate in this backend's own store, if it has one.
    fn gate(&self) -> Option<&dyn FenceGate> {
        None
    }

    /// Raises the token of a lease that is *still held*, and with it the store's counter for that name, to at
    /// least `to`. The default fails with `Unsupported`. A backend that overrides it claims
    /// [`Capability::Raise`](crate::Capability::Raise).
    ///
    /// A quorum needs this: after a majority has granted, it writes the largest token back to that majority,
    /// so that every later majority has a member that knows it.
    ///
    /// # Cancel safety
    /// Dropped, the token and the counter may or may not be raised, and are never lower than before. Raising
    /// again to the same token is harmless. The engine of a single store never raises.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt). A lease that is gone is no error: [`Raised::NotHeld`].
    async fn raise(&self, lease: &LeaseKey, _to: Token) -> Result<Raised> {
        Err(Error::new(ErrorKind::Unsupported, "tokens cannot be raised here").with_name(&lease.name))
    }
}

/// The answer to a raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Raised {
    /// The lease's token is now this: the larger of what it was and `to`.
    Raised(Token),
    /// The lease is not held any more. Nothing was changed.
    NotHeld,
}
