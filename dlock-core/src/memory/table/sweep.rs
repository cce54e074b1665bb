//! What ran out and was never asked for again.
//!
//! Nothing runs in the background, so a lease that lapses is taken back by the next call that touches its name; and if none ever does, its
//! record would stay for good. It goes when the table is full: to make it larger costs as much as to look through it once.

use super::{Effects, Table};
use crate::timestamp::Timestamp;

impl Table {
    /// Takes back what has run out under whatever name, and makes room if that was little.
    #[cold]
    #[inline(never)]
    pub(super) fn sweep(&mut self, now: Timestamp, effects: &mut Effects) {
        let dead = |entry: &super::Entry| entry.holders.iter().all(|l| l.expires <= now);
        let names: Vec<_> = self
            .names
            .records()
            .filter(|(_, entry)| dead(entry))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.expire(now, &name, effects);
        }
        // Otherwise the next name but a few would find it full again.
        if self.names.is_mostly_used() {
            self.names.make_room();
        }
    }
}
