//! Abandoned requests, for backends whose late messages can only come from this process.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::Timestamp;
use crate::request_id::RequestId;

/// For a backend: remembers which requests were abandoned, so that an attempt of one that arrives late is
/// refused.
///
/// It is kept in memory. That is enough if nothing can overtake on the way to the store: then a late arrival
/// is a call in this process, whose engines drew the ids.
///
/// A tombstone is kept for the time given to [`new`](Self::new). Beyond the given number, the oldest go
/// first. Choose a time that no call in transit outlives, such as a minute for a store behind a network. An
/// attempt that finds a tombstone fails with `Error::lost(LossReason::Refused)`: nobody waits for it.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::Timestamp;
/// use dlock_core::spi::Tombstones;
/// use dlock_core::RequestId;
///
/// let mut abandoned = Tombstones::new(Duration::from_secs(60), 1 << 14);
/// let (id, now) = (RequestId::new(1, 7), Timestamp::ZERO);
/// abandoned.bury(id, now);
/// assert!(abandoned.has(&id));
/// ```
#[derive(Debug)]
pub struct Tombstones<K = RequestId> {
    keep: Duration,
    most: usize,
    ends: HashMap<K, Timestamp, RandomState>,
    /// In the order of their ends. A request that was buried again is here twice, and is removed with the
    /// later one.
    order: VecDeque<(Timestamp, K)>,
}

impl<K: Clone + Eq + Hash> Tombstones<K> {
    /// Creates tombstones that are kept for `keep`, at most `most` of them.
    pub fn new(keep: Duration, most: usize) -> Self {
        Self {
            keep,
            most,
            ends: HashMap::default(),
            order: VecDeque::new(),
        }
    }

    /// Records that a request was abandoned.
    pub fn bury(&mut self, key: K, now: Timestamp) {
        let end = now + self.keep;
        if self.ends.insert(key.clone(), end) == Some(end) {
            return;
        }
        self.order.push_back((end, key));
        while let Some((end, _)) = self.order.front()
            && (*end <= now || self.order.len() > self.most)
            && let Some((end, key)) = self.order.pop_front()
        {
            if self.ends.get(&key) == Some(&end) {
                self.ends.remove(&key);
            }
        }
    }

    /// The number of tombstones.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether a request was abandoned.
    pub fn has(&self, key: &K) -> bool {
        self.ends.contains_key(key)
    }
}
