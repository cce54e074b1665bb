use std::time::Duration;

use async_trait::async_trait;

use super::{Grant, LeaseKey};
use crate::error::Error;
use crate::timestamp::Timestamp;

/// Extending leases and queue entries, many at once.
#[async_trait]
pub trait Renew: Send + Sync {
    /// Renews each item; one answer per item, in order. An item's failure is its own.
    ///
    /// * A live lease starts its ttl anew (never shorter than what was promised). A provisional grant is
    ///   confirmed. A lease that ran out is [`RenewOutcome::Gone`], even if nobody else came: somebody may
    ///   have come and gone.
    /// * A queue entry starts its `queue_ttl` anew and is *asked again*: what ran out unnoticed is taken back
    ///   first and the queue admitted, so the answer may be [`RenewOutcome::Granted`]. For this item the ttl
    ///   is the queue's. The entry never lives longer than that, for a dead waiter stands in the way until
    ///   then; a store that has to spare writes may leave it a little less. A queued request that was granted
    ///   before (the push was lost) answers that grant with its remaining life.
    ///
    /// Renewal names leases by their keys, never by owner: a renewer that outlived its guard cannot keep a
    /// successor's lease.
    ///
    /// A request is given a sixth of the shortest ttl in it, or more; what has no answer by then has failed,
    /// all of it. So a backend of several stores answers for those that it reached within an eighth, and
    /// those that it did not reach fail by themselves.
    ///
    /// # Cancel safety
    /// Dropped, each item may be renewed or not, and a queued request may be granted. The engine moves no
    /// deadline without an answer, and asks again under the same keys: an earlier grant is recognised.
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome>;
}

/// One thing to renew.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenewItem {
    /// Which.
    pub key: LeaseKey,
    /// A lease, or a queue entry.
    pub kind: RenewKind,
    /// The ttl that starts anew: of the lease, or of the queue entry.
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
