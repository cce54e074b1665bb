//! What the looks of this client have shown lately.
//!
//! *Who waits for a name, and how it looked.* Each waiter has a probe, and the engine asks each once. One who
//! has been told how the name stood as it asked need not look itself: a look of another one that was sent
//! after that shows whether anything is different.
//!
//! *Which requests of this client were offered a lease.* Their next re-ask need not lock the name: see
//! `renew`. If that is forgotten, or not true any more, the re-ask goes the long way.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dlock_core::spi::LeaseKey;
use dlock_core::{LockName, RequestId, Timestamp};

use super::state::Mark;

/// Up to so many are kept before it is looked for dead ones.
const FEW: usize = 256;

/// What one look has shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) mark: Mark,
    /// Something is to be taken back.
    pub(super) due: bool,
    /// Whoever was offered a lease and has not come for it, of any client.
    pub(super) offered: Vec<RequestId>,
}

/// The last look at one name, and when it was sent.
#[derive(Default)]
pub(super) struct Sight(Mutex<Option<(Timestamp, Look)>>);

impl Sight {
    pub(super) fn show(&self, sent: Timestamp, look: &Look) {
        *guard(&self.0) = Some((sent, look.clone()));
    }

    /// If one was sent after that.
    pub(super) fn after(&self, time: Timestamp) -> Option<Look> {
        let last = guard(&self.0);
        last.as_ref()
            .filter(|(sent, _)| *sent >= time)
            .map(|(_, look)| look.clone())
    }
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub(super) struct Sights {
    of: Mutex<HashMap<LockName, Weak<Sight>>>,
    offered: Mutex<HashSet<LeaseKey>>,
}

impl Sights {
    /// The one that all who wait for that name share.
    pub(super) fn of(&self, name: &LockName) -> Arc<Sight> {
        let mut all = guard(&self.of);
        if let Some(sight) = all.get(name).and_then(Weak::upgrade) {
            return sight;
        }
        if all.len() >= FEW {
            all.retain(|_, sight| sight.strong_count() > 0);
        }
        let sight = Arc::<Sight>::default();
        all.insert(name.clone(), Arc::downgrade(&sight));
        sight
    }

    pub(super) fn offer(&self, key: LeaseKey) {
        let mut offered = guard(&self.offered);
        // Of those who were never asked for again.
        if offered.len() >= FEW * 16 {
            offered.clear();
        }
        offered.insert(key);
    }

    /// Whether it was; it is forgotten by that.
    pub(super) fn take_offer(&self, key: &LeaseKey) -> bool {
        let mut offered = guard(&self.offered);
        !offered.is_empty() && offered.remove(key)
    }
}
