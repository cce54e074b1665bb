//! What this client was told last of names, so that it asks in the way that will do.
//!
//! The short statements find nothing where anybody waits, shares, watches or was abandoned, and the long way has to be gone after all: it is gone at once where others
//! were. And the shortest takes a name that has a row: where this client had it a moment ago, there is one.
//!
//! Where two want a name all the time, every now and then one of them meets nobody. That is no news: for a moment after others were seen the long way is gone, which
//! is one request, where the short one would be the first of two.
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

/// For so long after others were seen they are counted on.
const CROWDED: Duration = Duration::from_millis(100);

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
    now: HashMap<LockName, Told>,
    before: HashMap<LockName, Told>,
}

impl Generations {
    fn of(&self, name: &LockName) -> Option<Told> {
        self.now.get(name).or_else(|| self.before.get(name)).copied()
    }
}

#[derive(Clone, Copy)]
struct Told {
    seen: Seen,
    at: Timestamp,
    /// When others were there last.
    crowded: Option<Timestamp>,
}

impl Known {
    pub(in crate::lease) fn tell(&self, name: &LockName, seen: Seen) {
        self.tell_at(name, seen, Timestamp::now());
    }

    fn tell_at(&self, name: &LockName, seen: Seen, now: Timestamp) {
        let mut all = self.all();
        let crowded = match seen {
            Seen::Others => Some(now),
            Seen::Alone => all.of(name).and_then(|told| told.crowded),
        };
        let at = now;
        let told = Told { seen, at, crowded };
        if let Some(known) = all.now.get_mut(name) {
            *known = told;
            return;
        }
        if all.now.len() >= MANY {
            all.before = std::mem::take(&mut all.now);
        }
        all.now.insert(name.clone(), told);
    }

    /// `None`: nothing is known. There may be no row.
    pub(in crate::lease) fn of(&self, name: &LockName) -> Option<Seen> {
        self.at(name, Timestamp::now())
    }

    fn at(&self, name: &LockName, now: Timestamp) -> Option<Seen> {
        let told = self.all().of(name)?;
        let crowded = told.crowded.is_some_and(|at| now.since(at) < CROWDED);
        match told.seen {
            Seen::Alone if crowded => Some(Seen::Others),
            Seen::Alone if now.since(told.at) >= THERE => None,
            seen => Some(seen),
        }
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
        let later = Timestamp::now() + CROWDED;
        known.tell_at(&a, Seen::Alone, later);
        assert_eq!(known.at(&a, later), Some(Seen::Alone));
    }

    #[test]
    fn who_meets_nobody_once_counts_on_others_for_a_moment() {
        let (known, a, now) = (Known::default(), name(0), Timestamp::now());
        known.tell_at(&a, Seen::Others, now);
        known.tell_at(&a, Seen::Alone, now + CROWDED / 2);
        let just_before = now + CROWDED - Duration::from_nanos(1);
        assert_eq!(known.at(&a, just_before), Some(Seen::Others));
        assert_eq!(known.at(&a, now + CROWDED), Some(Seen::Alone));
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
