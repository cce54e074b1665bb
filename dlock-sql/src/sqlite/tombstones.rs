//! What is remembered of keys that hold nothing any more.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::spi::LeaseKey;

/// A request can be late only inside this process, where it overtakes nothing: a minute is ample.
const TOMBSTONE: Duration = Duration::from_secs(60);
const MAX_TOMBSTONES: usize = 100_000;
const RELEASED: usize = 1024;

/// The keys that were abandoned, and those released lately. Kept in memory: whatever could still arrive under
/// a key comes through the channel of this very task, and dies with it.
#[derive(Default)]
pub(super) struct Tombstones {
    keys: HashMap<LeaseKey, Timestamp>,
    order: VecDeque<(Timestamp, LeaseKey)>,
    /// One slot per remainder of the sequence. What is overwritten is forgotten: that costs an exact answer
    /// to a very late retry, and no safety.
    released: Vec<Option<LeaseKey>>,
    /// Released in the transaction that is running.
    running: Vec<LeaseKey>,
}

impl Tombstones {
    pub(super) fn bury(&mut self, key: LeaseKey, now: Timestamp) {
        let until = now + TOMBSTONE;
        self.keys.insert(key.clone(), until);
        self.order.push_back((until, key));
        while self
            .order
            .front()
            .is_some_and(|(t, _)| *t <= now || self.order.len() > MAX_TOMBSTONES)
        {
            if let Some((t, key)) = self.order.pop_front()
                && self.keys.get(&key) == Some(&t)
            {
                self.keys.remove(&key);
            }
        }
    }

    /// Whether that key was abandoned.
    pub(super) fn has(&self, key: &LeaseKey) -> bool {
        self.keys.contains_key(key)
    }

    fn slot(key: &LeaseKey) -> usize {
        (key.id.sequence() ^ key.id.client() as u64) as usize % RELEASED
    }

    /// Remembers that the key was released, for a retry of the release and against a late copy of its
    /// attempt.
    ///
    /// Until [`committed`](Self::committed) it holds for the running transaction only: a release whose commit
    /// fails has not happened, and its lease is there to be asked for and released again.
    pub(super) fn note_released(&mut self, key: LeaseKey) {
        self.running.push(key);
    }

    /// What the running transaction has noted is true from now on.
    pub(super) fn committed(&mut self) {
        for key in self.running.drain(..) {
            self.released.resize(RELEASED, None);
            let slot = Self::slot(&key);
            self.released[slot] = Some(key);
        }
    }

    /// What the running transaction has noted did not happen.
    pub(super) fn failed(&mut self) {
        self.running.clear();
    }

    pub(super) fn was_released(&self, key: &LeaseKey) -> bool {
        let slot = self.released.get(Self::slot(key));
        slot.is_some_and(|r| r.as_ref() == Some(key)) || self.running.contains(key)
    }
}
