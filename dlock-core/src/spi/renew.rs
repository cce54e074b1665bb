use std::time::Duration;

use async_trait::async_trait;

use super::{Grant, LeaseKey};
use crate::error::Error;
use crate::timestamp::Timestamp;

/// The part for renewing leases and queue entries, many at once.
#[async_trait]
pub trait Renew: Send + Sync {
    /// Renews each item. Returns one answer per item, in order. The failure of one item does not affect the
    /// others.
    ///
    /// * A live lease starts its ttl anew, and never gets shorter than what was promised. A provisional grant
    ///   is confirmed. A lease that has expired is [`RenewOutcome::Gone`], even if nobody else holds the
    ///   lock: somebody may have come and gone.
    /// * A queue entry starts its `queue_ttl` anew and *asks again*: expired holders are removed first and
    ///   the queue is admitted, so the answer may be [`RenewOutcome::Granted`]. For such an item, `ttl` is
    ///   that of the queue entry. The entry never lives longer than that, since a dead waiter blocks the
    ///   queue until then; a store that has to save writes may keep it for a little less. A queued request
    ///   that was granted before, with its push lost, gets that grant with its remaining life.
    ///
    /// Leases are renewed by their keys, never by owner, so a renewer that outlived its guard cannot keep a
    /// successor's lease alive.
    ///
    /// The engine gives a call at least a sixth of the shortest ttl in it. After that all items have failed.
    /// So a backend over several stores answers within an eighth for those that it reached, and the others
    /// fail alone.
    ///
    /// # Cancel safety
    /// Dropped, each item may or may not be renewed, and a queued request may be granted. The engine moves no
    /// deadline without an answer, and asks again under the same keys: an earlier grant is recognised.
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome>;
}

/// One lease or queue entry to renew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenewItem {
    /// The lease or queue entry.
    pub key: LeaseKey,
    /// A lease, or a queue entry.
    pub kind: RenewKind,
    /// The ttl that starts anew, of the lease or of the queue entry.
    pub ttl: Duration,
}

impl RenewItem {
    /// Renews a lease.
    pub fn lease(key: LeaseKey, ttl: Duration) -> Self {
        Self {
            key,
            kind: RenewKind::Lease,
            ttl,
        }
    }

    /// Renews a queue entry and asks again.
    pub fn queued(key: LeaseKey, queue_ttl: Duration) -> Self {
        Self {
            key,
            kind: RenewKind::Queued,
            ttl: queue_ttl,
        }
    }
}

/// What is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenewKind {
    /// A lease.
    Lease,
    /// A queue entry.
    Queued,
}

/// The answer for one item.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RenewOutcome {
    /// The lease lives on.
    Renewed(Renewal),
    /// The queued request is granted.
    Granted(Grant),
    /// The request is still queued.
    Queued {
        /// When asking again pays at the latest.
        recheck_in: Option<Duration>,
        /// How many are ahead, where the store says so for free.
        ahead: Option<u32>,
    },
    /// There is no such lease or queue entry any more.
    Gone,
    /// It could not be done, or it is not known whether it was.
    Failed(Error),
}

/// A renewed life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// As in [`Grant::counted_from`].
    pub counted_from: Timestamp,
    /// As in [`Grant::expires_in`].
    pub expires_in: Duration,
}

impl Renewal {
    /// A life of that length from that time.
    pub fn new(counted_from: Timestamp, expires_in: Duration) -> Self {
        Self {
            counted_from,
            expires_in,
        }
    }
}
