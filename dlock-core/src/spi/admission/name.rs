//! The rows of one name: its holders and waiters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::Lease;
use crate::inspection::{Holder, Inspection};
use crate::mode::Mode;
use crate::request_id::RequestId;
use crate::spi::Acquire;
use crate::timestamp::{Timestamp, nanos};
use crate::token::Token;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits in the queue.
    Queued,
    /// Granted while its waiter was away. The next re-ask starts the full ttl.
    Offered,
    /// Granted for a claim window, not yet confirmed by a renewal.
    Provisional,
    /// Held.
    Held,
    /// Released, but kept taken by a minimum hold: nobody holds it, and it still blocks others.
    Kept,
}

/// One holder or waiter of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Entry {
    pub id: RequestId,
    pub phase: Phase,
    pub mode: Mode,
    pub priority: u8,
    pub token: Option<Token>,
    /// The ttl of the lease. In nanoseconds, since a `Duration` takes twice the space.
    pub ttl_nanos: u64,
    /// When the lease, or the queue entry, expires unless it is renewed.
    pub expires: Timestamp,
    /// It asked for an upgrade and was answered `Busy`. Until it ends, another upgrader would wait for it,
    /// and it for that one.
    pub upgrading: bool,
    pub owner: Option<Arc<str>>,
}

impl Entry {
    /// Creates the entry of a request.
    pub(super) fn asked(request: &Acquire, phase: Phase, expires: Timestamp) -> Self {
        Self {
            id: request.key.id,
            phase,
            mode: request.mode,
            priority: request.priority,
            token: None,
            ttl_nanos: nanos(request.ttl),
            expires,
            upgrading: false,
            owner: request.owner.clone(),
        }
    }

    /// Whether it can be renewed, converted or raised.
    pub(super) fn is_lease(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::Kept)
    }

    /// Returns how long the entry holds, unless it is renewed.
    pub fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_nanos)
    }

    /// Restarts the life, never shorter than what was promised before.
    pub(super) fn extend(&mut self, now: Timestamp, ttl: Duration) {
        self.ttl_nanos = nanos(ttl);
        self.expires = self.expires.max(now + ttl);
        self.phase = Phase::Held;
    }

    /// Returns the entry as an [`Inspection`] shows it at this time.
    pub fn holder(&self, now: Timestamp) -> Holder {
        Holder::new(self.id, self.mode, self.token, now.until(self.expires)).with_owner(self.owner.clone())
    }

    /// The answer to its holder at this time.
    pub(crate) fn lease(&self, now: Timestamp) -> Lease {
        Lease {
            token: self.token,
            expires_in: now.until(self.expires),
            provisional: self.phase == Phase::Provisional,
        }
    }
}

/// The waiters in the order of their turns: by priority, then by arrival.
#[derive(Debug)]
struct Queue {
    /// Each with its number of arrival.
    waiters: VecDeque<(i64, Entry)>,
    /// No waiter expires before this, so that a call need not check each.
    next_expiry: Timestamp,
}

/// All entries of one name.
///
/// A single holder is stored inline, so a name without contention costs no allocation.
#[derive(Debug, Default)]
pub struct NameState {
    /// In grant order.
    pub(crate) holders: SmallVec<[Entry; 1]>,
    queue: Option<Box<Queue>>,
}

impl NameState {
    /// Adds a stored entry, with its number in line. Call [`sort`](Self::sort) after the last one.
    pub fn insert(&mut self, entry: Entry, arrival: i64) {
        match entry.phase {
            Phase::Queued => self.enqueue((self.waiting(), arrival), entry),
            _ => self.holders.push(entry),
        }
    }

    /// Sorts what was added. The id breaks ties, so that every waiter has a place of its own, whatever
    /// numbers are stored.
    pub fn sort(&mut self) {
        self.holders.sort_unstable_by_key(|e| (e.token, e.id));
        if let Some(queue) = &mut self.queue {
            let rank = |(arrival, e): &(i64, Entry)| (u8::MAX - e.priority, *arrival, e.id);
            queue.waiters.make_contiguous().sort_unstable_by_key(rank);
        }
    }

    /// Returns the holders, in grant order.
    pub fn holders(&self) -> &[Entry] {
        &self.holders
    }

    /// The waiters, in the order of their turns.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Entry> {
        self.queue.iter().flat_map(|q| &q.waiters).map(|(_, w)| w)
    }

    /// Returns all holders and waiters.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.holders.iter().chain(self.waiters())
    }

    /// Returns the entry of a request and its number in line, which is 0 for a holder.
    pub fn find(&self, id: RequestId) -> Option<(&Entry, i64)> {
        let waiters = self.queue.iter().flat_map(|q| &q.waiters);
        let mut all = self
            .holders
            .iter()
            .map(|e| (e, 0))
            .chain(waiters.map(|(n, e)| (e, *n)));
        all.find(|(e, _)| e.id == id)
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, |q| q.waiters.len())
    }

    /// Whether there are no holders and no waiters.
    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiting() == 0
    }

    /// Returns whether an entry has expired and was not removed.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let queue = self.queue.as_ref().map(|q| q.next_expiry);
        let mut ends = self.holders.iter().map(|e| e.expires).chain(queue);
        ends.any(|end| end <= now)
    }

    /// Returns the state at this time, whether or not expired entries were removed.
    pub fn inspect(&self, now: Timestamp) -> Inspection {
        let live = |e: &&Entry| e.expires > now;
        let holders = self.holders.iter().filter(live).map(|e| e.holder(now));
        let waiting = self.waiters().filter(live).count();
        Inspection::new(holders.collect(), u32::try_from(waiting).unwrap_or(u32::MAX))
    }

    /// Whether a request in this mode is compatible with the present holders.
    pub(super) fn is_admissible(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared { limit } => {
                self.holders.iter().all(|e| e.mode == mode)
                    && limit.is_none_or(|n| self.holders.len() < n.get() as usize)
            }
        }
    }

    /// The shared mode in which the name is held or waited for.
    pub(super) fn class(&self) -> Option<Mode> {
        self.entries().map(|e| e.mode).find(|m| !m.is_exclusive())
    }

    /// The lease of a request, which can be renewed, converted or raised.
    pub(super) fn lease_mut(&mut self, id: RequestId) -> Option<&mut Entry> {
        self.holders.iter_mut().find(|e| e.id == id && e.is_lease())
    }

    pub(super) fn head(&self) -> Option<&Entry> {
        self.queue.as_ref()?.waiters.front().map(|(_, w)| w)
    }

    /// How many are ahead of a waiter.
    pub(super) fn position(&self, id: RequestId) -> Option<usize> {
        self.queue.as_ref()?.waiters.iter().position(|(_, w)| w.id == id)
    }

    pub(super) fn waiter_mut(&mut self, position: usize) -> Option<&mut Entry> {
        self.queue.as_mut()?.waiters.get_mut(position).map(|(_, w)| w)
    }

    pub(super) fn withdraw(&mut self, position: usize) -> Option<Entry> {
        self.queue.as_mut()?.waiters.remove(position).map(|(_, w)| w)
    }

    /// The place of a new request of this priority, behind all that are at least as urgent, and its number in
    /// line.
    pub(super) fn turn_of(&self, priority: u8) -> (usize, i64) {
        let Some(queue) = &self.queue else {
            return (0, 0);
        };
        let turn = queue.waiters.partition_point(|(_, w)| w.priority >= priority);
        let before = turn.checked_sub(1).and_then(|n| queue.waiters.get(n));
        (turn, before.map_or(0, |(n, _)| n.saturating_add(1)))
    }

    pub(super) fn enqueue(&mut self, (turn, arrival): (usize, i64), waiter: Entry) {
        let queue = self.queue.get_or_insert_with(|| {
            Box::new(Queue {
                waiters: VecDeque::new(),
                next_expiry: Timestamp::MAX,
            })
        });
        queue.next_expiry = queue.next_expiry.min(waiter.expires);
        queue.waiters.insert(turn, (arrival, waiter));
    }

    /// Removes waiters whose queue lease has expired.
    pub(super) fn drop_lapsed(&mut self, now: Timestamp, mut dropped: impl FnMut(&Entry)) {
        let Some(queue) = self.queue.as_mut().filter(|q| q.next_expiry <= now) else {
            return;
        };
        let mut next = Timestamp::MAX;
        queue.waiters.retain(|(_, w)| {
            if w.expires <= now {
                dropped(w);
                return false;
            }
            next = next.min(w.expires);
            true
        });
        queue.next_expiry = next;
    }
}
