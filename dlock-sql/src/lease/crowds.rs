//! Where others were, when this client was last told.
//!
//! The short statements find nothing where anybody waits, shares, watches or was abandoned, and the long way has to be gone after all. So it is gone at once where others
//! were a while ago. That they are not there any more is told by that: what is remembered wrongly costs one long way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};

/// Up to so many are kept however old they are.
const FEW: usize = 256;

/// For how long others are thought to be where they were.
const CROWDED: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(in crate::lease) struct Crowds {
    kept: Mutex<Kept>,
    /// How many there are: to be seen without the lock and without hashing.
    many: AtomicUsize,
}

#[derive(Default)]
struct Kept {
    of: HashMap<LockName, Timestamp>,
    /// How many there may be before it is looked for old ones.
    room: usize,
}

impl Crowds {
    /// Whether others hold, wait, watch or were abandoned there, beside who holds it alone.
    pub(in crate::lease) fn tell(&self, name: &LockName, others: bool) {
        if !others && self.many.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut kept = self.kept();
        if others {
            let now = Timestamp::now();
            if kept.of.len() >= kept.room {
                kept.of.retain(|_, since| now.since(*since) < CROWDED);
                kept.room = FEW.max(kept.of.len() * 2);
            }
            kept.of.insert(name.clone(), now);
        } else {
            kept.of.remove(name);
        }
        self.many.store(kept.of.len(), Ordering::Relaxed);
    }

    pub(in crate::lease) fn are_at(&self, name: &LockName) -> bool {
        if self.many.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let since = self.kept().of.get(name).copied();
        since.is_some_and(|since| Timestamp::now().since(since) < CROWDED)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_last_counts() {
        let (crowds, a) = (Crowds::default(), LockName::new("a").unwrap());
        assert!(!crowds.are_at(&a));
        crowds.tell(&a, true);
        assert!(crowds.are_at(&a) && !crowds.are_at(&LockName::new("b").unwrap()));
        crowds.tell(&a, false);
        assert!(!crowds.are_at(&a));
    }
}
