//! Requests that were abandoned or released: what arrives of them later is refused.
//!
//! Nothing of a request overtakes another in a session, so late arrivals are calls in this process alone, and its memory is enough.

use std::collections::{HashSet, VecDeque};

use dlock_core::RequestId;

/// How many are remembered: as many as could be under way at once, many times over.
const REMEMBERED: usize = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct Tombstones {
    ids: HashSet<RequestId>,
    order: VecDeque<RequestId>,
}

impl Tombstones {
    pub(super) fn bury(&mut self, id: RequestId) {
        if self.ids.insert(id) {
            self.order.push_back(id);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.ids.remove(&oldest);
            }
        }
    }

    pub(super) fn has(&self, id: RequestId) -> bool {
        self.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_their_number_is_bounded() {
        let mut all = Tombstones::default();
        let id = |n| RequestId::new(7, n);
        for n in 0..2 * REMEMBERED as u64 {
            all.bury(id(n));
            all.bury(id(n));
        }
        assert!(all.has(id(2 * REMEMBERED as u64 - 1)) && !all.has(id(0)));
        assert_eq!(all.order.len(), REMEMBERED);
    }
}
