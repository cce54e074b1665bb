//! What ran out and was never asked for again.
//!
//! Nothing runs in the background, so a lease that lapses is taken back by the next call that touches its
//! name; and if none ever does, its record would stay for good. So all names are looked through when half of
//! them, and not too few, are new since the last time: that costs each new name a constant, and hardly more
//! are dead than alive.

use super::{Effects, Table};
use crate::spi::admission::NameState;

/// A small table is looked through after that many new names.
const SWEEP_LEAST: usize = 64;

impl Table {
    pub(super) fn is_to_sweep(&self) -> bool {
        self.since_sweep >= SWEEP_LEAST && self.since_sweep >= self.names.len() / 2
    }

    /// Takes back what has run out under whatever name, and makes room if that was little.
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
