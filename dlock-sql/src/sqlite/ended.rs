//! What is remembered of keys that hold nothing any more.
//!
//! In memory: whatever could still arrive under a key comes through the channel of this very task, and dies
//! with it.

use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::spi::{LeaseKey, Tombstones};

/// The keys that were abandoned, and those released lately. What is forgotten of the latter costs an exact
/// answer to a very late retry, and no safety.
pub(super) struct Ended {
    abandoned: Tombstones<LeaseKey>,
    released: Tombstones<LeaseKey>,
    /// Released in the transaction that is running.
    running: Vec<LeaseKey>,
}

impl Default for Ended {
    fn default() -> Self {
        Self {
            // A request can be late only inside this process, where it overtakes nothing: a minute is ample.
            abandoned: Tombstones::new(Duration::from_secs(60), 100_000),
            released: Tombstones::new(Duration::from_secs(60 * 60), 1024),
            running: Vec::new(),
        }
    }
}

impl Ended {
    pub(super) fn bury(&mut self, key: LeaseKey, now: Timestamp) {
        self.abandoned.bury(key, now);
    }

    pub(super) fn was_abandoned(&self, key: &LeaseKey) -> bool {
        self.abandoned.has(key)
    }

    /// Remembers that the key was released, for a retry of the release and against a late copy of its
    /// attempt.
    ///
    /// Until [`committed`](Self::committed) it holds for the running transaction only: a release whose commit
    /// fails has not happened, and its lease is there to be asked for and released again.
    pub(super) fn note_released(&mut self, key: LeaseKey) {
        self.running.push(key);
    }

    pub(super) fn was_released(&self, key: &LeaseKey) -> bool {
        self.released.has(key) || self.running.contains(key)
    }

    /// What the running transaction has noted is true from now on.
    pub(super) fn committed(&mut self) {
        let now = Timestamp::now();
        for key in self.running.drain(..) {
            self.released.bury(key, now);
        }
    }

    /// What the running transaction has noted did not happen.
    pub(super) fn failed(&mut self) {
        self.running.clear();
    }
}
