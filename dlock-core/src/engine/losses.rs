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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::request_id::RequestId;

    fn key(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n))
    }

    #[test]
    fn the_latest_early_losses_are_remembered_and_bounded() {
        let mut losses = Losses::default();
        losses.note_early((0..10).map(key));
        losses.note_early((10..EARLY as u64 + 10).map(key));
        assert!(!losses.had_early(&key(9)));
        assert!(losses.had_early(&key(10)) && losses.had_early(&key(EARLY as u64 + 9)));
        losses.forget_early();
        assert!(!losses.had_early(&key(10)));
    }

    /// What is not remembered any more may have hit it.
    #[test]
    fn a_lot_hits_what_came_before_it_and_a_forgotten_one_all() {
        let mut losses = Losses::default();
        let even = || LostLeases::of(|key: &LeaseKey| key.id.sequence().is_multiple_of(2));
        assert!(!losses.had_since(0, &key(2)));
        for number in 1..=LOTS as u64 {
            losses.note_lot(number, even());
            assert!(losses.had_since(number - 1, &key(2)));
            assert!(!losses.had_since(number, &key(2)));
            assert!(!losses.had_since(0, &key(1)));
        }
        losses.note_lot(LOTS as u64 + 1, even());
        assert!(losses.had_since(0, &key(1)));
        assert!(!losses.had_since(1, &key(1)));
    }
}
