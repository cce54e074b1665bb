//! What this client last learned about names, so that it sends the right statement.
//!
//! The fast paths do nothing if there is a waiter, sharer, watch or tombstone, and the full request must
//! follow. So that is sent at once where others were seen. The shortest path takes a name that has a row.
//!
//! If two clients contend all the time, one of them finds the name free now and then. If the full request is
//! one statement (PostgreSQL), it is used for a moment after others were seen. In MySQL it is a transaction,
//! and the last observation counts.
//!
//! A wrong or forgotten observation costs one statement, which corrects it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Timestamp};

use crate::cache::Cache;

/// How long a name must be unused before its row is swept. Longer than a tombstone stands.
pub(in crate::lease) const AGE: Duration = Duration::from_secs(120);

/// For so long a row is there after it was seen: half of that.
const THERE: Duration = Duration::from_secs(60);

/// How a name was. By default nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::lease) struct Seen {
    /// Others hold it, wait, watch or were abandoned.
    pub(in crate::lease) others: bool,
    /// It has a row.
    pub(in crate::lease) has_row: bool,
}

pub(in crate::lease) struct Contention {
    told: Mutex<Cache<LockName, Told>>,
    /// For so long after others were seen they are counted on.
    contended: Duration,
}

/// Whether others were seen, when that was learned, and when they were seen last.
type Told = (bool, Timestamp, Option<Timestamp>);

impl Contention {
    pub(in crate::lease) fn new(contended: Duration) -> Self {
        Self {
            told: Mutex::default(),
            contended,
        }
    }

    /// Whether others were there, as far as an answer says that came now.
    pub(in crate::lease) fn tell(&self, name: &LockName, others: bool, now: Timestamp) {
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.of(name).and_then(|(.., others_at)| *others_at);
        let others_at = if others { Some(now) } else { before };
        all.note(name, (others, now, others_at));
    }

    pub(in crate::lease) fn of(&self, name: &LockName, now: Timestamp) -> Seen {
        let all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((others, at, others_at)) = all.of(name) else {
            return Seen::default();
        };
        Seen {
            others: *others || others_at.is_some_and(|at| now.since(at) < self.contended),
            has_row: now.since(*at) < THERE,
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
        for contended in [MOMENT, Duration::ZERO] {
            let known = Contention::new(contended);
            let seen = |after| {
                let seen = known.of(&name, now + after);
                (seen.others, seen.has_row)
            };
            assert_eq!(seen(MOMENT), (false, false));
            known.tell(&name, true, now);
            assert_eq!(seen(THERE), (true, false));
            known.tell(&name, false, now);
            assert_eq!(seen(MOMENT / 2), (contended == MOMENT, true));
            assert_eq!(seen(MOMENT), (false, true));
            assert_eq!(seen(THERE), (false, false));
        }
    }
}
