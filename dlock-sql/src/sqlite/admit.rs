//! The state of one name, and the one admission rule that every change runs.
//!
//! No I/O here: a transaction loads a name's rows into a [`NameState`], the calls below change it and note what has
//! become dirty, and the transaction writes that back. `BEGIN IMMEDIATE` has put the transactions of all processes
//! into one order before the first row is read, so nothing here can race with another process.
//!
//! A waiter that comes to its turn while it is away is *offered* the lock: the lease runs no longer than its queue entry would have,
//! and the ttl starts with its next re-ask. A waiter that died in the queue thus costs what is left of its queue lease, not a whole ttl.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Acquire, Change, Holder, Inspection, Queueing, Raised, Release, Released, RequestId,
};
use dlock_core::{Error, ErrorKind, LossReason, Mode, Result, Timestamp, Token};

/// The tokens of the database, as the transaction sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    pub(super) last: u64,
    pub(super) ceiling: u64,
    pub(super) dirty: bool,
}

impl Tokens {
    fn mint(&mut self) -> Token {
        self.dirty = true;
        self.last += 1;
        Token::new(self.last).unwrap_or(Token::MIN)
    }

    fn at_least(&mut self, token: Token) {
        if token.get() > self.last {
            self.last = token.get();
            self.dirty = true;
        }
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits in the queue.
    Queued,
    /// Granted while its waiter was away; the next re-ask starts the full ttl.
    Offered,
    /// Held.
    Held,
    /// Released, and kept taken by a minimum hold.
    Kept,
}

/// One holder or waiter of a name.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) id: RequestId,
    pub(super) phase: Phase,
    pub(super) mode: Mode,
    pub(super) priority: u8,
    pub(super) arrival: i64,
    pub(super) token: Option<Token>,
    pub(super) ttl: Duration,
    pub(super) expires: Timestamp,
    /// Has asked for an upgrade while others shared.
    pub(super) upgrading: bool,
    pub(super) owner: Option<Arc<str>>,
}

impl Entry {
    fn place(&self) -> (Reverse<u8>, i64) {
        (Reverse(self.priority), self.arrival)
    }

    fn limit(&self) -> Option<Option<NonZeroU32>> {
        match self.mode {
            Mode::Shared { limit } => Some(limit),
            _ => None,
        }
    }
}

/// The answer to an attempt or a re-ask.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Granted {
        token: Option<Token>,
        expires_in: Duration,
    },
    Queued {
        recheck_in: Option<Duration>,
        ahead: Option<u32>,
    },
    Held {
        recheck_in: Option<Duration>,
    },
    Gone,
}

/// The answer to a conversion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turned {
    Done {
        token: Option<Token>,
        expires_in: Duration,
    },
    Busy,
    WouldDeadlock,
}

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
    queue: BTreeMap<(Reverse<u8>, i64), RequestId>,
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
        self.next_arrival = self.next_arrival.max(entry.arrival + 1);
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
            if !self.is_admissible(entry.mode) {
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

    /// Turns an entry that is not in the queue (any more) into a holder.
    fn grant(&mut self, id: RequestId, phase: Phase, expires: Timestamp, tokens: &mut Tokens) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.phase = phase;
        entry.expires = expires;
        entry.token = Some(tokens.mint());
        let (mode, holder) = (entry.mode, holder(entry, Duration::ZERO));
        self.held.push(id);
        *self.counter(mode) += 1;
        self.due_at(expires);
        self.touch(id, true);
        self.changes.push(Change::Granted(holder));
    }

    /// Asks for the lock. The caller has settled.
    pub(super) fn attempt(&mut self, a: &Acquire, now: Timestamp, tokens: &mut Tokens) -> Result<Asked> {
        let id = a.key.id;
        if let Some(entry) = self.entries.get(&id) {
            // A retry: the first delivery did its work.
            return match entry.phase {
                Phase::Kept => Err(Error::lost(LossReason::Released)),
                _ => Ok(self.ask_again(id, a.queue_ttl, now)),
            };
        }
        if let Mode::Shared { limit } = a.mode {
            self.check_class(limit, self.classed)?;
        }
        let expires = now
            + match a.queue {
                Queueing::Join => a.queue_ttl,
                _ => a.ttl,
            };
        let entry = Entry {
            id,
            phase: Phase::Queued,
            mode: a.mode,
            priority: a.priority,
            arrival: self.next_arrival,
            token: None,
            ttl: a.ttl,
            expires,
            upgrading: false,
            owner: a.owner.clone(),
        };
        let place = entry.place();
        // Only the head of the queue is ever granted. A request that does not queue overtakes nobody, whatever its priority.
        let first = match a.queue {
            Queueing::Join => self.queue.first_key_value().is_none_or(|(head, _)| place < *head),
            _ => self.queue.is_empty(),
        };
        if first && self.is_admissible(a.mode) {
            let expires = now + a.ttl;
            let entry = Entry { expires, ..entry };
            if entry.limit().is_some() {
                self.classed += 1;
                self.class = entry.limit().flatten();
            }
            self.entries.insert(id, entry);
            self.touch(id, false);
            self.grant(id, Phase::Held, expires, tokens);
            return Ok(Asked::Granted {
                token: self.entries.get(&id).and_then(|e| e.token),
                expires_in: a.ttl,
            });
        }
        if a.queue != Queueing::Join {
            return Ok(Asked::Held {
                recheck_in: self.recheck_in(now),
            });
        }
        let ahead = self.ahead(place);
        self.next_arrival += 1;
        self.enter(entry);
        self.touch(id, false);
        Ok(Asked::Queued {
            recheck_in: self.recheck_in(now),
            ahead,
        })
    }

    fn check_class(&self, limit: Option<NonZeroU32>, others: usize) -> Result<()> {
        if others == 0 || self.class == limit {
            return Ok(());
        }
        let show = |l: Option<NonZeroU32>| l.map_or("readers".to_owned(), |n| format!("{n} permits"));
        Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "the lock is in use with {}, not with {}; all users of a name must agree",
                show(self.class),
                show(limit)
            ),
        ))
    }

    /// The waiter asks again: keeps its place, or claims what it has been offered. The caller has settled.
    pub(super) fn ask_again(&mut self, id: RequestId, queue_ttl: Duration, now: Timestamp) -> Asked {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Asked::Gone;
        };
        let place = entry.place();
        match entry.phase {
            Phase::Kept => Asked::Gone,
            Phase::Queued => {
                // One write in eight queue leases, not one per look: a little more than asked for is stored, and
                // nothing as long as what is stored suffices.
                if entry.expires < now + queue_ttl {
                    entry.expires = now + queue_ttl + queue_ttl / 8;
                    self.touch(id, true);
                }
                Asked::Queued {
                    recheck_in: self.recheck_in(now),
                    ahead: self.ahead(place),
                }
            }
            Phase::Offered => {
                entry.phase = Phase::Held;
                entry.expires = now + entry.ttl;
                let (token, expires_in) = (entry.token, entry.ttl);
                self.touch(id, true);
                Asked::Granted { token, expires_in }
            }
            Phase::Held => Asked::Granted {
                token: entry.token,
                expires_in: entry.expires.since(now),
            },
        }
    }

    /// How many are in front, where counting them is cheap.
    fn ahead(&self, place: (Reverse<u8>, i64)) -> Option<u32> {
        (self.queue.len() <= 64).then(|| self.queue.range(..place).count() as u32)
    }

    /// When the first holder, or the first in line, runs out: whoever waits should look then.
    fn recheck_in(&self, now: Timestamp) -> Option<Duration> {
        let head = self.queue.first_key_value().map(|(_, id)| id);
        self.held
            .iter()
            .chain(head)
            .filter_map(|id| self.entries.get(id))
            .map(|e| e.expires.since(now))
            .min()
    }

    /// Renews a lease. `None`: there is no such lease. The caller has settled.
    pub(super) fn renew(&mut self, id: RequestId, ttl: Duration, now: Timestamp) -> Option<Duration> {
        let entry = self.entries.get_mut(&id)?;
        if !matches!(entry.phase, Phase::Held | Phase::Offered) {
            return None;
        }
        entry.phase = Phase::Held;
        entry.ttl = ttl;
        entry.expires = entry.expires.max(now + ttl);
        let left = entry.expires.since(now);
        self.touch(id, true);
        Some(left)
    }

    pub(super) fn release(
        &mut self,
        id: RequestId,
        how: Release,
        now: Timestamp,
        tokens: &mut Tokens,
    ) -> Released {
        match self.entries.get_mut(&id) {
            None => return Released::NotHeld,
            Some(e) => match (e.phase, how) {
                (Phase::Queued, _) => return Released::NotHeld,
                (Phase::Kept, _) => return Released::Released,
                (_, Release::KeepFor(d)) if !d.is_zero() => {
                    e.phase = Phase::Kept;
                    e.upgrading = false;
                    e.expires = now + d;
                    let at = e.expires;
                    self.due_at(at);
                    self.touch(id, true);
                    return Released::Released;
                }
                _ => {}
            },
        }
        self.remove(id, End::Released);
        self.admit(now, tokens);
        Released::Released
    }

    pub(super) fn abandon(&mut self, id: RequestId, now: Timestamp, tokens: &mut Tokens) -> Abandoned {
        match self.entries.get(&id).map(|e| (e.phase, e.token)) {
            // A minimum hold is owed to the others, not to the holder.
            None | Some((Phase::Kept, _)) => Abandoned::Nothing,
            Some((phase, token)) => {
                self.remove(id, End::Released);
                self.admit(now, tokens);
                if phase == Phase::Queued {
                    Abandoned::Withdrawn
                } else {
                    Abandoned::WasGranted(token)
                }
            }
        }
    }

    pub(super) fn convert(
        &mut self,
        id: RequestId,
        to: Mode,
        now: Timestamp,
        tokens: &mut Tokens,
    ) -> Result<Turned> {
        let lost = || Error::lost(LossReason::Refused);
        let entry = self.entries.get(&id).ok_or_else(lost)?;
        if !matches!(entry.phase, Phase::Held | Phase::Offered) {
            return Err(lost());
        }
        let from = entry.mode;
        match (from, to) {
            _ if from == to => {}
            (Mode::Exclusive, Mode::Shared { limit }) => {
                self.check_class(limit, self.classed)?;
                self.classed += 1;
                self.class = limit;
            }
            (Mode::Shared { .. }, Mode::Exclusive) => {
                if self.held.len() > 1 {
                    return Ok(self.wait_for_upgrade(id));
                }
                self.classed -= 1;
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "a shared lock cannot be turned into one of another class",
                ));
            }
        }
        *self.counter(from) -= 1;
        *self.counter(to) += 1;
        let fresh = (from != to && to.is_exclusive()).then(|| tokens.mint());
        let entry = self.entries.get_mut(&id).ok_or_else(lost)?;
        entry.mode = to;
        entry.phase = Phase::Held;
        entry.upgrading = false;
        entry.token = fresh.or(entry.token);
        entry.expires = entry.expires.max(now + entry.ttl);
        let (token, expires_in, shown) = (
            entry.token,
            entry.expires.since(now),
            holder(entry, entry.expires.since(now)),
        );
        self.touch(id, true);
        if from != to {
            self.changes.push(Change::Granted(shown));
            self.admit(now, tokens);
        }
        Ok(Turned::Done { token, expires_in })
    }

    /// Two holders that both wait for all others to go would wait for ever, so the second is told.
    fn wait_for_upgrade(&mut self, id: RequestId) -> Turned {
        let another = self
            .held
            .iter()
            .filter(|h| **h != id)
            .filter_map(|h| self.entries.get(h))
            .any(|e| e.upgrading);
        if another {
            return Turned::WouldDeadlock;
        }
        if let Some(entry) = self.entries.get_mut(&id)
            && !entry.upgrading
        {
            entry.upgrading = true;
            self.touch(id, true);
        }
        Turned::Busy
    }

    pub(super) fn raise(&mut self, id: RequestId, to: Token, tokens: &mut Tokens) -> Raised {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Raised::NotHeld;
        };
        if !matches!(entry.phase, Phase::Held | Phase::Offered) {
            return Raised::NotHeld;
        }
        let token = entry.token.map_or(to, |t| t.max(to));
        if entry.token != Some(token) {
            entry.token = Some(token);
            self.touch(id, true);
        }
        tokens.at_least(token);
        Raised::Raised(token)
    }

    pub(super) fn force_release(&mut self, now: Timestamp, tokens: &mut Tokens) -> u32 {
        let held = self.held.clone();
        for id in &held {
            self.remove(*id, End::Forced);
        }
        self.admit(now, tokens);
        held.len() as u32
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

fn holder(e: &Entry, expires_in: Duration) -> Holder {
    Holder::new(e.id, e.mode, e.token, expires_in).with_owner(e.owner.clone())
}
