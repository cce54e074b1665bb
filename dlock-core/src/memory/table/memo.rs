//! What is remembered of acquisitions that are over, in bounded space.

use std::time::Duration;

use crate::request_id::RequestId;
use crate::spi::Tombstones;

/// How long a late copy of a request is expected at most.
const TOMBSTONE_LIFE: Duration = Duration::from_secs(120);
/// How many tombstones are kept at most; the oldest go first.
const MAX_TOMBSTONES: usize = 1 << 16;
/// How many released acquisitions are remembered: those that were released last.
const RELEASED: usize = 256;

/// An acquisition, with the hash of its name in place of the bytes: a tombstone must not keep a long name in
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Trace {
    pub(super) id: RequestId,
    pub(super) name: u64,
}

impl Trace {
    fn slot(&self) -> usize {
        (self.id.sequence() ^ self.id.client() as u64) as usize % RELEASED
    }
}

/// Abandoned acquisitions, and those released lately.
#[derive(Debug)]
pub(super) struct Memo {
    /// An attempt of one that arrives later is refused.
    pub(super) buried: Tombstones<Trace>,
    /// One slot per remainder of the sequence: writing is one store, and what is overwritten is forgotten.
    /// That costs only an exact answer to a very late retry, never safety.
    released: Vec<Option<Trace>>,
}

impl Default for Memo {
    fn default() -> Self {
        Self {
            buried: Tombstones::new(TOMBSTONE_LIFE, MAX_TOMBSTONES),
            released: Vec::new(),
        }
    }
}

impl Memo {
    /// Remembers that it was released, for a retry of the release and against a late copy of its attempt.
    pub(super) fn note_released(&mut self, trace: Trace) {
        if self.released.is_empty() {
            self.released.resize(RELEASED, None);
        }
        self.released[trace.slot()] = Some(trace);
    }

    pub(super) fn was_released(&self, trace: Trace) -> bool {
        self.released.get(trace.slot()) == Some(&Some(trace))
    }
}
