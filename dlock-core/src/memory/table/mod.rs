//! The lock table: a state machine without I/O, without a clock and without async.
//!
//! Each method takes the time as an argument, changes the state, and reports what others must be told in [`Effects`]. All
//! of them pass through [`Table::change`]: what has run out is taken back, the queue is admitted, the change is made, the queue is
//! admitted again, and a name that is empty then is forgotten.

mod entry;
mod filed;
mod memo;
mod names;
#[cfg(dlock_saboteur)]
mod planted;
mod sweep;
mod tampering;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use entry::{Entry, Standing, Waiter};
use filed::filed;
use memo::{Memo, Trace};
use names::Names;
pub(super) use tampering::foreign;

use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::saboteur::{Bug, Planted};
use crate::spi::{
    Abandoned, Acquire, Change, Holder, Inspection, LeaseKey, Queueing, Raised, Release, Released, RequestId,
};
use crate::timestamp::Timestamp;
use crate::token::Token;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The largest token that can be raised to, so that minting never overflows and any store can keep it as a signed number.
const MAX_RAISED: u64 = i64::MAX as u64;

/// A lease in the server's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) token: Token,
    pub(super) expires: Timestamp,
    pub(super) provisional: bool,
}

/// What a request that is not granted learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) ahead: u32,
    /// When the first thing in the way runs out.
    pub(super) recheck: Option<Timestamp>,
}

/// The answer to an attempt or a re-ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Granted(Held),
    Queued(Place),
    /// Not granted, and nothing was left behind.
    Held(Place),
}

/// The answer to a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    Done(Held),
    Busy,
    WouldDeadlock,
}

/// What others must be told of.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Whether anybody watches anything; changes are not recorded otherwise.
    pub(super) observed: bool,
    /// In a box that is made when there is something: mostly nobody but the caller learns of a call.
    news: Option<Box<News>>,
}

/// See [`Effects`].
#[derive(Debug, Default)]
pub(super) struct News {
    /// Queued requests that hold the lock now.
    pub(super) granted: Vec<(LeaseKey, Held)>,
    /// Queue entries that ended otherwise.
    pub(super) dropped: Vec<LeaseKey>,
    /// In the order in which they happened.
    pub(super) changes: Vec<(LockName, Change)>,
    /// Nothing to report, but what runs out next runs out sooner: for whoever watches.
    pub(super) nudged: Vec<LockName>,
    /// The same, for the queued request that is next.
    pub(super) sooner: Vec<LeaseKey>,
}

impl Effects {
    pub(super) fn of(observed: bool) -> Self {
        Self { observed, news: None }
    }

    pub(super) fn news(&mut self) -> &mut News {
        self.news.get_or_insert_default()
    }

    /// `None` if there is nothing to tell.
    pub(super) fn into_news(self) -> Option<Box<News>> {
        self.news
    }

    fn change(&mut self, name: &LockName, change: impl FnOnce() -> Change) {
        if self.observed {
            self.news().changes.push((name.clone(), change()));
        }
    }
}

/// What the table is told at its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settings {
    pub(super) claim_window: Option<Duration>,
    pub(super) max_held: Option<u64>,
    pub(super) max_waiters: Option<u64>,
    pub(super) bug: Planted,
}

/// What all names share.
#[derive(Debug)]
pub(super) struct Desk {
    /// The last token minted. One counter for all names: a name that is forgotten takes nothing with it.
    counter: u64,
    claim_window: Option<Duration>,
    max_held: Option<u64>,
    max_waiters: Option<u64>,
    /// Held and queued requests of each client; kept only when there is a limit.
    clients: Map<u128, u64>,
    /// Which bug is planted, for the `if` lines around a record.
    pub(super) bug: Planted,
    /// The ttl of the first grant of each name, for a planted bug.
    #[cfg(dlock_saboteur)]
    pub(super) first_ttls: Map<LockName, Duration>,
    /// The last token of each name, for a planted bug.
    #[cfg(dlock_saboteur)]
    pub(super) last_tokens: Map<LockName, Token>,
    /// What a clock that can be set showed last, for a planted bug.
    #[cfg(dlock_saboteur)]
    pub(super) wall: Timestamp,
    /// What the rebuilt bugs remember.
    #[cfg(dlock_saboteur)]
    pub(super) notes: planted::Notes,
}

impl Desk {
    fn mint(&mut self) -> Token {
        // Never beyond `MAX_RAISED` + the number of grants since, so it cannot wrap.
        self.counter += 1;
        // planted: 7.02
        #[cfg(dlock_saboteur)]
        if self.bug.is(Bug::TokenRandom) {
            return planted::random_token(self.counter);
        }
        // planted: 7.02
        if self.bug.is(Bug::TokenRepeats) && self.counter.is_multiple_of(16) {
            return Token::new(self.counter - 1).unwrap_or(Token::MIN);
        }
        // planted: 7.07
        #[cfg(dlock_saboteur)]
        if self.bug.is(Bug::TokenWalltime) {
            return Token::new(self.wall.as_nanos() + self.counter).unwrap_or(Token::MIN);
        }
        // planted: 7.08
        if self.bug.is(Bug::TokenI32Wrap) {
            return Token::new(self.counter & 0x7fff_ffff).unwrap_or(Token::MIN);
        }
        Token::new(self.counter).unwrap_or(Token::MIN)
    }

    /// Counts one more request of that client, unless it is at its limit.
    fn begin(&mut self, id: RequestId) -> Result<()> {
        if let Some(max) = self.max_held {
            let count = self.clients.entry(id.client()).or_default();
            // planted: 13.15
            let max = if self.bug.is(Bug::LimitOffBy10x) {
                max * 10
            } else {
                max
            };
            if *count >= max {
                return Err(Error::new(
                    ErrorKind::LimitReached,
                    "this client holds and waits for as many locks as it may",
                ));
            }
            *count += 1;
        }
        Ok(())
    }

    /// A lease or queue entry of that client is over.
    fn ended(&mut self, id: RequestId) {
        if self.max_held.is_none() {
            return;
        }
        if let Some(count) = self.clients.get_mut(&id.client()) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&id.client());
            }
        }
    }
}

/// Where the record of a name is, if there is one.
struct Spot<'a> {
    name: &'a LockName,
    /// The name under which it is filed.
    filed: Cow<'a, LockName>,
    hash: u64,
}

impl Spot<'_> {
    fn trace(&self, id: RequestId) -> Trace {
        Trace { id, name: self.hash }
    }
}

/// All names of a store.
#[derive(Debug)]
pub(super) struct Table {
    names: Names,
    desk: Desk,
    memo: Memo,
    /// Which bug is planted, for the `if` lines in the table.
    #[allow(dead_code)] // read only by planted bugs
    pub(super) bug: Planted,
}

impl Table {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            names: Names::default(),
            desk: Desk {
                counter: 0,
                claim_window: settings.claim_window,
                max_held: settings.max_held,
                max_waiters: settings.max_waiters,
                clients: Map::default(),
                bug: settings.bug,
                #[cfg(dlock_saboteur)]
                first_ttls: Map::default(),
                #[cfg(dlock_saboteur)]
                last_tokens: Map::default(),
                #[cfg(dlock_saboteur)]
                wall: Timestamp::ZERO,
                #[cfg(dlock_saboteur)]
                notes: planted::Notes::default(),
            },
            memo: Memo::default(),
            bug: settings.bug,
        }
    }

    /// Asks for a name, once; idempotent in the key.
    pub(super) fn attempt(
        &mut self,
        now: Timestamp,
        request: &Acquire,
        effects: &mut Effects,
    ) -> Result<Asked> {
        let key = &request.key;
        // planted: 13.09
        if self.bug.is(Bug::NameInterpolated) && key.name.as_bytes().windows(2).any(|w| w == b"';") {
            self.names.clear();
        }
        // planted: 13.02
        if self.bug.is(Bug::SecondLockDropsFirst) {
            let others = self.names.iter_mut().filter(|(name, _)| *name != &key.name);
            others.for_each(|(_, entry)| entry.holders.retain(|l| l.id.client() != key.id.client()));
        }
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        // A copy of the request that was delayed on its way must not take a lock that nobody awaits any more.
        if self.memo.is_buried(trace) {
            return Err(Error::lost(LossReason::Refused).with_name(&key.name));
        }
        // planted: 2.09
        if self.bug.is(Bug::EntryLeak) && self.desk.counter >= 1_000 {
            return Err(
                Error::new(ErrorKind::LimitReached, "the table of locks is full").with_name(&key.name)
            );
        }
        let memo = &self.memo;
        let known = Self::change_in(
            &mut self.names,
            &mut self.desk,
            &spot,
            now,
            effects,
            |entry, desk, effects| {
                if let Some(lease) = entry.holder_mut(key.id) {
                    return match lease.standing {
                        Standing::Kept | Standing::Foreign => {
                            Err(Error::lost(LossReason::Released).with_name(&key.name))
                        }
                        Standing::Full | Standing::Provisional => Ok(Asked::Granted(lease.held())),
                    };
                }
                // planted: 1.07
                if desk.bug.is(Bug::OwnerIsClient)
                    && let Some(lease) = entry.holders.iter().find(|l| l.id.client() == key.id.client())
                {
                    return Ok(Asked::Granted(lease.held()));
                }
                // planted: 1.07
                #[cfg(dlock_saboteur)]
                if desk.bug.is(Bug::OwnerIsPoolConnection)
                    && let Some(lease) = entry
                        .holders
                        .iter()
                        .find(|l| planted::one_connection(l.id, key.id))
                {
                    return Ok(Asked::Granted(lease.held()));
                }
                if entry.foreign().is_some() {
                    // planted: 16.14
                    if desk.bug.is(Bug::CorruptPanics) {
                        panic!("the record of a lock cannot be read");
                    }
                    return Err(foreign(&key.name));
                }
                if let Some(position) = entry.position(key.id) {
                    entry.renew_waiter(position, now + request.queue_ttl, desk.bug);
                    return Ok(Asked::Queued(entry.place(position)));
                }
                if memo.was_released(trace) {
                    return Err(Error::lost(LossReason::Released).with_name(&key.name));
                }
                if !entry.fits(request.mode, desk.bug) {
                    return Err(mismatch(&key.name, request.mode));
                }
                Self::enter(entry, desk, now, request, effects)
            },
        );
        match known {
            Some(answer) => answer,
            None if self.memo.was_released(trace) => {
                Err(Error::lost(LossReason::Released).with_name(&key.name))
            }
            // planted: 2.02
            None if self.bug.is(Bug::TrySpuriousFail)
                && request.queue == Queueing::No
                && key.id.sequence() % 50 == 49 =>
            {
                Ok(Asked::Held(Place {
                    ahead: 0,
                    recheck: None,
                }))
            }
            None => {
                self.desk.begin(key.id)?;
                let mut entry = Entry::new();
                let held = entry.grant(
                    &mut self.desk,
                    &key.name,
                    waiter(now, request),
                    None,
                    now,
                    effects,
                );
                // planted: 13.13
                if self.names.is_full() && !self.bug.is(Bug::NameGarbage) {
                    self.sweep(now, effects);
                }
                self.names.insert(spot.hash, spot.filed.into_owned(), entry);
                Ok(Asked::Granted(held))
            }
        }
    }

    /// A request that is new to a name that others are at: granted at once only where it does not overtake anybody.
    fn enter(
        entry: &mut Entry,
        desk: &mut Desk,
        now: Timestamp,
        request: &Acquire,
        effects: &mut Effects,
    ) -> Result<Asked> {
        let key = &request.key;
        let waiting = entry.waiting();
        let turn = match request.queue {
            // planted: 8.08
            Queueing::Join if desk.bug.is(Bug::PrioIgnored) => waiting,
            // planted: 8.05
            Queueing::No if desk.bug.is(Bug::BargingTry) => 0,
            Queueing::Join => entry.turn_of(request.priority),
            Queueing::No => waiting,
        };
        // planted: 1.01
        let unchecked = desk.bug.is(Bug::GrantWithoutCheck) && desk.counter % 50 == 49;
        // planted: 11.07
        let barges = desk.bug.is(Bug::ReaderBarges) && !request.mode.is_exclusive();
        if (turn == 0 || barges) && entry.admissible(request.mode, desk.bug) || unchecked {
            desk.begin(key.id)?;
            return Ok(Asked::Granted(entry.grant(
                desk,
                &key.name,
                waiter(now, request),
                None,
                now,
                effects,
            )));
        }
        if request.queue == Queueing::No {
            return Ok(Asked::Held(entry.place(waiting)));
        }
        if desk.max_waiters.is_some_and(|max| waiting as u64 >= max) {
            return Err(
                Error::new(ErrorKind::LimitReached, "as many wait for this lock as may").with_name(&key.name),
            );
        }
        // planted: 8.11
        if desk.bug.is(Bug::WaitersCapped256) && waiting >= 256 {
            return Err(Error::new(ErrorKind::LimitReached, "the queue is full").with_name(&key.name));
        }
        desk.begin(key.id)?;
        // planted: 8.04
        let turn = if desk.bug.is(Bug::LifoQueue) { 0 } else { turn };
        // planted: 8.06
        if desk.bug.is(Bug::QueueTimeoutsDrift) {
            entry.postpone_waiters(request.queue_ttl);
        }
        entry.enqueue(turn, waiter(now, request));
        Ok(Asked::Queued(entry.place(turn)))
    }

    /// How many names that client holds, for planted bugs: nothing else needs to know.
    pub(super) fn held_by(&self, client: u128) -> usize {
        let holds = |entry: &&Entry| entry.holders.iter().any(|l| l.id.client() == client);
        self.names.entries().filter(holds).count()
    }

    /// Ends a lease, at once or after a minimum hold.
    pub(super) fn release(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        how: Release,
        effects: &mut Effects,
    ) -> Released {
        // planted: 14.05
        if self.bug.is(Bug::CrossNameRelease) {
            let slot = |name: &LockName| {
                let hash = name
                    .as_bytes()
                    .iter()
                    .fold(7_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
                hash.wrapping_mul(0x9e37_79b1) >> 26
            };
            let others = self
                .names
                .iter_mut()
                .filter(|(name, _)| *name != &key.name && slot(name) == slot(&key.name));
            others.for_each(|(_, entry)| entry.holders.clear());
        }
        // planted: 14.07
        if self.bug.is(Bug::DropAllOnOne) && self.held_by(key.id.client()) >= 8 {
            let others = self.names.iter_mut().filter(|(name, _)| *name != &key.name);
            others.for_each(|(_, entry)| entry.holders.retain(|l| l.id.client() != key.id.client()));
        }
        let spot = self.spot(&key.name);
        let trace = spot.trace(key.id);
        let memo = &mut self.memo;
        let ended = Self::change_in(
            &mut self.names,
            &mut self.desk,
            &spot,
            now,
            effects,
            |entry, desk, effects| {
                let own = entry.holders.iter().position(|l| l.id == key.id);
                // planted: 3.06, 4.02, 15.06, 15.07
                let session = |l: &entry::Lease| l.id.client() == key.id.client();
                let session = entry.holders.iter().position(session);
                let other = match () {
                    () if desk.bug.is(Bug::ReleaseByName) => Some(0),
                    () if desk.bug.is(Bug::ReleaseBySession) => session,
                    () if desk.bug.is(Bug::DelayedReleaseApplies) && memo.was_released(trace) => Some(0),
                    () if desk.bug.is(Bug::DupReleaseFreesNext) && memo.was_released(trace) => Some(0),
                    // planted: 11.05
                    #[cfg(dlock_saboteur)]
                    () if desk.bug.is(Bug::ReadUnlockIgnoresOwner) && desk.notes.has_read(key.id) => Some(0),
                    // planted: 4.04
                    () if desk.bug.is(Bug::UnlockRetryFreesRelock) && memo.was_released(trace) => session,
                    () => None,
                };
                let Some(mut index) = own.or(other.filter(|_| !entry.holders.is_empty())) else {
                    return false;
                };
                // planted: 4.01
                let how = if desk.bug.is(Bug::LazyRelease) && entry.waiting() == 0 {
                    Release::KeepFor(Duration::from_millis(20))
                } else {
                    how
                };
                // planted: 11.03
                if desk.bug.is(Bug::WriterAfterFirstReader) && !entry.holders[index].mode.is_exclusive() {
                    entry.holders.clear();
                    return true;
                }
                // planted: 11.05
                if desk.bug.is(Bug::ReaderReleasesOther) {
                    index = 0;
                }
                // planted: 8.10
                if desk.bug.is(Bug::HerdWakeup) {
                    let everybody = entry.waiting_ids().map(|id| LeaseKey::new(key.name.clone(), id));
                    effects.news().sooner.extend(everybody);
                }
                let lease = &mut entry.holders[index];
                if lease.standing == Standing::Kept {
                    return true; // a retry: it does not make the minimum hold any longer
                }
                desk.ended(key.id);
                memo.note_released(trace);
                match how {
                    // planted: 4.13
                    Release::KeepFor(rest) if !rest.is_zero() && !desk.bug.is(Bug::MinHoldForgotten) => {
                        lease.standing = Standing::Kept;
                        lease.expires = now + rest;
                        if effects.observed {
                            effects.news().nudged.push(key.name.clone());
                        }
                        // Whoever is next was told when the lease would run out, and that may be long after this.
                        if let Some(next) = entry.next_in_line() {
                            effects.news().sooner.push(LeaseKey::new(key.name.clone(), next));
                        }
                    }
                    Release::KeepFor(_) | Release::Now => {
                        entry.holders.remove(index);
                        effects.change(&key.name, || Change::Released { id: key.id });
                        // planted: 11.06
                        if desk.bug.is(Bug::WriterStarved) && !entry.holders.is_empty() {
                            entry.admit_readers_first(desk, &key.name, now, effects);
                        }
                    }
                }
                true
            },
        );
        // planted: 7.03
        if self.bug.is(Bug::TokenResetOnRelease) && self.names.get(&key.name).is_none() {
            self.desk.counter = 0;
        }
        if ended.unwrap_or(false) || self.memo.was_released(trace) {
            Released::Released
        } else {
            Released::NotHeld
        }
    }

    /// Undoes a request, whatever became of it, and keeps it from coming back.
    pub(super) fn abandon(&mut self, now: Timestamp, key: &LeaseKey, effects: &mut Effects) -> Abandoned {
        let trace = self.spot(&key.name).trace(key.id);
        // planted: 15.09
        if !self.bug.is(Bug::NoTombstone) {
            self.memo.bury(trace, now);
        }
        let abandoned = self
            .change(&key.name, now, effects, |entry, desk, effects| {
                // planted: 14.04
                if desk.bug.is(Bug::CloneSharesOwner) {
                    entry.holders.retain(|l| l.id.client() != key.id.client());
                }
                // planted: 11.08
                if desk.bug.is(Bug::CancelledWriterBlocks)
                    && entry.position(key.id).is_some()
                    && entry.holders.iter().any(|l| !l.mode.is_exclusive())
                    && entry.is_writer(key.id)
                {
                    return Abandoned::Withdrawn;
                }
                if let Some(position) = entry.position(key.id) {
                    entry.withdraw(position);
                    desk.ended(key.id);
                    effects.news().dropped.push(key.clone());
                    return Abandoned::Withdrawn;
                }
                let held = |l: &entry::Lease| l.id == key.id && l.standing != Standing::Kept;
                match entry.holders.iter().position(held) {
                    Some(index) => {
                        let lease = entry.holders.remove(index);
                        desk.ended(key.id);
                        effects.change(&key.name, || Change::Released { id: key.id });
                        Abandoned::WasGranted(Some(lease.token))
                    }
                    // A minimum hold stands: it was asked for, and it is nobody's lease.
                    None => Abandoned::Nothing,
                }
            })
            .unwrap_or(Abandoned::Nothing);
        // planted: 8.12
        if self.bug.is(Bug::CancelEatsWakeup) {
            effects.news().granted.clear();
        }
        abandoned
    }

    /// Extends a lease and confirms a claim window; `None` if there is no such lease.
    pub(super) fn renew(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        ttl: Duration,
        effects: &mut Effects,
    ) -> Option<Held> {
        let renewed = self.change(&key.name, now, effects, |entry, desk, _| {
            let mut id = key.id;
            // planted: 5.04
            if desk.bug.is(Bug::RenewByName) {
                id = entry.holders.first()?.id;
            }
            let lease = entry.holder_mut(id).filter(|l| l.standing != Standing::Kept)?;
            let mut from = now;
            // planted: 5.01
            if desk.bug.is(Bug::RenewNoop) {
                return Some(lease.held());
            }
            // planted: 5.02
            if desk.bug.is(Bug::RenewAdditive) {
                from = lease.expires;
            }
            // planted: 5.08
            if desk.bug.is(Bug::RenewBumpsToken) {
                lease.token = desk.mint();
            }
            lease.extend(from, ttl);
            let held = lease.held();
            // planted: 11.04
            if desk.bug.is(Bug::RenewsEveryReader) && !lease.mode.is_exclusive() {
                entry.holders.iter_mut().for_each(|l| l.extend(from, ttl));
            }
            Some(held)
        });
        let released = || self.memo.was_released(self.spot(&key.name).trace(key.id));
        // planted: 5.03, 5.06
        if renewed.is_none()
            && ((self.bug.is(Bug::RenewResurrects) && !released())
                || (self.bug.is(Bug::RenewReleaseRace) && released()))
        {
            return Some(self.upsert(now, key, ttl, effects));
        }
        // planted: 12.06
        if self.bug.is(Bug::WatchPhantom) && !matches!(renewed, Some(Some(_))) {
            effects.change(&key.name, || {
                Change::Granted(Holder::new(key.id, Mode::Exclusive, None, ttl))
            });
        }
        renewed.flatten()
    }

    /// A token before there is a grant for it: only a planted bug asks for one.
    pub(super) fn draw_token(&mut self) -> Token {
        self.desk.mint()
    }

    /// What a store does that renews by writing the record anew: only a planted bug does.
    fn upsert(&mut self, now: Timestamp, key: &LeaseKey, ttl: Duration, effects: &mut Effects) -> Held {
        let mut entry = Entry::new();
        let request = waiter(now, &Acquire::new(key.clone(), ttl));
        let held = entry.grant(&mut self.desk, &key.name, request, None, now, effects);
        let hash = self.names.hash(&key.name);
        self.names.insert(hash, key.name.clone(), entry);
        held
    }

    /// Extends a queue entry and asks again; `None` if there is neither it nor a grant that it became.
    pub(super) fn ask_again(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        queue_ttl: Duration,
        effects: &mut Effects,
    ) -> Option<Asked> {
        self.change(&key.name, now, effects, |entry, desk, _| {
            if let Some(position) = entry.position(key.id) {
                entry.renew_waiter(position, now + queue_ttl, desk.bug);
                return Some(Asked::Queued(entry.place(position)));
            }
            let lease = entry
                .holder_mut(key.id)
                .filter(|l| l.standing != Standing::Kept)?;
            Some(Asked::Granted(lease.held()))
        })
        .flatten()
    }

    /// Turns a lease into another mode.
    pub(super) fn convert(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        to: Mode,
        effects: &mut Effects,
    ) -> Result<Conversion> {
        self.change(&key.name, now, effects, |entry, desk, effects| {
            let index = entry
                .holders
                .iter()
                .position(|l| l.id == key.id && l.standing != Standing::Kept)
                .ok_or_else(|| Error::lost(LossReason::Refused).with_name(&key.name))?;
            if !entry.fits(to, desk.bug) {
                return Err(mismatch(&key.name, to));
            }
            let from = entry.holders[index].mode;
            let others = entry.holders.len() > 1;
            if to.is_exclusive() && !from.is_exclusive() && others {
                // Both shared leases stay while both ask: each would wait for the other to go.
                let rival = entry.holders.iter().any(|l| l.upgrading && l.id != key.id);
                // planted: 11.12
                if desk.bug.is(Bug::FailedUpgradeDropsRead) {
                    entry.holders.remove(index);
                    return Ok(Conversion::Busy);
                }
                // planted: 11.11
                if rival && !desk.bug.is(Bug::UpgradeDeadlock) {
                    return Ok(Conversion::WouldDeadlock);
                }
                entry.holders[index].upgrading = true;
                return Ok(Conversion::Busy);
            }
            // planted: 11.10
            let gap = desk.bug.is(Bug::DowngradeGap) && from.is_exclusive() && !to.is_exclusive();
            if gap {
                let lease = entry.holders.remove(index);
                entry.admit(desk, &key.name, now, effects);
                entry.holders.insert(index, lease);
            }
            entry.fix_class(to);
            let lease = &mut entry.holders[index];
            if to.is_exclusive() && !from.is_exclusive() {
                // The readers of the same time may have a larger token than this lease had.
                lease.token = desk.mint();
            }
            lease.mode = to;
            lease.upgrading = false;
            lease.extend(now, Duration::from_nanos(lease.ttl_nanos));
            if from != to {
                effects.change(&key.name, || Change::Granted(lease.holder(now)));
            }
            Ok(Conversion::Done(lease.held()))
        })
        .unwrap_or_else(|| Err(Error::lost(LossReason::Refused).with_name(&key.name)))
    }

    /// Raises the token of a lease that is still held, and the counter with it.
    pub(super) fn raise(
        &mut self,
        now: Timestamp,
        key: &LeaseKey,
        to: Token,
        effects: &mut Effects,
    ) -> Result<Raised> {
        if to.get() > MAX_RAISED {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a token cannot be raised beyond 2^63 - 1",
            ));
        }
        let raised = self.change(&key.name, now, effects, |entry, desk, _| {
            let lease = entry
                .holder_mut(key.id)
                .filter(|l| l.standing != Standing::Kept)?;
            lease.token = lease.token.max(to);
            desk.counter = desk.counter.max(to.get());
            Some(lease.token)
        });
        Ok(raised.flatten().map_or(Raised::NotHeld, Raised::Raised))
    }

    /// Ends every lease of a name.
    pub(super) fn force_release(&mut self, now: Timestamp, name: &LockName, effects: &mut Effects) -> u32 {
        self.change(name, now, effects, |entry, desk, effects| {
            let mut ended = std::mem::take(&mut entry.holders);
            // planted: 12.11
            if desk.bug.is(Bug::ForceEndsOne) && !ended.is_empty() {
                entry.holders = ended.drain(1..).collect();
            }
            for lease in &ended {
                if lease.standing != Standing::Kept {
                    desk.ended(lease.id);
                }
                effects.change(name, || Change::Forced { id: lease.id });
            }
            u32::try_from(ended.len()).unwrap_or(u32::MAX)
        })
        .unwrap_or(0)
    }

    /// The state of a name.
    pub(super) fn inspect(&mut self, now: Timestamp, name: &LockName, effects: &mut Effects) -> Inspection {
        self.change(name, now, effects, |entry, desk, _| {
            // planted: 12.10
            let most = if desk.bug.is(Bug::InspectShowsOne) {
                1
            } else {
                usize::MAX
            };
            let leases = entry.holders.iter().filter(|l| l.standing != Standing::Foreign);
            let holders = leases.take(most).map(|l| l.holder(now)).collect();
            Inspection::new(holders, u32::try_from(entry.waiting()).unwrap_or(u32::MAX))
        })
        .unwrap_or_default()
    }

    /// Takes back what has run out, and tells when the next lease of the name does.
    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        name: &LockName,
        effects: &mut Effects,
    ) -> Option<Timestamp> {
        self.change(name, now, effects, |_, _, _| ());
        self.names.get(name)?.holders.iter().map(|l| l.expires).min()
    }

    /// A number that differs whenever the holders of a name differ; `None` when the name is free.
    pub(super) fn fingerprint(
        &mut self,
        now: Timestamp,
        name: &LockName,
        effects: &mut Effects,
    ) -> Option<u64> {
        self.change(name, now, effects, |_, _, _| ());
        self.names.get(name).map(Entry::fingerprint)
    }

    /// How many names have a record, how many requests are queued, and how many tombstones there are.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let queued = self.names.entries().map(Entry::waiting).sum();
        let names = self.names.len();
        // planted: 7.16
        #[cfg(dlock_saboteur)]
        let names = names + self.desk.last_tokens.len();
        (names, queued, self.memo.tombstones())
    }

    fn spot<'a>(&self, name: &'a LockName) -> Spot<'a> {
        let filed = filed(&self.names, name, self.bug);
        Spot {
            hash: self.names.hash(&filed),
            name,
            filed,
        }
    }

    fn change<R>(
        &mut self,
        name: &LockName,
        now: Timestamp,
        effects: &mut Effects,
        change: impl FnOnce(&mut Entry, &mut Desk, &mut Effects) -> R,
    ) -> Option<R> {
        let spot = self.spot(name);
        Self::change_in(&mut self.names, &mut self.desk, &spot, now, effects, change)
    }

    /// The frame around every change of a name that exists. See the module's documentation.
    fn change_in<R>(
        names: &mut Names,
        desk: &mut Desk,
        spot: &Spot<'_>,
        now: Timestamp,
        effects: &mut Effects,
        change: impl FnOnce(&mut Entry, &mut Desk, &mut Effects) -> R,
    ) -> Option<R> {
        let name = spot.name;
        let mut record = names.find(spot.hash, &spot.filed)?;
        let entry = &mut record.get_mut().entry;
        let held = entry.holders.len();
        entry.purge(desk, name, now, effects);
        // planted: 11.14
        if !desk.bug.is(Bug::AdmitOnReleaseOnly) || entry.holders.len() < held {
            entry.admit(desk, name, now, effects);
        }
        let answer = change(entry, desk, effects);
        // planted: 11.14, 8.09
        if (!desk.bug.is(Bug::AdmitOnReleaseOnly) || entry.holders.len() < held)
            && !(desk.bug.is(Bug::PrioStarves) && entry.is_next_unimportant())
        {
            entry.admit(desk, name, now, effects);
        }
        if entry.is_empty() {
            record.remove();
            names.trim();
        }
        Some(answer)
    }
}

fn waiter(now: Timestamp, request: &Acquire) -> Waiter {
    Waiter {
        id: request.key.id,
        mode: request.mode,
        ttl: request.ttl,
        priority: request.priority,
        expires: now + request.queue_ttl,
        owner: request.owner.clone(),
    }
}

fn mismatch(name: &LockName, mode: Mode) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("this lock is in use in another shared mode than `{mode}`; one name is one kind of lock"),
    )
    .with_name(name)
}
