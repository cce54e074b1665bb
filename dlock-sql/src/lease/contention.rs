//! What this client was told last of names, so that it asks in the way that will do.
//!
//! The short statements find nothing where anybody waits, shares, watches or was abandoned, and the full
//! request has to follow. So it is sent at once where others were. The shortest takes a name that has a row.
//!
//! Where two want a name all the time, now and then one of them meets nobody. Where the full request is one
//! statement (PostgreSQL) it goes on for a moment after others were seen. In MySQL it is a transaction, and
//! what was seen last counts.
//!
//! Whatever is remembered wrongly, or forgotten, costs one statement, which tells how it is now.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};

use crate::lately::Lately;

/// For so long a row is there after it was seen: no name is swept that was used in twice that time (`AGE` of
/// the sweeps).
const THERE: Duration = Duration::from_secs(60);

/// How a name was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lease) enum Seen {
    /// It has a row, and nobody is there beside whoever holds it alone.
    Alone,
    /// Others hold it, wait, watch or were abandoned.
    Others,
}

pub(in crate::lease) struct Contention {
    told: Mutex<Lately<LockName, Told>>,
    /// For so long after others were seen they are counted on.
    contended: Duration,
}

#[derive(Clone, Copy)]
struct Told {
    seen: Seen,
    at: Timestamp,
    /// When others were there last.
    others_at: Option<Timestamp>,
}

impl Contention {
    pub(in crate::lease) fn new(contended: Duration) -> Self {
        Self {
            told: Mutex::default(),
            contended,
        }
    }

    /// Whether others were there, as far as the last answer says.
    pub(in crate::lease) fn tell(&self, name: &LockName, others: bool) {
        self.tell_at(name, others, Timestamp::now());
    }

    fn tell_at(&self, name: &LockName, others: bool, at: Timestamp) {
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, others_at) = match others {
            true => (Seen::Others, Some(at)),
            false => (Seen::Alone, all.of(name).and_then(|told| told.others_at)),
        };
        let told = Told { seen, at, others_at };
        all.note(name, told);
    }

    /// `None`: nothing is known. There may be no row.
    pub(in crate::lease) fn of(&self, name: &LockName) -> Option<Seen> {
        self.at(name, Timestamp::now())
    }

    fn at(&self, name: &LockName, now: Timestamp) -> Option<Seen> {
        let told = *(self.told.lock().unwrap_or_else(PoisonError::into_inner)).of(name)?;
        let contended = told.others_at.is_some_and(|at| now.since(at) < self.contended);
        match told.seen {
            Seen::Alone if contended => Some(Seen::Others),
            Seen::Alone if now.since(told.at) >= THERE => None,
            seen => Some(seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_last_counts_for_a_while() {
        const MOMENT: Duration = Duration::from_millis(100);
        let (name, now) = (LockName::new("a").unwrap(), Timestamp::now());
        for (contended, others_at_half) in [(MOMENT, true), (Duration::ZERO, false)] {
            let known = Contention::new(contended);
            assert_eq!(known.at(&name, now), None);
            known.tell_at(&name, true, now);
            assert_eq!(known.at(&name, now + THERE), Some(Seen::Others));
            known.tell_at(&name, false, now);
            let seen = known.at(&name, now + MOMENT / 2);
            assert_eq!(seen == Some(Seen::Others), others_at_half);
            assert_eq!(known.at(&name, now + MOMENT), Some(Seen::Alone));
            assert_eq!(known.at(&name, now + THERE), None);
        }
    }
}
