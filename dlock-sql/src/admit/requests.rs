//! What a caller may ask of a name. The caller of each has settled it; what opens the way admits who is next.

use std::num::NonZeroU32;
use std::time::Duration;

use dlock_core::spi::{Abandoned, Acquire, Queueing, Raised, Release, Released};
use dlock_core::{Change, Error, ErrorKind, LossReason, Mode, RequestId, Result, Timestamp, Token};

use super::entry::{Entry, Phase, Rank, Tokens};
use super::{Cause, NameState};

/// The answer to an attempt or a re-ask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
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
pub(crate) enum Turned {
    Done {
        token: Option<Token>,
        expires_in: Duration,
    },
    Busy,
    WouldDeadlock,
}

impl NameState {
    /// Asks for the lock.
    pub(crate) fn attempt(&mut self, a: &Acquire, now: Timestamp, tokens: &mut Tokens) -> Result<Asked> {
        let id = a.key.id;
        if let Some(entry) = self.entries.get(&id) {
            // A retry: the first delivery did its work.
            return match entry.phase {
                Phase::Kept => Err(Error::lost(LossReason::Released)),
                _ => Ok(self.ask_again(id, a.queue_ttl, now)),
            };
        }
        if let Mode::Shared { limit } = a.mode {
            self.check_class(limit)?;
        }
        // Nor is there a place in the queue for what could not be granted.
        tokens.check()?;
        let mut entry = Entry {
            id,
            phase: Phase::Queued,
            mode: a.mode,
            priority: a.priority,
            arrival: self.next_arrival,
            token: None,
            ttl: a.ttl,
            expires: now + a.queue_ttl,
            upgrading: false,
            owner: a.owner.clone(),
        };
        let rank = entry.rank();
        // Only the head of the queue is ever granted. A request that does not queue overtakes nobody,
        // whatever its priority.
        let first = match a.queue {
            Queueing::Join => self.queue.first_key_value().is_none_or(|(head, _)| rank < *head),
            _ => self.queue.is_empty(),
        };
        if first && self.is_admissible(a.mode) {
            entry.expires = now + a.ttl;
            let expires = entry.expires;
            self.entries.insert(id, entry);
            self.touch(id, false);
            self.grant(id, Phase::Held, expires, tokens);
            return Ok(Asked::Granted {
                token: self.entries.get(&id).and_then(|e| e.token),
                expires_in: a.ttl,
            });
        }
        if a.queue != Queueing::Join {
            let recheck_in = self.recheck_in(now);
            return Ok(Asked::Held { recheck_in });
        }
        let ahead = self.ahead(rank);
        self.next_arrival = self.next_arrival.saturating_add(1);
        self.enter(entry);
        self.touch(id, false);
        let recheck_in = self.recheck_in(now);
        Ok(Asked::Queued { recheck_in, ahead })
    }

    fn check_class(&self, limit: Option<NonZeroU32>) -> Result<()> {
        let Some(class) = self.class().filter(|class| *class != limit) else {
            return Ok(());
        };
        let show = |l: Option<NonZeroU32>| l.map_or("readers".to_owned(), |n| format!("{n} permits"));
        let (used, asked) = (show(class), show(limit));
        let text =
            format!("the lock is in use with {used}, not with {asked}; all users of a name must agree");
        Err(Error::new(ErrorKind::InvalidInput, text))
    }

    /// The waiter asks again: keeps its place, or claims what it has been offered.
    pub(crate) fn ask_again(&mut self, id: RequestId, queue_ttl: Duration, now: Timestamp) -> Asked {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Asked::Gone;
        };
        let rank = entry.rank();
        match entry.phase {
            Phase::Kept => return Asked::Gone,
            Phase::Queued => {
                // Not one write per look: nothing is stored as long as hardly anything is missing. Nor is
                // more stored than was asked for: a waiter that dies would stand in the way for longer than
                // its ttl.
                if entry.expires + queue_ttl / 16 < now + queue_ttl {
                    entry.expires = now + queue_ttl;
                    self.touch(id, true);
                }
                let (recheck_in, ahead) = (self.recheck_in(now), self.ahead(rank));
                return Asked::Queued { recheck_in, ahead };
            }
            Phase::Offered => {
                entry.phase = Phase::Held;
                entry.expires = now + entry.ttl;
                self.dirty.entry(id).or_insert(true);
            }
            Phase::Held => {}
        }
        let (token, expires_in) = (entry.token, entry.expires.since(now));
        Asked::Granted { token, expires_in }
    }

    /// How many are in front, where counting them is cheap.
    fn ahead(&self, rank: Rank) -> Option<u32> {
        (self.queue.len() <= 64).then(|| self.queue.range(..rank).count() as u32)
    }

    /// When the first holder, or the first in line, runs out: whoever waits should look then.
    fn recheck_in(&self, now: Timestamp) -> Option<Duration> {
        let head = self.queue.values().next().and_then(|id| self.entries.get(id));
        self.holders().chain(head).map(|e| e.expires.since(now)).min()
    }

    /// Renews a lease. `None`: there is no such lease.
    pub(crate) fn renew(&mut self, id: RequestId, ttl: Duration, now: Timestamp) -> Option<Duration> {
        let entry = self.entries.get_mut(&id).filter(|e| e.is_lease())?;
        entry.phase = Phase::Held;
        entry.ttl = ttl;
        entry.expires = entry.expires.max(now + ttl);
        let left = entry.expires.since(now);
        self.touch(id, true);
        Some(left)
    }

    pub(crate) fn release(
        &mut self,
        id: RequestId,
        how: Release,
        now: Timestamp,
        tokens: &mut Tokens,
    ) -> Released {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Released::NotHeld;
        };
        match (entry.phase, how) {
            (Phase::Queued, _) => return Released::NotHeld,
            (Phase::Kept, _) => return Released::Released,
            (_, Release::KeepFor(d)) if !d.is_zero() => {
                entry.phase = Phase::Kept;
                entry.upgrading = false;
                entry.expires = now + d;
                self.due_at(now + d);
                self.touch(id, true);
                // Those who wait know of the end of the lease, which may be long after this one.
                self.is_news = true;
                return Released::Released;
            }
            _ => {}
        }
        self.remove(id, Cause::Released);
        self.admit(now, tokens);
        Released::Released
    }

    pub(crate) fn abandon(&mut self, id: RequestId, now: Timestamp, tokens: &mut Tokens) -> Abandoned {
        match self.entries.get(&id).map(|e| (e.phase, e.token)) {
            // A minimum hold is owed to the others, not to the holder.
            None | Some((Phase::Kept, _)) => Abandoned::Nothing,
            Some((phase, token)) => {
                self.remove(id, Cause::Released);
                self.admit(now, tokens);
                match phase {
                    Phase::Queued => Abandoned::Withdrawn,
                    _ => Abandoned::WasGranted(token),
                }
            }
        }
    }

    pub(crate) fn convert(
        &mut self,
        id: RequestId,
        to: Mode,
        now: Timestamp,
        tokens: &mut Tokens,
    ) -> Result<Turned> {
        let Some(entry) = self.entries.get(&id).filter(|e| e.is_lease()) else {
            return Err(Error::lost(LossReason::Refused));
        };
        let from = entry.mode;
        match (from, to) {
            _ if from == to => {}
            (Mode::Exclusive, Mode::Shared { limit }) => self.check_class(limit)?,
            (Mode::Shared { .. }, Mode::Exclusive) => {
                if self.held.len() > 1 {
                    return Ok(self.wait_for_upgrade(id));
                }
                tokens.check()?;
            }
            _ => {
                let text = "a shared lock cannot be turned into one of another class";
                return Err(Error::new(ErrorKind::InvalidInput, text));
            }
        }
        let fresh = (from != to && to.is_exclusive()).then(|| tokens.mint()).flatten();
        let Some(entry) = self.entries.get_mut(&id) else {
            return Err(Error::lost(LossReason::Refused));
        };
        entry.mode = to;
        entry.phase = Phase::Held;
        entry.upgrading = false;
        entry.token = fresh.or(entry.token);
        entry.expires = entry.expires.max(now + entry.ttl);
        let (token, expires_in) = (entry.token, entry.expires.since(now));
        let shown = entry.holder(expires_in);
        self.touch(id, true);
        if from != to {
            self.note(Change::Granted(shown));
            self.admit(now, tokens);
        }
        Ok(Turned::Done { token, expires_in })
    }

    /// Two holders that both wait for all others to go would wait for ever, so the second is told.
    fn wait_for_upgrade(&mut self, id: RequestId) -> Turned {
        if self.holders().any(|e| e.upgrading && e.id != id) {
            return Turned::WouldDeadlock;
        }
        if let Some(entry) = self.entries.get_mut(&id).filter(|e| !e.upgrading) {
            entry.upgrading = true;
            self.touch(id, true);
        }
        Turned::Busy
    }

    pub(crate) fn raise(&mut self, id: RequestId, to: Token, tokens: &mut Tokens) -> Raised {
        let Some(entry) = self.entries.get_mut(&id).filter(|e| e.is_lease()) else {
            return Raised::NotHeld;
        };
        let token = entry.token.map_or(to, |t| t.max(to));
        if entry.token != Some(token) {
            entry.token = Some(token);
            self.touch(id, true);
        }
        tokens.at_least(token);
        Raised::Raised(token)
    }

    pub(crate) fn force_release(&mut self, now: Timestamp, tokens: &mut Tokens) -> u32 {
        let held = self.held.clone();
        for id in &held {
            self.remove(*id, Cause::Forced);
        }
        self.admit(now, tokens);
        held.len() as u32
    }
}
