//! What this client was told last of names, so that it asks in the way that will do.
//!
//! The short statements find nothing where anybody waits, shares, watches or was abandoned, and the long way has to be gone after all: it is gone at once where others
//! were. And the shortest takes a name that has a row: where this client had it a moment ago, there is one.
//!
//! Whatever is remembered wrongly, or forgotten, costs one statement or one long way that was not needed, which tells how it is now.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};

/// So many names are remembered at least, and twice as many at the most.
const MANY: usize = 2048;

/// For so long a row is there after it was seen: no name is swept that was used in twice that time (`AGE` in `upkeep`).
const THERE: Duration = Duration::from_secs(60);

/// How a name was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lease) enum Seen {
    /// It has a row, and nobody is there beside whoever holds it alone.
    Alone,
    /// Others hold it, wait, watch or were abandoned.
    Others,
}

impl Seen {
    pub(in crate::lease) fn others(are: bool) -> Self {
        match are {
            true => Self::Others,
            false => Self::Alone,
        }
    }
}

#[derive(Default)]
pub(in crate::lease) struct Known(Mutex<Generations>);

/// What was told lately, and what before that; it is dropped all at once.
#[derive(Default)]
struct Generations {
    now: HashMap<LockName, (Seen, Timestamp)>,
    before: HashMap<LockName, (Seen, Timestamp)>,
}

impl Known {
    pub(in crate::lease) fn tell(&self, name: &LockName, seen: Seen) {
        self.tell_at(name, seen, Timestamp::now());
    }

    fn tell_at(&self, name: &LockName, seen: Seen, now: Timestamp) {
        let mut all = self.all();
        if let Some(known) = all.now.get_mut(name) {
            *known = (seen, now);
            return;
        }
        if all.now.len() >= MANY {
            all.before = std::mem::take(&mut all.now);
        }
        all.now.insert(name.clone(), (seen, now));
    }

    /// `None`: nothing is known. There may be no row.
    pub(in crate::lease) fn of(&self, name: &LockName) -> Option<Seen> {
        self.at(name, Timestamp::now())
    }

    fn at(&self, name: &LockName, now: Timestamp) -> Option<Seen> {
        let all = self.all();
        let (seen, since) = *all.now.get(name).or_else(|| all.before.get(name))?;
        (seen == Seen::Others || now.since(since) < THERE).then_some(seen)
    }

    fn all(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> LockName {
        LockName::new(format!("n{n}")).unwrap()
    }

    #[test]
    fn what_was_told_last_counts() {
        let (known, a) = (Known::default(), name(0));
        assert_eq!(known.of(&a), None);
        known.tell(&a, Seen::Others);
        assert_eq!(known.of(&a), Some(Seen::Others));
        // It is remembered of before, and told anew.
        for n in 1..=MANY {
            known.tell(&name(n), Seen::Alone);
        }
        assert_eq!(known.of(&a), Some(Seen::Others));
        known.tell(&a, Seen::Alone);
        assert_eq!(known.of(&a), Some(Seen::Alone));
    }

    #[test]
    fn a_row_is_not_there_for_ever() {
        let (known, a, now) = (Known::default(), name(0), Timestamp::now());
        known.tell_at(&a, Seen::Alone, now);
        assert_eq!(known.at(&a, now + THERE / 2), Some(Seen::Alone));
        assert_eq!(known.at(&a, now + THERE), None);
        known.tell_at(&a, Seen::Others, now);
        assert_eq!(known.at(&a, now + THERE), Some(Seen::Others));
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let known = Known::default();
        for n in 0..MANY * 5 {
            known.tell(&name(n), Seen::Alone);
        }
        let all = known.all();
        assert!(all.now.len() <= MANY && all.before.len() <= MANY);
        drop(all);
        assert_eq!(known.of(&name(0)), None);
        assert_eq!(known.of(&name(MANY * 5 - 1)), Some(Seen::Alone));
    }
}
