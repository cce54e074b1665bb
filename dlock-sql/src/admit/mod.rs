//! The rows of one name in a transaction, under the one [rule](dlock_core::spi::admission) of admission, and
//! which of them must be written back.
//!
//! The transactions on a name were put into one order before the first row was read, by `BEGIN IMMEDIATE` in
//! SQLite, by locking the name's row in MySQL. So nothing here can race with another process. Times are those
//! of one clock: of the machine since its boot in SQLite, of the server in MySQL.
//!
//! The next waiter is *offered* the lock while it is away: the lease ends with its queue entry, and the ttl
//! starts when it asks again. So a waiter that died in the queue costs the rest of its queue lease, not a
//! whole ttl.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::spi::admission::{self, Cause, Event};
use dlock_core::{Change, Error, ErrorKind, RequestId, Result, Timestamp, Token};

mod compare;

pub(crate) use compare::Told;
pub(crate) use dlock_core::spi::admission::{Asked, Entry, Phase};

use crate::gate::LAST_TOKEN;
use crate::requests::RESERVED;

/// The phases, as they are numbered in the tables.
const PHASES: [Phase; 4] = [Phase::Queued, Phase::Offered, Phase::Held, Phase::Kept];

/// In the place of a phase: that the row is of a watch.
pub(crate) const WATCHED: i64 = 4;

pub(crate) fn phase_number(phase: Phase) -> i64 {
    let number = PHASES.iter().position(|p| *p == phase);
    // The only other one is never made here.
    number.map_or(2, |n| n as i64)
}

pub(crate) fn read_phase(number: i64) -> Option<Phase> {
    PHASES.get(usize::try_from(number).ok()?).copied()
}

/// Marks that the changes of a name are counted for a watch, perhaps on another connection.
///
/// Every change of the name loads this row with the others, so no change is left out. It has a lease of its
/// own: an unwatched name costs nothing, and a dead watch leaves no row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) changes: u64,
    pub(crate) until: Timestamp,
}

/// One row of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<E, W> {
    /// With its number in line.
    Entry(E, i64),
    Watch(W),
}

/// The holders of a name, and whether there is an exclusive one, in the order of their ids.
#[cfg(feature = "sqlite")]
pub(crate) type Holders = Vec<(RequestId, bool)>;

/// All that the waiters have to know, whatever their number.
#[cfg(feature = "sqlite")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Glance {
    pub(crate) holders: Holders,
    /// Those that were admitted while they waited, and have not been notified.
    pub(crate) untold: Vec<RequestId>,
    /// The first end of a lease, of a holder or of a waiter.
    pub(crate) earliest: Option<Timestamp>,
}

/// Everything about one name.
#[derive(Debug, Default)]
pub(crate) struct NameState {
    pub(crate) rows: admission::NameState,
    books: Books,
}

/// What must be written and reported for a name.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// What differs from the stored rows, and whether a row of that id is stored.
    dirty: HashMap<RequestId, bool>,
    changes: Vec<Change>,
    /// Whether those who wait should look: other holders, one that ends sooner, a place that was given up.
    is_news: bool,
    /// The watch of the name, perhaps on another connection, and the count that it should have seen.
    watch: Option<Watch>,
}

/// A name of which what had run out is taken back.
pub(crate) type Settled<'a> = admission::Settled<'a, Ledger<'a>>;

/// The tokens of the database, as the transaction sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) last: u64,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code))]
    pub(crate) ceiling: u64,
    pub(crate) dirty: bool,
}

impl Tokens {
    /// Refuses what needs a token when there is none: one that came twice would be no fence. A raise may have
    /// gone to the last one that SQL can store.
    fn check(&self) -> Result<()> {
        if self.last < LAST_TOKEN {
            return Ok(());
        }
        let text = format!(
            "the tokens of this database are used up: the last one, {LAST_TOKEN}, was granted or raised to; \
             use another table prefix, with new gates"
        );
        Err(Error::new(ErrorKind::LimitReached, text))
    }
}

/// The books of a name, and the tokens that all names have in common.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    books: &'a mut Books,
    tokens: &'a mut Tokens,
}

impl NameState {
    /// Takes over a stored row. After the last one they are sorted.
    pub(crate) fn insert_stored(&mut self, row: Row<Entry, Watch>) {
        match row {
            Row::Entry(entry, arrival) => self.rows.insert(entry, arrival),
            Row::Watch(watch) => self.books.watch = Some(watch),
        }
    }

    /// What is to be written: each id with its row to put, or `None` to delete.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (RequestId, Option<Row<&Entry, &Watch>>)> {
        self.books.dirty.iter().filter_map(|(id, stored)| {
            let row = match *id {
                RESERVED => self.books.watch.as_ref().map(Row::Watch),
                _ => self.rows.find(*id).map(|(e, arrival)| Row::Entry(e, arrival)),
            };
            (row.is_some() || *stored).then_some((*id, row))
        })
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.books.dirty.is_empty()
    }

    /// The transaction has committed. Also says whether that is news for those who wait.
    pub(crate) fn written(&mut self) -> (Vec<Change>, bool) {
        let books = &mut self.books;
        books.dirty.clear();
        let changes = std::mem::take(&mut books.changes);
        (changes, std::mem::take(&mut books.is_news))
    }

    /// Takes back what has run out, and admits who is next. Comes first in every change, which would else
    /// renew, convert or wait for the dead.
    pub(crate) fn settle<'a>(&'a mut self, now: Timestamp, tokens: &'a mut Tokens) -> Settled<'a> {
        let books = &mut self.books;
        if books.watch.take_if(|w| w.until <= now).is_some() {
            books.touch(RESERVED, true);
        }
        Settled::begin(&mut self.rows, now, Ledger { books, tokens })
    }

    /// Whether something may have run out.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.rows.is_due(now) || self.books.watch.is_some_and(|w| w.until <= now)
    }

    /// Whether the changes are counted until then.
    #[cfg(feature = "sqlite")]
    pub(crate) fn is_watched(&self, until: Timestamp) -> bool {
        self.books.watch.is_some_and(|w| w.until >= until)
    }

    /// The exclusive holder, even if only for a minimum hold.
    #[cfg(feature = "mysql")]
    pub(crate) fn sole_holder(&self) -> Option<&Entry> {
        self.rows.holders().first().filter(|e| e.mode.is_exclusive())
    }

    /// How many rows are stored of it when what is dirty has been written.
    #[cfg(feature = "mysql")]
    pub(crate) fn len(&self) -> usize {
        self.rows.entries().count() + usize::from(self.books.watch.is_some())
    }

    /// Who is offered a lease by what is to be written.
    #[cfg(feature = "mysql")]
    pub(crate) fn offered(&self) -> impl Iterator<Item = RequestId> {
        self.dirty().filter_map(|(id, row)| {
            let is_offered = matches!(row, Some(Row::Entry(e, _)) if e.phase == Phase::Offered);
            is_offered.then_some(id)
        })
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn seen(&self) -> Holders {
        let holders = self.rows.holders().iter().map(|e| (e.id, e.mode.is_exclusive()));
        let mut seen: Holders = holders.collect();
        seen.sort_unstable();
        seen
    }

    /// What a count by the database would find.
    #[cfg(feature = "sqlite")]
    pub(crate) fn glance(&self) -> Glance {
        let untold = self.rows.holders().iter().filter(|e| e.phase == Phase::Offered);
        Glance {
            holders: self.seen(),
            untold: untold.map(|e| e.id).collect(),
            earliest: self.rows.entries().map(|e| e.expires).min(),
        }
    }
}

impl Books {
    fn touch(&mut self, id: RequestId, stored: bool) {
        self.dirty.entry(id).or_insert(stored);
    }

    /// Costs nothing but for a name that is watched.
    fn count(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.changes = watch.changes.saturating_add(1);
            self.touch(RESERVED, true);
        }
    }
}

impl Ledger<'_> {
    /// Has the changes counted for half a lease from now at least. The count begins with the time, so that no
    /// later one comes to the same number.
    pub(crate) fn keep_watch(&mut self, now: Timestamp, lease: Duration) {
        if self.books.watch.is_some_and(|w| w.until >= now + lease / 2) {
            return;
        }
        let (changes, until) = (now.as_nanos(), now + lease);
        self.books.touch(RESERVED, self.books.watch.is_some());
        self.books.watch.get_or_insert(Watch { changes, until }).until = until;
    }
}

impl admission::Ledger for Ledger<'_> {
    /// Nor is there a place in the queue for what could not be granted.
    fn begin(&mut self, _: RequestId, _: Option<usize>) -> Result<()> {
        self.tokens.check()
    }

    fn mint(&mut self) -> Result<Token> {
        self.tokens.check()?;
        let next = Token::new(self.tokens.last + 1).unwrap_or(Token::MIN);
        self.raise(next);
        Ok(next)
    }

    fn raise(&mut self, to: Token) {
        if to.get() > self.tokens.last {
            (self.tokens.last, self.tokens.dirty) = (to.get(), true);
        }
    }

    fn hand_off(&self, waiter: &Entry, now: Timestamp) -> (Phase, Timestamp) {
        (Phase::Offered, waiter.expires.min(now + waiter.ttl()))
    }

    /// Not one write per look: nothing is stored as long as hardly anything is missing.
    fn slack(&self, queue_ttl: Duration) -> Duration {
        queue_ttl / 16
    }

    fn note(&mut self, entry: &Entry, event: Event, now: Timestamp) {
        let is_new = matches!(event, Event::Queued | Event::Granted);
        self.books.touch(entry.id, !is_new);
        // Also for a waiter that is gone: the new head may expire sooner than anything that the others know
        // of. After a minimum hold begins, waiters know the end of the lease, which may be much later.
        self.books.is_news |= !matches!(event, Event::Queued | Event::Changed);
        if let Some(change) = event.change(entry, now) {
            self.books.changes.push(change);
            self.books.count();
        }
        if event == Event::Ended(Cause::Forced) {
            // Another connection sees that the holder is gone, and not why. Counted twice it does not add up.
            self.books.count();
        }
    }
}
