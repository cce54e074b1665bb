//! What a caller may ask of a name. The caller of each has settled it; what opens the way admits who is next.

use std::num::NonZeroU32;
use std::time::Duration;

use dlock_core::spi::{Abandoned, Acquire, Queueing, Raised, Release, Released};
use dlock_core::{Change, Error, ErrorKind, LossReason, Mode, RequestId, Result, Timestamp, Token};

use super::entry::{Entry, Phase, Place, Tokens, holder};
use super::{End, NameState};

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
    /// Asks for the lock. The caller has settled.
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
            self.check_class(limit, self.classed)?;
        }
        // Nor is there a place in the queue for what could not be granted.
        tokens.check()?;
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
        // Only the head of the queue is ever granted. A request that does not queue overtakes nobody,
        // whatever its priority.
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
        self.next_arrival = self.next_arrival.saturating_add(1);
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
    pub(crate) fn ask_again(&mut self, id: RequestId, queue_ttl: Duration, now: Timestamp) -> Asked {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Asked::Gone;
        };
        let place = entry.place();
        match entry.phase {
            Phase::Kept => Asked::Gone,
            Phase::Queued => {
                // Not one write per look: nothing is stored as long as hardly anything is missing. Nor is
                // more stored than was asked for, which would spare writes too: a waiter that dies would
                // stand in the way for longer than its ttl.
                if entry.expires + queue_ttl / 16 < now + queue_ttl {
                    entry.expires = now + queue_ttl;
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
    fn ahead(&self, place: Place) -> Option<u32> {
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
    pub(crate) fn renew(&mut self, id: RequestId, ttl: Duration, now: Timestamp) -> Option<Duration> {
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

    pub(crate) fn release(
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
                    // Those who wait know of the end of the lease, which may be long after this one.
                    self.is_news = true;
                    return Released::Released;
                }
                _ => {}
            },
        }
        self.remove(id, End::Released);
        self.admit(now, tokens);
        Released::Released
    }

    pub(crate) fn abandon(&mut self, id: RequestId, now: Timestamp, tokens: &mut Tokens) -> Abandoned {
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

    pub(crate) fn convert(
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
                tokens.check()?;
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
        let fresh = (from != to && to.is_exclusive()).then(|| tokens.mint()).flatten();
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
            self.note(Change::Granted(shown));
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

    pub(crate) fn raise(&mut self, id: RequestId, to: Token, tokens: &mut Tokens) -> Raised {
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

    pub(crate) fn force_release(&mut self, now: Timestamp, tokens: &mut Tokens) -> u32 {
        let held = self.held.clone();
        for id in &held {
            self.remove(*id, End::Forced);
        }
        self.admit(now, tokens);
        held.len() as u32
    }
}
