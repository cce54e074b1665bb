use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Release, Released, Renew, RwLock, Signal, Watch,
};
use crate::capabilities::Capabilities;
use crate::diagnosis::Finding;
use crate::error::Result;

/// The heart of a backend. Four methods have to be written; the others have a default. A type that has parts
/// implements them itself: `fn renew(&self) -> Option<&dyn Renew> { Some(self) }`.
#[async_trait]
pub trait Lock: Send + Sync + 'static {
    /// What this backend claims beyond its parts (see [`capabilities_of`](super::capabilities_of)). Constant
    /// for its life.
    fn capabilities(&self) -> &Capabilities;

    /// Renewal. Without it a lease ends with its ttl.
    fn renew(&self) -> Option<&dyn Renew> {
        None
    }

    /// Downgrade and upgrade. Without it a lease stays in its mode.
    fn rwlock(&self) -> Option<&dyn RwLock> {
        None
    }

    /// Fencing tokens. Without it grants carry none.
    fn fencing(&self) -> Option<&dyn Fencing> {
        None
    }

    /// The stream of changes, inspection, and forced release. Without it nobody can look at a lock.
    fn watch(&self) -> Option<&dyn Watch> {
        None
    }

    /// What happens to the session or connection that leases depend on. Each call gives a stream of its own;
    /// it starts with what happens after the call. The default is for a backend with nothing to tell: it
    /// stays pending.
    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    /// Asks for the lock, once. Never waits for another holder.
    ///
    /// With [`Queueing::Join`](super::Queueing::Join) and [`Capability::Queue`](crate::Capability::Queue), a
    /// request that cannot be granted now is queued with a lease of its own ([`Acquire::queue_ttl`]).
    ///
    /// # Cancel safety
    /// Dropped, the request may be granted or queued, now or when a copy that is on its way arrives. The
    /// engine drops it when its caller does and at its time limit; it then abandons the key, or sends the
    /// same request again and is told of its own earlier grant.
    ///
    /// # Errors
    /// By the table in [`ErrorKind`](crate::ErrorKind). After `Unknown` (or when the future was dropped) the
    /// request may have taken effect, and the caller either sends it again or abandons it. An abandoned key
    /// answers `Lost`.
    async fn attempt(&self, request: &Acquire) -> Result<Attempt>;

    /// Ends the lease of that key, and of that key only, and admits whoever is next.
    ///
    /// # Cancel safety
    /// Dropped, the lease may have ended or not. The engine has stopped believing in it before, and its
    /// keeper sends the release again until it is answered or the lease has lapsed.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt). A lease that is gone is no error: [`Released::NotHeld`].
    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released>;

    /// Undoes requests of which the outcome is not known or not wanted any more: withdraws what is queued,
    /// releases what was granted, and leaves a tombstone against a late arrival. One answer per key, in
    /// order.
    ///
    /// # Cancel safety
    /// Dropped, each of the keys may be undone or not. The engine's keeper abandons them again until each is
    /// answered, or until nothing of them can be left.
    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>>;

    /// What the store is, and whether its settings suit locks: the server and its version, whether it forgets
    /// or throws away what it was told, what takes over from it, and its clock. For operators; a handful of
    /// requests that read. The default has found nothing.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt). What may not be asked is a finding and no error.
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Closes the connection. Later calls answer `Closed`. Leases are not released by this, the engine has
    /// done that. The default is for a backend that has no connection.
    ///
    /// # Cancel safety
    /// Dropped, the connection may be open yet; it is closed at the latest when the backend is dropped. The
    /// engine closes once, as the last thing that it does, and gives that its time limit.
    ///
    /// # Errors
    /// Whatever keeps the connection from being closed in order. The engine tells nobody.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
