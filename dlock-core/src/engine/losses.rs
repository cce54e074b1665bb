//! What the store has reported about leases whose grants were in transit.

use std::collections::VecDeque;

use crate::spi::{LeaseKey, LostLeases};

/// How many early losses are remembered. A backend loses leases by connection, and has few connections.
const EARLY: usize = 4096;

/// How many mass losses are remembered. A grant from before the oldest of them is refused.
const LOTS: usize = 64;

/// The numbers of mass losses and doubts that the store has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) losses: u64,
    pub(super) doubts: u64,
}

/// Losses that a grant in transit may have been hit by. Under the mutex of the engine's state.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Leases that were lost before they were held.
    early: VecDeque<LeaseKey>,
    /// Mass losses, each with its number.
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

    pub(super) fn note_mass_loss(&mut self, number: u64, what: LostLeases) {
        self.lots.push_back((number, what));
        if self.lots.len() > LOTS {
            self.lots.pop_front();
        }
    }

    pub(super) fn hit_early(&self, key: &LeaseKey) -> bool {
        !self.early.is_empty() && self.early.contains(key)
    }

    /// Whether a lease was hit by a mass loss after the first `losses`.
    pub(super) fn hit_since(&self, losses: u64, key: &LeaseKey) -> bool {
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
    fn early_losses_are_remembered_and_bounded() {
        let mut losses = Losses::default();
        losses.note_early((0..10).map(key));
        losses.note_early((10..EARLY as u64 + 10).map(key));
        assert!(!losses.hit_early(&key(9)));
        assert!(losses.hit_early(&key(10)) && losses.hit_early(&key(EARLY as u64 + 9)));
        losses.forget_early();
        assert!(!losses.hit_early(&key(10)));
    }

    /// A loss that is not remembered any more may have hit the lease.
    #[test]
    fn mass_loss_hits_earlier_grants_and_forgotten_one_hits_all() {
        let mut losses = Losses::default();
        let even = || LostLeases::of(|key: &LeaseKey| key.id.sequence().is_multiple_of(2));
        assert!(!losses.hit_since(0, &key(2)));
        for number in 1..=LOTS as u64 {
            losses.note_mass_loss(number, even());
            assert!(losses.hit_since(number - 1, &key(2)));
            assert!(!losses.hit_since(number, &key(2)));
            assert!(!losses.hit_since(0, &key(1)));
        }
        losses.note_mass_loss(LOTS as u64 + 1, even());
        assert!(losses.hit_since(0, &key(1)));
        assert!(!losses.hit_since(1, &key(1)));
    }
}
