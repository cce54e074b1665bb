//! What this client was told last of names, so that it asks in the way that will do.
//!
//! The short statements find nothing where anybody waits, shares, watches or was abandoned, and the long way
//! has to be gone after all: it is gone at once where others were. And the shortest takes a name that has a
//! row: where this client had it a moment ago, there is one.
//!
//! Where two want a name all the time, every now and then one of them meets nobody. That is no news: where
//! the long way is one statement (PostgreSQL) it is gone for a moment after others were seen, since the short
//! one would be the first of two. In MySQL it is a transaction, and what was seen last counts.
//!
//! Whatever is remembered wrongly, or forgotten, costs one statement or one long way that was not needed,
//! which tells how it is now.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};

use crate::lately::Lately;

/// For so long a row is there after it was seen: no name is swept that was used in twice that time (`AGE` in
/// `sweep`).
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

pub(in crate::lease) struct Contention {
    told: Mutex<Lately<LockName, Told>>,
    /// For so long after others were seen they are counted on.
    crowded: Duration,
}

#[derive(Clone, Copy)]
struct Told {
    seen: Seen,
    at: Timestamp,
    /// When others were there last.
    crowded: Option<Timestamp>,
}

impl Contention {
    pub(in crate::lease) fn new(crowded: Duration) -> Self {
        Self {
            told: Mutex::default(),
            crowded,
        }
    }

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
        all.note(name, Told { seen, at, crowded });
    }

    /// `None`: nothing is known. There may be no row.
    pub(in crate::lease) fn of(&self, name: &LockName) -> Option<Seen> {
        self.at(name, Timestamp::now())
    }

    fn at(&self, name: &LockName, now: Timestamp) -> Option<Seen> {
        let told = *self.all().of(name)?;
        let crowded = told.crowded.is_some_and(|at| now.since(at) < self.crowded);
        match told.seen {
            Seen::Alone if crowded => Some(Seen::Others),
            Seen::Alone if now.since(told.at) >= THERE => None,
            seen => Some(seen),
        }
    }

    fn all(&self) -> MutexGuard<'_, Lately<LockName, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWDED: Duration = Duration::from_millis(100);

    fn name(n: usize) -> LockName {
        LockName::new(format!("n{n}")).unwrap()
    }

    #[test]
    fn what_was_told_last_counts() {
        let (known, a, now) = (Contention::new(CROWDED), name(0), Timestamp::now());
        assert_eq!(known.at(&a, now), None);
        known.tell_at(&a, Seen::Others, now);
        assert_eq!(known.at(&a, now), Some(Seen::Others));
        known.tell_at(&a, Seen::Alone, now + CROWDED);
        assert_eq!(known.at(&a, now + CROWDED), Some(Seen::Alone));
    }

    #[test]
    fn who_meets_nobody_once_counts_on_others_for_a_moment() {
        let (known, a, now) = (Contention::new(CROWDED), name(0), Timestamp::now());
        known.tell_at(&a, Seen::Others, now);
        known.tell_at(&a, Seen::Alone, now + CROWDED / 2);
        assert_eq!(known.at(&a, now + CROWDED * 9 / 10), Some(Seen::Others));
        assert_eq!(known.at(&a, now + CROWDED), Some(Seen::Alone));
        let known = Contention::new(Duration::ZERO);
        known.tell_at(&a, Seen::Others, now);
        known.tell_at(&a, Seen::Alone, now);
        assert_eq!(known.at(&a, now), Some(Seen::Alone));
    }

    #[test]
    fn a_row_is_not_there_for_ever() {
        let (known, a, now) = (Contention::new(CROWDED), name(0), Timestamp::now());
        known.tell_at(&a, Seen::Alone, now);
        assert_eq!(known.at(&a, now + THERE / 2), Some(Seen::Alone));
        assert_eq!(known.at(&a, now + THERE), None);
        known.tell_at(&a, Seen::Others, now);
        assert_eq!(known.at(&a, now + THERE), Some(Seen::Others));
    }
}
