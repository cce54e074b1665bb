use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Release, Released, Renew, RwLock, Signal, Watch,
};
use crate::capabilities::Capabilities;
use crate::diagnosis::Finding;
use crate::error::Result;

/// The trait that every backend implements. Four methods are required; the others have a default. A type that
/// has a part implements the part's trait too and returns itself: `fn renew(&self) -> Option<&dyn Renew> {
/// Some(self) }`.
#[async_trait]
pub trait Lock: Send + Sync + 'static {
    /// Returns what this backend claims beyond its parts (see [`capabilities_of`](super::capabilities_of)).
    /// Constant for its life.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the renewal part. Without it a lease ends with its ttl.
    fn renew(&self) -> Option<&dyn Renew> {
        None
    }

    /// Returns the part for downgrade and upgrade. Without it a lease keeps its mode.
    fn rwlock(&self) -> Option<&dyn RwLock> {
        None
    }

    /// Returns the fencing part. Without it grants have no token.
    fn fencing(&self) -> Option<&dyn Fencing> {
        None
    }

    /// Returns the part for changes, inspection and forced release. Without it locks cannot be inspected.
    fn watch(&self) -> Option<&dyn Watch> {
        None
    }

    /// Returns a stream of what happens to the session or connection that leases depend on, from this call
    /// on. Each call returns a stream of its own. The default is for a backend that has nothing to report:
    /// its stream stays pending.
    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    /// Requests the lock once. Never waits for another holder.
    ///
    /// With [`Queueing::Join`](super::Queueing::Join) and [`Capability::Queue`](crate::Capability::Queue), a
    /// request that cannot be granted now is queued, with a lease of its own ([`Acquire::queue_ttl`]).
    ///
    /// # Cancel safety
    /// Dropped, the request may be granted or queued, now or when a copy in transit arrives. The engine drops
    /// the future when its caller does, and at its time limit. It then abandons the key, or sends the same
    /// request again and gets its earlier grant.
    ///
    /// # Errors
    /// By the table in [`ErrorKind`](crate::ErrorKind). After `Unknown`, and when the future was dropped, the
    /// request may have taken effect, and the caller either sends it again or abandons it. An abandoned key
    /// fails with `Lost`.
    async fn attempt(&self, request: &Acquire) -> Result<Attempt>;

    /// Ends the lease of this key, and of this key only, and admits the next waiters.
    ///
    /// # Cancel safety
    /// Dropped, the lease may or may not have ended. The engine considers it over already, and its keeper
    /// repeats the release until it is answered or the lease has expired.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt). A lease that is gone is no error: [`Released::NotHeld`].
    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released>;

    /// Undoes requests whose outcome is not known or not wanted any more. It withdraws what is queued,
    /// releases what was granted, and leaves a tombstone against a late arrival. Returns one answer per key,
    /// in order.
    ///
    /// # Cancel safety
    /// Dropped, each key may or may not be undone. The engine's keeper abandons them again until each is
    /// answered, or until nothing of them can be left.
    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>>;

    /// Checks the store and its settings for an operator: the server and its version, whether it may lose or
    /// evict data, what takes over from it, and its clock. Sends a few requests, all of which only read. The
    /// default finds nothing.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt). A missing right to ask is a finding, not an error.
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Closes the connection. Later calls fail with `Closed`. It does not release leases, which the engine
    /// has done before. The default is for a backend without a connection.
    ///
    /// # Cancel safety
    /// Dropped, the connection may still be open; it is closed when the backend is dropped at the latest. The
    /// engine closes once, as its last action and with a time limit.
    ///
    /// # Errors
    /// Whatever prevents the connection from being closed in order. The engine ignores it.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
