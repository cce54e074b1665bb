use async_trait::async_trait;

use super::{Grant, LeaseKey};
use crate::error::Result;
use crate::mode::Mode;

/// The part for changing the mode of a lease in place. The shared modes themselves belong to
/// [`Acquire`](super::Acquire).
#[async_trait]
pub trait RwLock: Send + Sync {
    /// Converts a lease to another mode in one step, with nobody else in between.
    ///
    /// * Exclusive to shared ([`Capability::Downgrade`](crate::Capability::Downgrade)): always possible. It
    ///   keeps the token, and admits the waiters that are compatible now.
    /// * Shared to exclusive ([`Capability::Upgrade`](crate::Capability::Upgrade)): possible only for the
    ///   sole holder. It mints a new token. Otherwise the answer is `Busy`, or `WouldDeadlock` if another
    ///   holder is upgrading too and each would wait for the other; the shared lease is unchanged then. An
    ///   upgrade goes before queued waiters, since otherwise each would wait for the other.
    ///
    /// Converting a lease to the mode that it has answers `Done`. In every case of `Done` the lease starts
    /// its own ttl anew.
    ///
    /// # Cancel safety
    /// Dropped, the lease may be in either mode. The engine continues with the weaker of the two, never
    /// upgrades a hold whose downgrade was not answered, and releases it by the same key.
    ///
    /// # Errors
    /// `Lost` if the lease is not held; `InvalidInput` if others hold or wait in another shared mode than
    /// `to`; otherwise as [`Lock::attempt`](super::Lock::attempt). `Unavailable`, `LimitReached`,
    /// `PermissionDenied`, `InvalidInput` and `Unsupported` mean that *nothing* was or will be converted: the
    /// engine keeps the previous mode. If that is not certain, as when a script failed half-way, the error is
    /// `Unknown`.
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted>;
}

/// The answer to a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Converted {
    /// The conversion is done. The lease as it is now.
    Done(Grant),
    /// Others share the lock. The lease is unchanged.
    Busy,
    /// Another holder was answered `Busy` and has neither been converted nor ended since. The lease is
    /// unchanged.
    WouldDeadlock,
}
