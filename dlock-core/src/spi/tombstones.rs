//! What was abandoned, for backends whose late messages can only come from this process.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::Timestamp;
use crate::request_id::RequestId;

/// For a backend: which requests were abandoned, so that an attempt of one that arrives late is refused.
///
/// It is kept in memory. That is enough where nothing overtakes on the way to the store: then what arrives
/// late is a call in this process, and ids are drawn by the engines of this process.
///
/// A tombstone stays for the time that [`new`](Self::new) is given, and of more than the given number the
/// oldest go first. Choose a time that no call on its way outlives: a minute behind a network. An attempt
/// that finds one answers `Error::lost(LossReason::Refused)`.
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
    /// In the order of their ends. One that was buried again is here twice, and goes with the later.
    order: VecDeque<(Timestamp, K)>,
}

impl<K: Clone + Eq + Hash> Tombstones<K> {
    /// Keeps each for so long, and no more than so many.
    pub fn new(keep: Duration, most: usize) -> Self {
        Self {
            keep,
            most,
            ends: HashMap::default(),
            order: VecDeque::new(),
        }
    }

    /// Remembers that this one was abandoned.
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

    /// How many are remembered.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether that one was abandoned.
    pub fn has(&self, key: &K) -> bool {
        self.ends.contains_key(key)
    }
}
