//! What is remembered of keys that hold nothing any more.
//!
//! In memory: whatever could still arrive under a key comes through the channel of this very task, and dies
//! with it.

use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::spi::{LeaseKey, Tombstones};

/// The keys that were abandoned, and those that were released. What is forgotten of the latter costs an exact
/// answer to a very late retry, and no safety.
pub(super) struct Ended {
    pub(super) abandoned: Tombstones<LeaseKey>,
    released: Tombstones<LeaseKey>,
    /// Released in the transaction that is running: a release whose commit fails has not happened, and its
    /// lease is there to be asked for and released again.
    pub(super) running: Vec<LeaseKey>,
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
    pub(super) fn was_released(&self, key: &LeaseKey) -> bool {
        self.released.has(key) || self.running.contains(key)
    }

    /// The running transaction has committed.
    pub(super) fn committed(&mut self) {
        let now = Timestamp::now();
        for key in self.running.drain(..) {
            self.released.bury(key, now);
        }
    }
}
