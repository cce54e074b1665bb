//! Requests that were abandoned: what arrives of them later is refused.
//!
//! On the way to a server nothing overtakes: what a session asks is done in the order in which it was asked. So an abandon that follows its request
//! meets whatever came of it. What is left are calls in this process that come late; ids are drawn by the engines in this process, so their memory is
//! enough.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use dlock_core::RequestId;

/// How many are remembered: as many as could be under way at once, many times over.
const REMEMBERED: usize = 1 << 14;

#[derive(Debug, Default)]
pub(crate) struct Tombstones(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    ids: HashSet<RequestId>,
    order: VecDeque<RequestId>,
}

impl Tombstones {
    pub(crate) fn bury(&self, id: RequestId) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.ids.insert(id) {
            kept.order.push_back(id);
            if kept.order.len() > REMEMBERED
                && let Some(oldest) = kept.order.pop_front()
            {
                kept.ids.remove(&oldest);
            }
        }
    }

    pub(crate) fn has(&self, id: RequestId) -> bool {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_their_number_is_bounded() {
        let all = Tombstones::default();
        let id = |n| RequestId::new(7, n);
        for n in 0..2 * REMEMBERED as u64 {
            all.bury(id(n));
            all.bury(id(n));
        }
        assert!(all.has(id(2 * REMEMBERED as u64 - 1)) && !all.has(id(0)));
        assert_eq!(all.0.lock().unwrap().order.len(), REMEMBERED);
    }
}
