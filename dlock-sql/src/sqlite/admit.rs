//! The state of one name, and the one admission rule that every change runs.
//!
//! No I/O here: a transaction loads a name's rows into a [`NameState`], the calls below change it and note what has
//! become dirty, and the transaction writes that back. `BEGIN IMMEDIATE` has put the transactions of all processes
//! into one order before the first row is read, so nothing here can race with another process.
//!
//! A waiter that comes to its turn while it is away is *offered* the lock: the lease runs no longer than its queue entry would have,
//! and the ttl starts with its next re-ask. A waiter that died in the queue thus costs what is left of its queue lease, not a whole ttl.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use dlock_core::spi::{Change, Holder, Inspection, RequestId};
use dlock_core::{Mode, Timestamp};

mod ask;
mod entry;

pub(super) use ask::{Asked, Turned};
pub(super) use entry::{Entry, Phase, Tokens};
use entry::{Place, holder};

#[derive(Clone, Copy)]
enum End {
    Released,
    Expired,
    Forced,
}

/// Everything about one name.
#[derive(Debug, Default)]
pub(super) struct NameState {
    entries: HashMap<RequestId, Entry>,
    queue: BTreeMap<Place, RequestId>,
    held: Vec<RequestId>,
    exclusive: usize,
    shared: usize,
    /// How many entries, holding or waiting, are of a shared mode, and of which class.
    classed: usize,
    class: Option<NonZeroU32>,
    next_arrival: i64,
    /// No entry runs out before this. A lower bound: renewals need not touch it.
    earliest: Option<Timestamp>,
    /// What differs from the stored rows, and whether a row of that id is stored.
    dirty: HashMap<RequestId, bool>,
    changes: Vec<Change>,
}

impl NameState {
    /// Takes over a stored row.
    pub(super) fn insert_stored(&mut self, entry: Entry) {
        self.next_arrival = self.next_arrival.max(entry.arrival.saturating_add(1));
        self.enter(entry);
    }

    /// Puts the holders that were loaded into grant order.
    pub(super) fn loaded(&mut self) {
        let entries = &self.entries;
        self.held.sort_by_key(|id| entries.get(id).and_then(|e| e.token));
    }

    /// What is to be written: each id with its entry to put, or `None` to delete.
    pub(super) fn dirty(&self) -> impl Iterator<Item = (RequestId, Option<&Entry>)> {
        self.dirty
            .iter()
            .filter_map(|(id, stored)| match self.entries.get(id) {
                Some(entry) => Some((*id, Some(entry))),
                None if *stored => Some((*id, None)),
                None => None,
            })
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The transaction has committed: the rows are as the entries are.
    pub(super) fn written(&mut self) -> Vec<Change> {
        self.dirty.clear();
        std::mem::take(&mut self.changes)
    }

    fn touch(&mut self, id: RequestId, stored: bool) {
        self.dirty.entry(id).or_insert(stored);
    }

    /// Books an entry under its phase and mode.
    fn enter(&mut self, entry: Entry) {
        if let Some(limit) = entry.limit() {
            self.classed += 1;
            self.class = limit;
        }
        self.due_at(entry.expires);
        if entry.phase == Phase::Queued {
            self.queue.insert(entry.place(), entry.id);
        } else {
            self.held.push(entry.id);
            *self.counter(entry.mode) += 1;
        }
        self.entries.insert(entry.id, entry);
    }

    fn remove(&mut self, id: RequestId, end: End) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.touch(id, true);
        if entry.limit().is_some() {
            self.classed -= 1;
        }
        if entry.phase == Phase::Queued {
            self.queue.remove(&entry.place());
        } else {
            self.held.retain(|h| *h != id);
            *self.counter(entry.mode) -= 1;
            self.changes.push(match end {
                End::Released => Change::Released { id },
                // A minimum hold that is over was let go by its holder.
                End::Expired if entry.phase == Phase::Kept => Change::Released { id },
                End::Expired => Change::Expired { id },
                End::Forced => Change::Forced { id },
            });
        }
        Some(entry)
    }

    fn counter(&mut self, mode: Mode) -> &mut usize {
        if mode.is_exclusive() {
            &mut self.exclusive
        } else {
            &mut self.shared
        }
    }

    fn due_at(&mut self, at: Timestamp) {
        self.earliest = Some(self.earliest.map_or(at, |e| e.min(at)));
    }

    /// Whether something may have run out.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.earliest.is_some_and(|e| e <= now)
    }

    /// Takes back what has run out, and admits who is next. Comes first in every change: an operation must never see
    /// an entry that has ended, or it would renew, convert or wait for the dead.
    pub(super) fn settle(&mut self, now: Timestamp, tokens: &mut Tokens) {
        if !self.is_due(now) {
            return;
        }
        let mut over: Vec<_> = self
            .entries
            .values()
            .filter(|e| e.expires <= now)
            .map(|e| (e.token, e.id))
            .collect();
        over.sort_unstable();
        for (_, id) in &over {
            self.remove(*id, End::Expired);
        }
        self.earliest = self.entries.values().map(|e| e.expires).min();
        if !over.is_empty() {
            self.admit(now, tokens);
        }
    }

    /// Grants from the head of the queue while the head is admissible. Run by every change, since not only releases open the
    /// way: a withdrawn writer lets in the readers behind it, and so does a downgrade.
    fn admit(&mut self, now: Timestamp, tokens: &mut Tokens) {
        while let Some((&place, &id)) = self.queue.first_key_value() {
            let Some(entry) = self.entries.get(&id) else { break };
            if !self.is_admissible(entry.mode) || !tokens.has_next() {
                break;
            }
            let expires = entry.expires.min(now + entry.ttl);
            self.queue.remove(&place);
            self.grant(id, Phase::Offered, expires, tokens);
        }
    }

    fn is_admissible(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.exclusive + self.shared == 0,
            Mode::Shared { limit } => {
                self.exclusive == 0 && limit.is_none_or(|n| self.shared < n.get() as usize)
            }
            // `Mode` may grow; what is not known is not admitted.
            _ => false,
        }
    }

    /// Turns an entry that is not in the queue (any more) into a holder. There is a token for it.
    fn grant(&mut self, id: RequestId, phase: Phase, expires: Timestamp, tokens: &mut Tokens) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.phase = phase;
        entry.expires = expires;
        entry.token = tokens.mint();
        let (mode, holder) = (entry.mode, holder(entry, Duration::ZERO));
        self.held.push(id);
        *self.counter(mode) += 1;
        self.due_at(expires);
        self.touch(id, true);
        self.changes.push(Change::Granted(holder));
    }

    /// The state as it is now, whether or not what has run out was taken back.
    pub(super) fn inspect(&self, now: Timestamp) -> Inspection {
        let live = |e: &&Entry| e.expires > now;
        let holders = self
            .held
            .iter()
            .filter_map(|id| self.entries.get(id))
            .filter(live)
            .map(|e| holder(e, e.expires.since(now)))
            .collect();
        let waiting = self.queue.values().filter_map(|id| self.entries.get(id));
        Inspection::new(holders, waiting.filter(live).count() as u32)
    }

    /// The holders with the times at which their leases end.
    pub(super) fn holders(&self) -> Vec<(Holder, Timestamp)> {
        self.held
            .iter()
            .filter_map(|id| self.entries.get(id))
            .map(|e| (holder(e, Duration::ZERO), e.expires))
            .collect()
    }
}
