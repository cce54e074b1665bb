//! The state of one name, and the one admission rule that every change runs.
//!
//! No I/O here: a transaction loads a name's rows into a [`NameState`], the calls change it and note what has
//! become dirty, and the transaction writes that back. The transactions on a name were put into one order
//! before the first row was read, by `BEGIN IMMEDIATE` in SQLite, by locking the name's row in MySQL. So
//! nothing here can race with another process. Times are those of one clock: of the machine since its boot in
//! SQLite, of the server in MySQL.
//!
//! A waiter that comes to its turn while it is away is *offered* the lock: the lease runs no longer than its
//! queue entry would have, and the ttl starts with its next re-ask. A waiter that died in the queue thus
//! costs what is left of its queue lease, not a whole ttl.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use dlock_core::{Change, Inspection, Mode, RequestId, Timestamp};

mod compare;
mod entry;
mod requests;

pub(crate) use compare::Told;
use entry::Rank;
pub(crate) use entry::{Entry, Phase, Row, Tokens, Watch};
pub(crate) use requests::{Asked, Turned};

use crate::requests::RESERVED;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Released,
    Expired,
    Forced,
}

/// Who holds a name, and whether alone, in the order of their ids.
#[cfg(feature = "sqlite")]
pub(crate) type Holders = Vec<(RequestId, bool)>;

/// All that those who wait have to know, be they ever so many.
#[cfg(feature = "sqlite")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Glance {
    pub(crate) holders: Holders,
    /// Those of them that were admitted while they waited, and have not been told.
    pub(crate) untold: Vec<RequestId>,
    /// The first end of a lease, of a holder or of a waiter.
    pub(crate) earliest: Option<Timestamp>,
}

/// Everything about one name.
#[derive(Debug, Default)]
pub(crate) struct NameState {
    entries: HashMap<RequestId, Entry>,
    queue: BTreeMap<Rank, RequestId>,
    /// The holders, in grant order. One that holds alone is the only one.
    held: Vec<RequestId>,
    next_arrival: i64,
    /// No entry runs out before this. A lower bound: renewals need not touch it.
    earliest: Option<Timestamp>,
    /// What differs from the stored rows, and whether a row of that id is stored.
    dirty: HashMap<RequestId, bool>,
    changes: Vec<Change>,
    /// Whether those who wait should look: other holders, one that ends sooner, a place that was given up.
    is_news: bool,
    /// That somebody watches the name, perhaps on another connection, and how much he should have seen.
    watch: Option<Watch>,
}

impl NameState {
    /// Takes over a stored row.
    pub(crate) fn insert_stored(&mut self, row: Row<Entry, Watch>) {
        match row {
            Row::Entry(entry) => {
                self.next_arrival = self.next_arrival.max(entry.arrival.saturating_add(1));
                self.enter(entry);
            }
            Row::Watch(watch) => {
                self.due_at(watch.until);
                self.watch = Some(watch);
            }
        }
    }

    /// Puts the holders that were loaded into grant order.
    pub(crate) fn loaded(&mut self) {
        let entries = &self.entries;
        self.held.sort_by_key(|id| entries.get(id).and_then(|e| e.token));
    }

    /// What is to be written: each id with its row to put, or `None` to delete.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (RequestId, Option<Row<&Entry, &Watch>>)> {
        self.dirty.iter().filter_map(|(id, stored)| {
            let row = match *id {
                RESERVED => self.watch.as_ref().map(Row::Watch),
                _ => self.entries.get(id).map(Row::Entry),
            };
            (row.is_some() || *stored).then_some((*id, row))
        })
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The transaction has committed. Also says whether that is news for those who wait.
    pub(crate) fn written(&mut self) -> (Vec<Change>, bool) {
        self.dirty.clear();
        let changes = std::mem::take(&mut self.changes);
        (changes, std::mem::take(&mut self.is_news))
    }

    fn touch(&mut self, id: RequestId, stored: bool) {
        self.dirty.entry(id).or_insert(stored);
    }

    /// Books an entry under its phase.
    fn enter(&mut self, entry: Entry) {
        self.due_at(entry.expires);
        match entry.phase {
            Phase::Queued => drop(self.queue.insert(entry.rank(), entry.id)),
            _ => self.held.push(entry.id),
        }
        self.entries.insert(entry.id, entry);
    }

    fn remove(&mut self, id: RequestId, cause: Cause) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        self.touch(id, true);
        // Of a waiter too: whoever comes to the head may run out sooner than all that the others know of.
        self.is_news = true;
        if entry.phase == Phase::Queued {
            self.queue.remove(&entry.rank());
            return;
        }
        self.held.retain(|h| *h != id);
        self.note(match cause {
            Cause::Released => Change::Released { id },
            // A minimum hold that is over was let go by its holder.
            Cause::Expired if entry.phase == Phase::Kept => Change::Released { id },
            Cause::Expired => Change::Expired { id },
            Cause::Forced => Change::Forced { id },
        });
        if cause == Cause::Forced {
            // Another connection sees that the holder is gone, and not why. Counted twice it does not add up.
            self.count();
        }
    }

    /// Notes a change of the holders, for those who watch.
    fn note(&mut self, change: Change) {
        self.is_news = true;
        self.changes.push(change);
        self.count();
    }

    /// Costs nothing but for a name that is watched.
    fn count(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.changes = watch.changes.saturating_add(1);
            self.touch(RESERVED, true);
        }
    }

    /// Has the changes counted for half a lease from now at least. The count begins with the time, so that no
    /// later one comes to the same number.
    pub(crate) fn keep_watch(&mut self, now: Timestamp, lease: Duration) {
        if self.is_watched(now + lease / 2) {
            return;
        }
        let (changes, until) = (now.as_nanos(), now + lease);
        self.touch(RESERVED, self.watch.is_some());
        self.watch.get_or_insert(Watch { changes, until }).until = until;
        self.due_at(until);
    }

    /// Whether the changes are counted until then.
    pub(crate) fn is_watched(&self, until: Timestamp) -> bool {
        self.watch.as_ref().is_some_and(|w| w.until >= until)
    }

    fn due_at(&mut self, at: Timestamp) {
        self.earliest = Some(self.earliest.map_or(at, |e| e.min(at)));
    }

    /// Whether something may have run out.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.earliest.is_some_and(|e| e <= now)
    }

    /// Takes back what has run out, and admits who is next. Comes first in every change, which would else
    /// renew, convert or wait for the dead.
    pub(crate) fn settle(&mut self, now: Timestamp, tokens: &mut Tokens) {
        if !self.is_due(now) {
            return;
        }
        let over = self.entries.values().filter(|e| e.expires <= now);
        let mut over: Vec<_> = over.map(|e| (e.token, e.id)).collect();
        over.sort_unstable();
        for (_, id) in &over {
            self.remove(*id, Cause::Expired);
        }
        if self.watch.take_if(|w| w.until <= now).is_some() {
            self.touch(RESERVED, true);
        }
        let watch = self.watch.iter().map(|w| w.until);
        self.earliest = self.entries.values().map(|e| e.expires).chain(watch).min();
        if !over.is_empty() {
            self.admit(now, tokens);
        }
    }

    /// Grants from the head of the queue while the head is admissible. Run by every change, since not only
    /// releases open the way: a withdrawn writer lets in the readers behind it, and so does a downgrade.
    fn admit(&mut self, now: Timestamp, tokens: &mut Tokens) {
        while let Some((&rank, id)) = self.queue.first_key_value()
            && let Some(entry) = self.entries.get(id)
            && self.is_admissible(entry.mode)
            && tokens.has_next()
        {
            let (id, expires) = (*id, entry.expires.min(now + entry.ttl));
            self.queue.remove(&rank);
            self.grant(id, Phase::Offered, expires, tokens);
        }
    }

    fn is_admissible(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.held.is_empty(),
            Mode::Shared { limit } => {
                self.sole_holder().is_none() && limit.is_none_or(|n| self.held.len() < n.get() as usize)
            }
            // `Mode` may grow; what is not known is not admitted.
            _ => false,
        }
    }

    /// The class of those who share, if somebody does or waits for it.
    fn class(&self) -> Option<Option<NonZeroU32>> {
        self.entries.values().find_map(|e| match e.mode {
            Mode::Shared { limit } => Some(limit),
            _ => None,
        })
    }

    /// Turns an entry that is not in the queue (any more) into a holder. There is a token for it.
    fn grant(&mut self, id: RequestId, phase: Phase, expires: Timestamp, tokens: &mut Tokens) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.phase = phase;
        entry.expires = expires;
        entry.token = tokens.mint();
        let holder = entry.holder(Duration::ZERO);
        self.held.push(id);
        self.due_at(expires);
        self.touch(id, true);
        self.note(Change::Granted(holder));
    }

    fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.held.iter().filter_map(|id| self.entries.get(id))
    }

    /// The state as it is now, whether or not what has run out was taken back.
    pub(crate) fn inspect(&self, now: Timestamp) -> Inspection {
        let live = |e: &&Entry| e.expires > now;
        let holders = self
            .holders()
            .filter(live)
            .map(|e| e.holder(e.expires.since(now)));
        let waiting = self.queue.values().filter_map(|id| self.entries.get(id));
        Inspection::new(holders.collect(), waiting.filter(live).count() as u32)
    }

    /// Who holds it alone, be it but for a minimum hold.
    pub(crate) fn sole_holder(&self) -> Option<&Entry> {
        let first = self.entries.get(self.held.first()?)?;
        first.mode.is_exclusive().then_some(first)
    }

    /// How many rows are stored of it when what is dirty has been written.
    #[cfg(feature = "mysql")]
    pub(crate) fn rows(&self) -> usize {
        self.entries.len() + usize::from(self.watch.is_some())
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn seen(&self) -> Holders {
        let holders = self.holders().map(|e| (e.id, e.mode.is_exclusive()));
        let mut seen: Holders = holders.collect();
        seen.sort_unstable();
        seen
    }

    /// What a count by the database would find.
    #[cfg(feature = "sqlite")]
    pub(crate) fn glance(&self) -> Glance {
        let untold = self.holders().filter(|e| e.phase == Phase::Offered);
        Glance {
            holders: self.seen(),
            untold: untold.map(|e| e.id).collect(),
            earliest: self.entries.values().map(|e| e.expires).min(),
        }
    }
}
