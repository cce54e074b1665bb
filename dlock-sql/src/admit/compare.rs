//! What somebody who watches was told last, and what has changed since.
//!
//! Two looks are compared. What came and went in between does not show there, so everybody counts the changes
//! of a name that is watched, in a row beside its holders: a watch has it made, and keeps it with a lease. If
//! the comparison shows another number of changes than were counted, or nobody counted, some may have been
//! missed.

use dlock_core::{Change, Holder, Timestamp};

use super::{NameState, Phase};

/// The holders, and how far the changes were counted, when they were told last.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    holders: Vec<Seen>,
    counted: Option<u64>,
}

#[derive(Clone, Debug)]
struct Seen {
    holder: Holder,
    expires: Timestamp,
    /// Released, and kept taken by a minimum hold.
    kept: bool,
}

impl Told {
    /// All of it was told.
    pub(crate) fn of(state: &NameState) -> Self {
        let holders = state.holders().map(|e| Seen {
            holder: e.holder(Default::default()),
            expires: e.expires,
            kept: e.phase == Phase::Kept,
        });
        Self {
            holders: holders.collect(),
            counted: state.watch.as_ref().map(|w| w.changes),
        }
    }

    /// The changes up to that state, which are told by that; `None` if there may have been others.
    pub(crate) fn compare(&mut self, state: &NameState, now: Timestamp) -> Option<Vec<Change>> {
        let before = std::mem::replace(self, Self::of(state));
        let mut changes = Vec::new();
        for old in &before.holders {
            let id = old.holder.id;
            if !self.holders.iter().any(|s| s.holder.id == id) {
                changes.push(match old.expires <= now && !old.kept {
                    true => Change::Expired { id },
                    false => Change::Released { id },
                });
            }
        }
        let same = |a: &Holder, b: &Holder| (a.id, a.mode, a.token) == (b.id, b.mode, b.token);
        let is_old = |new: &&Seen| before.holders.iter().any(|old| same(&old.holder, &new.holder));
        let mut granted: Vec<_> = self.holders.iter().filter(|new| !is_old(new)).collect();
        granted.sort_by_key(|s| s.holder.token);
        changes.extend(granted.into_iter().map(|s| {
            let mut holder = s.holder.clone();
            holder.expires_in = s.expires.since(now);
            Change::Granted(holder)
        }));
        let expected = before.counted?.saturating_add(changes.len() as u64);
        (self.counted == Some(expected)).then_some(changes)
    }
}
