//! Expired entries of names that are never used again.
//!
//! Nothing runs in the background, so an expired lease is removed by the next call that touches its name. If
//! none ever does, its record would stay for good. So all names are swept when half of them, and at least a
//! minimum, are new since the last sweep. That costs each new name a constant, and keeps about as many dead
//! names as live ones at most.

use super::{Effects, Table};
use crate::spi::admission::NameState;

/// The minimum number of new names between sweeps.
const SWEEP_LEAST: usize = 64;

impl Table {
    pub(super) fn is_to_sweep(&self) -> bool {
        self.since_sweep >= SWEEP_LEAST && self.since_sweep >= self.names.len() / 2
    }

    /// Removes expired entries of all names.
    #[cold]
    #[inline(never)]
    pub(super) fn sweep(&mut self, effects: &mut Effects) {
        let dead = |state: &NameState| state.holders().iter().all(|l| l.expires <= effects.now);
        let names: Vec<_> = self
            .names
            .records()
            .filter(|(_, state)| dead(state))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.expire(&name, effects);
        }
        self.since_sweep = 0;
    }
}
