//! What the store has said of leases whose grants were on their way to their waiters.

use std::collections::VecDeque;

use crate::spi::{LeaseKey, LostLeases};

/// How many early losses are remembered. A backend loses leases by the connection, and has few of those.
const EARLY: usize = 4096;

/// And how many losses by the lot. A grant from before the oldest of them is refused.
const LOTS: usize = 64;

/// How often the store has said something about leases by the lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) losses: u64,
    pub(super) doubts: u64,
}

/// Losses that a grant may be too late for. Under the lock of the engine's state.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Leases that were lost before anybody held them.
    early: VecDeque<LeaseKey>,
    /// What was lost by the lot, with the number of each: how many there were with it.
    lots: VecDeque<(u64, LostLeases)>,
}

impl Losses {
    pub(super) fn note_early(&mut self, keys: impl Iterator<Item = LeaseKey>) {
        self.early.extend(keys);
        let surplus = self.early.len().saturating_sub(EARLY);
        self.early.drain(..surplus);
    }

    pub(super) fn forget_early(&mut self) {
        self.early.clear();
    }

    pub(super) fn note_lot(&mut self, number: u64, what: LostLeases) {
        self.lots.push_back((number, what));
        if self.lots.len() > LOTS {
            self.lots.pop_front();
        }
    }

    pub(super) fn had_early(&self, key: &LeaseKey) -> bool {
        !self.early.is_empty() && self.early.contains(key)
    }

    /// Whether a lease was lost with others, by a loss after that many.
    pub(super) fn had_since(&self, losses: u64, key: &LeaseKey) -> bool {
        let oldest = self.lots.front().map_or(0, |(number, _)| *number);
        let mut later = self.lots.iter().filter(|(number, _)| *number > losses);
        oldest > losses + 1 || later.any(|(_, lot)| lot.contains(key))
    }
}
