use std::sync::Arc;
use std::time::Duration;

use super::{LeaseKey, Wait};
use crate::mode::Mode;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// Whether a request that cannot be granted now joins the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Queueing {
    /// Does not join. Nothing is left in the store if the request is not granted.
    No,
    /// Joins the store's queue.
    Join,
}

/// A request for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Acquire {
    /// The lock, and the fresh id of this acquisition.
    pub key: LeaseKey,
    /// The mode that is asked for.
    pub mode: Mode,
    /// How long the lock stays taken after its holder has vanished. Within the declared range; rounded up to
    /// the granularity.
    pub ttl: Duration,
    /// What to do if the request cannot be granted now.
    pub queue: Queueing,
    /// How long the queue entry lives without renewal.
    pub queue_ttl: Duration,
    /// From 1 (served last) to 10 (served first); equal priorities are served in order of arrival. 5 by
    /// default. Anything else needs [`Capability::Priority`](crate::Capability::Priority).
    pub priority: u8,
    /// The label that `inspect` shows.
    pub owner: Option<Arc<str>>,
    /// Whether the caller will wait if the lock is not granted now. If so, a backend may answer
    /// [`Attempt::Held`] without asking its store, if that is the likely answer and the [`Wait`] reports at
    /// once if the lock is free. It may ignore this.
    pub waits: bool,
}

impl Acquire {
    /// The default priority.
    pub const DEFAULT_PRIORITY: u8 = 5;

    /// Creates an exclusive request that does not queue.
    pub fn new(key: LeaseKey, ttl: Duration) -> Self {
        Self {
            key,
            mode: Mode::Exclusive,
            ttl,
            queue: Queueing::No,
            queue_ttl: ttl,
            priority: Self::DEFAULT_PRIORITY,
            owner: None,
            waits: false,
        }
    }

    /// Sets the mode.
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Joins the queue, with an entry that lives for `queue_ttl` without renewal.
    pub fn with_queue(mut self, queue_ttl: Duration) -> Self {
        self.queue = Queueing::Join;
        self.queue_ttl = queue_ttl;
        self
    }

    /// Sets the priority.
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the owner label.
    pub fn with_owner(mut self, owner: Arc<str>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Says that the caller will wait if the lock is not granted now.
    pub fn with_waiting(mut self) -> Self {
        self.waits = true;
        self
    }
}

/// The answer to an attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt {
    /// The lock is held now.
    Granted(Grant),
    /// The request is queued in the store under its key. It stays there until it is granted, abandoned, or
    /// its queue lease ends.
    Queued(Wait),
    /// Somebody else holds the lock or is ahead in the queue. Nothing of this request is left in the store.
    Held(Wait),
}

/// A lease, as granted by the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The request that was granted.
    pub key: LeaseKey,
    /// The fencing token; `None` only without [`Capability::Fencing`](crate::Capability::Fencing).
    pub token: Option<Token>,
    /// A time on the client's clock at or before the moment from which the store counts `expires_in`: the
    /// send time of the request.
    pub counted_from: Timestamp,
    /// How long the store keeps the lease, from `counted_from`. For a recognised retry, what *remains*.
    pub expires_in: Duration,
    /// Whether the lease is a short claim window, which the first renewal turns into a full lease. The engine
    /// sends that renewal.
    pub provisional: bool,
}

impl Grant {
    /// Creates a full grant, which is not provisional.
    pub fn new(key: LeaseKey, token: Option<Token>, counted_from: Timestamp, expires_in: Duration) -> Self {
        Self {
            key,
            token,
            counted_from,
            expires_in,
            provisional: false,
        }
    }

    /// Marks the grant as a claim window that a renewal must confirm.
    pub fn provisional(mut self) -> Self {
        self.provisional = true;
        self
    }
}
