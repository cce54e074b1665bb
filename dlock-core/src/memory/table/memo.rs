//! What is remembered of acquisitions that are over, in bounded space.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::spi::{LeaseKey, RequestId};
use crate::timestamp::Timestamp;

/// How long a late copy of a request is expected at most.
const TOMBSTONE_LIFE: Duration = Duration::from_secs(120);
/// How many tombstones are kept at most; the oldest go first.
const MAX_TOMBSTONES: usize = 1 << 16;
/// How many released acquisitions are remembered: those that were released last.
const RELEASED: usize = 256;

/// An acquisition, without the bytes of its name: a tombstone must not keep a long name in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Trace {
    id: RequestId,
    name: u64,
}

impl Trace {
    fn of(key: &LeaseKey) -> Self {
        let mut hasher = FixedState::default().build_hasher();
        hasher.write(key.name.as_bytes());
        Self {
            id: key.id,
            name: hasher.finish(),
        }
    }

    fn slot(&self) -> usize {
        (self.id.sequence() ^ self.id.client() as u64) as usize % RELEASED
    }
}

/// Abandoned acquisitions, and those released lately.
#[derive(Debug, Default)]
pub(super) struct Memo {
    dead: HashSet<Trace, foldhash::fast::RandomState>,
    order: VecDeque<(Timestamp, Trace)>,
    /// One slot per remainder of the sequence: writing is one store, and what is overwritten is forgotten. That costs only
    /// an exact answer to a very late retry, never safety.
    released: Vec<Option<Trace>>,
}

impl Memo {
    /// Leaves a tombstone: an attempt of that key that arrives later is refused.
    pub(super) fn bury(&mut self, key: &LeaseKey, now: Timestamp) {
        while let Some(&(until, trace)) = self.order.front() {
            if until > now && self.order.len() < MAX_TOMBSTONES {
                break;
            }
            self.order.pop_front();
            self.dead.remove(&trace);
        }
        let trace = Trace::of(key);
        if self.dead.insert(trace) {
            self.order.push_back((now + TOMBSTONE_LIFE, trace));
        }
    }

    pub(super) fn is_buried(&self, key: &LeaseKey) -> bool {
        !self.dead.is_empty() && self.dead.contains(&Trace::of(key))
    }

    pub(super) fn tombstones(&self) -> usize {
        self.dead.len()
    }

    /// Remembers that the key was released, for a retry of the release and against a late copy of its attempt.
    pub(super) fn note_released(&mut self, key: &LeaseKey) {
        if self.released.is_empty() {
            self.released.resize(RELEASED, None);
        }
        let trace = Trace::of(key);
        let slot = trace.slot();
        self.released[slot] = Some(trace);
    }

    pub(super) fn was_released(&self, key: &LeaseKey) -> bool {
        if self.released.is_empty() {
            return false;
        }
        let trace = Trace::of(key);
        self.released[trace.slot()] == Some(trace)
    }
}
