//! One timer for everything: a binary heap whose entries know their position, so that they can be moved and
//! removed.
//!
//! A held lock costs one slot here, and neither a task nor a timer of its own. An uncontended acquire and
//! release inserts and removes the only entry of the heap, which does not allocate.

use std::sync::Arc;

use super::jobs::Job;
use super::lease::Lease;
use super::limit::Limit;
use super::place::Place;
use super::poller::Poller;
use super::waiter::Waiter;
use crate::timestamp::Timestamp;

/// What is woken.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Lease(Arc<Lease>),
    Waiter(Arc<Waiter>),
    Poller(Arc<Poller>),
    Job(Arc<Job>),
    Limit(Arc<Limit>),
}

impl Entry {
    fn place(&self) -> &Place {
        match self {
            Self::Lease(x) => &x.place,
            Self::Waiter(x) => &x.place,
            Self::Poller(x) => &x.place,
            Self::Job(x) => &x.place,
            Self::Limit(x) => &x.place,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: Vec<(Timestamp, Entry)>,
}

impl Timers {
    /// When the first entry is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.heap.first().map(|(at, _)| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Every entry, in no particular order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.heap.iter().map(|(_, e)| e)
    }

    /// Inserts an entry, or moves it to another time.
    pub(crate) fn set(&mut self, at: Timestamp, entry: Entry) {
        match entry.place().get() {
            Some(i) => {
                self.heap[i].0 = at;
                let i = self.up(i);
                self.down(i);
            }
            None => {
                let i = self.heap.len();
                self.heap.push((at, entry));
                self.note(i);
                self.up(i);
            }
        }
    }

    /// Moves an entry to an earlier time, if it is later. `false` if it is not there.
    pub(crate) fn hasten(&mut self, at: Timestamp, entry: &Entry) -> bool {
        let Some(i) = entry.place().get() else {
            return false;
        };
        if self.heap[i].0 > at {
            self.heap[i].0 = at;
            self.up(i);
        }
        true
    }

    /// Removes an entry. `false` if it was not there.
    pub(crate) fn remove(&mut self, place: &Place) -> bool {
        let Some(i) = place.get() else { return false };
        self.take(i);
        true
    }

    /// Removes the first entry, if it is due by then.
    pub(crate) fn pop_due(&mut self, by: Timestamp) -> Option<Entry> {
        (self.next()? <= by).then(|| self.take(0))
    }

    fn take(&mut self, i: usize) -> Entry {
        let (_, entry) = self.heap.swap_remove(i);
        entry.place().set(None);
        if i < self.heap.len() {
            self.note(i);
            let i = self.up(i);
            self.down(i);
        }
        entry
    }

    /// Records the position of an entry.
    fn note(&self, i: usize) {
        self.heap[i].1.place().set(Some(i));
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn up(&mut self, mut i: usize) -> usize {
        while i > 0 {
            let parent = (i - 1) / 2;
            if self.heap[parent].0 <= self.heap[i].0 {
                break;
            }
            self.swap(i, parent);
            i = parent;
        }
        i
    }

    fn down(&mut self, mut i: usize) {
        loop {
            let left = 2 * i + 1;
            let Some(mut least) = self.heap.get(left).map(|_| left) else {
                break;
            };
            if self.heap.get(left + 1).is_some_and(|r| r.0 < self.heap[left].0) {
                least = left + 1;
            }
            if self.heap[i].0 <= self.heap[least].0 {
                break;
            }
            self.swap(i, least);
            i = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::jobs::{Duty, Job};
    use crate::name::LockName;
    use crate::request_id::RequestId;
    use crate::spi::LeaseKey;

    const NANO: std::time::Duration = std::time::Duration::from_nanos(1);

    fn job(n: u64) -> Arc<Job> {
        let key = LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n));
        Arc::new(Job::new(Duty::Abandon, key, Timestamp::MAX))
    }

    /// A model check: the same random inserts, moves, hastenings and removals on a plain sorted list.
    #[test]
    fn entries_come_out_in_order_whatever_was_moved_or_removed() {
        let mut seed = 0x1234_5678_u64;
        let mut random = move |n: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % n
        };
        for _ in 0..200 {
            let jobs: Vec<_> = (0..20).map(job).collect();
            let mut timers = Timers::default();
            let mut model: Vec<Option<u64>> = vec![None; jobs.len()];
            for _ in 0..100 {
                let i = random(20) as usize;
                let (what, at) = (random(4), 1 + random(1000));
                if what == 0 {
                    assert_eq!(timers.remove(&jobs[i].place), model[i].take().is_some());
                } else if what == 1 {
                    let entry = Entry::Job(jobs[i].clone());
                    let there = timers.hasten(Timestamp::from_nanos(at), &entry);
                    assert_eq!(there, model[i].is_some());
                    model[i] = model[i].map(|before| before.min(at));
                } else {
                    timers.set(Timestamp::from_nanos(at), Entry::Job(jobs[i].clone()));
                    model[i] = Some(at);
                }
            }
            let mut expected: Vec<u64> = model.into_iter().flatten().collect();
            expected.sort_unstable();
            assert_eq!(timers.len(), expected.len());
            assert_eq!(timers.entries().count(), expected.len());
            for at in expected {
                assert!(
                    timers
                        .pop_due(Timestamp::from_nanos(at).saturating_sub(NANO))
                        .is_none()
                );
                assert_eq!(timers.next(), Some(Timestamp::from_nanos(at)));
                assert!(timers.pop_due(Timestamp::from_nanos(at)).is_some());
            }
            assert!(timers.pop_due(Timestamp::MAX).is_none());
        }
    }
}
