//! What a watcher was told last, and what has changed since.
//!
//! Two looks are compared. A hold that came and went in between does not show, so every client counts the
//! changes of a watched name, in a row that a watch has made and keeps with a lease. If the comparison shows
//! another number of changes than the count, or there is no count, some may have been missed.

use dlock_core::{Change, Timestamp};

use super::{Entry, NameState, Phase};

/// The holders and the count of changes at the last report.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    holders: Vec<Entry>,
    counted: Option<u64>,
}

impl Told {
    /// Everything was reported.
    pub(crate) fn of(state: &NameState) -> Self {
        Self {
            holders: state.rows.holders().to_vec(),
            counted: state.books.watch.map(|w| w.changes),
        }
    }

    /// The changes up to that state, which are reported now; `None` if there may have been others.
    pub(crate) fn compare(&mut self, state: &NameState, now: Timestamp) -> Option<Vec<Change>> {
        let before = std::mem::replace(self, Self::of(state));
        let mut changes = Vec::new();
        for old in &before.holders {
            let id = old.id;
            if !self.holders.iter().any(|new| new.id == id) {
                // A minimum hold that is over was let go by its holder.
                changes.push(match old.expires <= now && old.phase != Phase::Kept {
                    true => Change::Expired { id },
                    false => Change::Released { id },
                });
            }
        }
        let same = |a: &Entry, b: &Entry| (a.id, a.mode, a.token) == (b.id, b.mode, b.token);
        let is_new = |new: &&Entry| !before.holders.iter().any(|old| same(old, new));
        let mut granted: Vec<_> = self.holders.iter().filter(is_new).collect();
        granted.sort_by_key(|e| e.token);
        let told = |e: &Entry| Change::Granted(e.holder(now));
        changes.extend(granted.into_iter().map(told));
        let expected = before.counted?.saturating_add(changes.len() as u64);
        (self.counted == Some(expected)).then_some(changes)
    }
}
