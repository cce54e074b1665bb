//! A bounded memory of past acquisitions.

use std::time::Duration;

use crate::request_id::RequestId;
use crate::spi::Tombstones;

/// How long a late copy of a request is expected.
const TOMBSTONE_LIFE: Duration = Duration::from_secs(120);
/// The maximum number of tombstones; the oldest go first.
const MAX_TOMBSTONES: usize = 1 << 16;
/// The number of released acquisitions that are remembered, the latest ones.
const RELEASED: usize = 256;

/// An acquisition, with a hash of its name instead of the bytes, so that a tombstone does not keep a long
/// name in memory.
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

/// Abandoned and recently released acquisitions.
#[derive(Debug)]
pub(super) struct Memo {
    /// A late attempt of one of these is refused.
    pub(super) buried: Tombstones<Trace>,
    /// One slot per remainder of the sequence number: recording is one write, which forgets the previous
    /// acquisition. That costs only the exact answer to a very late retry, never safety.
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
    /// Records that an acquisition was released, for a retry of the release and against a late copy of its
    /// attempt.
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
