//! Faults that a test begins and ends by hand, and that count what they struck.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::channel::oneshot;

use super::faults::Partition;
use super::wire::{Ending, ending};

/// What goes wrong on a [`Link`](super::Link) from [`begin`](super::Link::begin) to
/// [`end`](super::Link::end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Messages that go that way take that much longer.
    Delay(Partition, Duration),
    /// Messages that go that way never arrive.
    BlackHole(Partition),
    /// Messages that go that way arrive when this ends.
    Hold(Partition),
    /// Once: the next request is carried out, its reply is lost, and the connection breaks.
    SwallowNextReply,
    /// Once: the next request arrives when this ends; its connection breaks at once.
    DeliverLate,
    /// Requests that a network may repeat arrive twice, the second time up to that much later.
    Duplicate(Duration),
}

/// The direction of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Request,
    Reply,
}

impl Way {
    pub(super) fn is_stopped_by(self, which: Partition) -> bool {
        match self {
            Self::Request => which.stops_requests(),
            Self::Reply => which.stops_replies(),
        }
    }
}

/// The troubles of one link.
#[derive(Default)]
pub(super) struct Troubles {
    active: Vec<Active>,
}

pub(super) struct Active {
    id: u64,
    trouble: Trouble,
    struck: Arc<AtomicU64>,
    /// Dropped with it, which wakes those that wait for its end.
    _end: oneshot::Sender<()>,
    ending: Ending,
}

impl Active {
    fn strike(&self) {
        self.struck.fetch_add(1, Ordering::AcqRel);
    }

    /// Strikes, unless it has.
    fn strike_once(&self) -> bool {
        self.struck
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

impl Troubles {
    pub(super) fn begin(&mut self, id: u64, trouble: Trouble, struck: Arc<AtomicU64>) {
        let (end, ending) = ending();
        self.active.push(Active {
            id,
            trouble,
            struck,
            _end: end,
            ending,
        });
    }

    /// Removed entries, to be dropped without the mutex: dropping them wakes tasks.
    #[must_use]
    pub(super) fn end(&mut self, id: u64) -> Vec<Active> {
        let (ended, active) = std::mem::take(&mut self.active)
            .into_iter()
            .partition::<Vec<_>, _>(|a| a.id == id);
        self.active = active;
        ended
    }

    /// By how much a message that sets out now is later.
    pub(super) fn delay(&self, way: Way) -> Duration {
        let mut sum = Duration::ZERO;
        for active in &self.active {
            if let Trouble::Delay(which, by) = active.trouble
                && way.is_stopped_by(which)
            {
                active.strike();
                sum += by;
            }
        }
        sum
    }

    pub(super) fn loses(&self, way: Way) -> bool {
        let hole = self.active.iter().find(|active| match active.trouble {
            Trouble::BlackHole(which) => way.is_stopped_by(which),
            _ => false,
        });
        hole.inspect(|hole| hole.strike()).is_some()
    }

    /// What a message that has arrived has to wait for.
    pub(super) fn holds(&self, way: Way) -> Option<Ending> {
        let holding = self.active.iter().find(|active| match active.trouble {
            Trouble::Hold(which) => way.is_stopped_by(which),
            _ => false,
        });
        holding.map(|active| {
            active.strike();
            active.ending.clone()
        })
    }

    pub(super) fn swallows(&self) -> bool {
        let mut armed = self.active.iter();
        armed.any(|a| a.trouble == Trouble::SwallowNextReply && a.strike_once())
    }

    /// By how much, at most, a second copy of a request is later, if there is to be one.
    pub(super) fn duplicates(&self) -> Option<Duration> {
        self.active.iter().find_map(|active| match active.trouble {
            Trouble::Duplicate(by) => {
                active.strike();
                Some(by)
            }
            _ => None,
        })
    }

    /// What the next request has to wait for, if it is to be late.
    pub(super) fn keeps(&self) -> Option<Ending> {
        let mut armed = self.active.iter();
        armed
            .find(|a| a.trouble == Trouble::DeliverLate && a.strike_once())
            .map(|a| a.ending.clone())
    }
}
