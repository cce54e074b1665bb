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
    /// Leaves nothing behind when it is not granted.
    No,
    /// Waits in the store's queue.
    Join,
}

/// A request for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Acquire {
    /// Which lock, and the fresh id of this acquisition.
    pub key: LeaseKey,
    /// In which mode.
    pub mode: Mode,
    /// "Free at most this long after I vanish." Within the declared range; rounded up to the granularity.
    pub ttl: Duration,
    /// What to do when it cannot be granted now.
    pub queue: Queueing,
    /// How long the queue entry lives without being renewed.
    pub queue_ttl: Duration,
    /// 1 (last) to 10 (first) in the queue; ties by arrival. 5 unless asked for. Other than 5 needs
    /// [`Capability::Priority`](crate::Capability::Priority).
    pub priority: u8,
    /// Shown by `inspect`.
    pub owner: Option<Arc<str>>,
    /// Whoever asks waits for it if it is not granted now. A backend may then answer [`Attempt::Held`]
    /// without having asked its store, where that is what it would most likely hear, and its [`Wait`] tells
    /// at once that it is free if it is. It may as well take no notice.
    pub waits: bool,
}

impl Acquire {
    /// The priority of a request that does not ask for one.
    pub const DEFAULT_PRIORITY: u8 = 5;

    /// An exclusive request that does not queue.
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

    /// Asks in that mode.
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Joins the queue with an entry that lives that long without renewal.
    pub fn with_queue(mut self, queue_ttl: Duration) -> Self {
        self.queue = Queueing::Join;
        self.queue_ttl = queue_ttl;
        self
    }

    /// Asks with that priority.
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Labels the lease.
    pub fn with_owner(mut self, owner: Arc<str>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Tells that whoever asks waits for it.
    pub fn that_waits(mut self) -> Self {
        self.waits = true;
        self
    }
}

/// The answer to one attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt {
    /// It is held now.
    Granted(Grant),
    /// It is in the store's queue under its key, and stays there until it is granted, abandoned, or its queue
    /// lease ends.
    Queued(Wait),
    /// Somebody else holds it, or waits before us; nothing of this request is left in the store.
    Held(Wait),
}

/// A lease as the store gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Of which request.
    pub key: LeaseKey,
    /// The fencing token; `None` only without [`Capability::Fencing`](crate::Capability::Fencing).
    pub token: Option<Token>,
    /// A time on the client's clock that is not after the store began to count `expires_in`: the send time of
    /// the request.
    pub counted_from: Timestamp,
    /// How long the store keeps the lease, from `counted_from`. For a recognised retry this is what
    /// *remains*.
    pub expires_in: Duration,
    /// The lease is a short claim window that the first renewal turns into a full one. The engine does that.
    pub provisional: bool,
}

impl Grant {
    /// A full (not provisional) grant.
    pub fn new(key: LeaseKey, token: Option<Token>, counted_from: Timestamp, expires_in: Duration) -> Self {
        Self {
            key,
            token,
            counted_from,
            expires_in,
            provisional: false,
        }
    }

    /// Marks it as a claim window that must be confirmed by a renewal.
    pub fn provisional(mut self) -> Self {
        self.provisional = true;
        self
    }
}
