use async_trait::async_trait;

use super::{Grant, LeaseKey};
use crate::error::Result;
use crate::mode::Mode;

/// Changing the mode of a lease in place. The shared modes themselves belong to [`Acquire`](super::Acquire).
#[async_trait]
pub trait RwLock: Send + Sync {
    /// Turns a lease into another mode in one step, without anybody else in between.
    ///
    /// * Exclusive to shared ([`Capability::Downgrade`](crate::Capability::Downgrade)): always possible;
    ///   keeps the token; admits at once the waiters that are now compatible.
    /// * Shared to exclusive ([`Capability::Upgrade`](crate::Capability::Upgrade)): only while it is the only
    ///   holder; mints a new token. Otherwise `Busy`, or `WouldDeadlock` if an upgrade can never succeed
    ///   because waiting for the others would wait for this one. In both cases the shared lease stands. It
    ///   goes before queued waiters, which would otherwise wait for it and it for them.
    ///
    /// A conversion to the mode that the lease has already answers `Done`. Either way the lease's life starts
    /// anew, with its own ttl.
    ///
    /// # Cancel safety
    /// Dropped, the lease may be in either mode. The engine goes on with the weaker of the two, never
    /// upgrades a hold whose downgrade was not answered, and releases it by the same key.
    ///
    /// # Errors
    /// `Lost` if the lease is not held; `InvalidInput` if others hold or wait in another shared mode than
    /// `to`; otherwise as [`Lock::attempt`](super::Lock::attempt). `Unavailable`,
    /// `LimitReached`, `PermissionDenied`, `InvalidInput` and `Unsupported` say that *nothing* was converted
    /// and nothing will be: the engine believes in the mode of before. Whoever cannot tell, such as of a
    /// script that was refused something in its middle, answers `Unknown`.
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted>;
}

/// The answer to a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Converted {
    /// Done; the lease as it is now.
    Done(Grant),
    /// Others share it; the lease is as it was.
    Busy,
    /// Another holder was told `Busy` and has neither been converted nor ended since; the lease is as it was.
    WouldDeadlock,
}
