//! The admission rule, for stores that keep the rows of a name but cannot decide.
//!
//! It has no I/O, no clock and no async. A store serialises the changes of a name, by a mutex or by locking a
//! row. It loads the [entries](Entry) of the name into a [`NameState`], makes one or more calls of a
//! [`Settled`], and writes back what its [`Ledger`] was told. So nothing here can race. All times are read
//! from the store's clock, except `sent`, which the client read before it asked.
//!
//! The in-memory backend keeps the states; the SQL backends load them in a transaction.

mod ledger;
mod name;

use std::time::Duration;

pub use ledger::{Cause, Event, Ledger};
pub use name::{Entry, NameState, Phase};

use crate::error::{Error, LossReason, Result};
use crate::mode::Mode;
use crate::request_id::RequestId;
use crate::spi::{
    Abandoned, Acquire, Converted, Grant, LeaseKey, Queueing, Raised, Release, Released, RenewItem,
    RenewKind, RenewOutcome, Renewal, Wait, Wake,
};
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The answer to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It holds now.
    Granted(Lease),
    /// It waits in line.
    Queued(Place),
    /// Not granted, and nothing was left behind.
    Held(Place),
}

/// The answer to a holder. See [`Grant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Lease {
    pub token: Option<Token>,
    pub expires_in: Duration,
    pub provisional: bool,
}

impl Lease {
    /// Turns it into the answer to the request `key`, which was sent at the client's time `sent`.
    pub fn grant(self, key: LeaseKey, sent: Timestamp) -> Grant {
        let mut grant = Grant::new(key, self.token, sent, self.expires_in);
        grant.provisional = self.provisional;
        grant
    }
}

/// What a request that is not granted learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many waiters are ahead.
    pub ahead: u32,
    /// When the first thing that blocks it expires.
    pub recheck_in: Option<Duration>,
}

impl Place {
    /// Turns it into a [`Wait`].
    pub fn wait(self, wake: Wake) -> Wait {
        let mut wait = Wait::new(wake).ahead(self.ahead);
        wait.recheck_in = self.recheck_in;
        wait
    }
}

/// A name that is being changed. Expired entries have been removed, and the next waiters admitted.
#[derive(Debug)]
pub struct Settled<'a, L> {
    pub(crate) name: &'a mut NameState,
    /// The time on the store's clock.
    pub now: Timestamp,
    /// The store's side of the change.
    pub ledger: L,
}

impl<'a, L: Ledger> Settled<'a, L> {
    /// Removes what has expired by now: leases, and queue entries that were not renewed.
    ///
    /// This precedes everything else that touches the name. So a pause of any length of a holder or waiter
    /// shows as an expiry to the next caller, including the one that was paused.
    pub fn begin(name: &'a mut NameState, now: Timestamp, ledger: L) -> Self {
        let mut this = Self { name, now, ledger };
        let mut i = 0;
        while let Some(lease) = this.name.holders.get(i) {
            match lease.expires > now {
                true => i += 1,
                false => this.end(i, Cause::Expired),
            }
        }
        let ledger = &mut this.ledger;
        this.name
            .drop_lapsed(now, |w| ledger.note(w, Event::Dropped, now));
        this.admit();
        this
    }

    /// **The** admission rule, applied after every change that may unblock a waiter: grants from the head of
    /// the queue while the head is admissible.
    ///
    /// Applied only on release, it would lose grants: a writer that is cancelled, expires or loses its queue
    /// entry must let in the readers behind it, and so must a downgrade; and one release can admit a hundred
    /// readers. It never looks past an inadmissible head, so no stream of readers can starve a writer.
    #[inline]
    fn admit(&mut self) {
        if self.name.waiting() > 0 {
            self.admit_waiters();
        }
    }

    fn admit_waiters(&mut self) {
        while let Some(head) = self.name.head()
            && self.name.is_admissible(head.mode)
            && let Ok(token) = self.ledger.mint()
            && let Some(mut waiter) = self.name.withdraw(0)
        {
            (waiter.phase, waiter.expires) = self.ledger.hand_off(&waiter, self.now);
            self.grant(waiter, token, Event::HandedOff);
        }
    }

    /// Grants a request that is not, or not any more, in the queue.
    #[inline(always)]
    fn grant(&mut self, mut entry: Entry, token: Token, event: Event) -> Lease {
        entry.token = Some(token);
        self.ledger.note(&entry, event, self.now);
        let lease = entry.lease(self.now);
        self.name.holders.push(entry);
        lease
    }

    /// Ends a hold. The caller admits the next waiters.
    fn end(&mut self, index: usize, cause: Cause) {
        let ended = &self.name.holders[index];
        self.ledger.note(ended, Event::Ended(cause), self.now);
        match index + 1 == self.name.holders.len() {
            // Replaced in place: mostly it is the only holder.
            true => self.name.holders.truncate(index),
            false => drop(self.name.holders.remove(index)),
        }
    }

    /// Requests the name once. Idempotent in the key.
    ///
    /// # Errors
    /// `Lost` if the lease of this key was released; `InvalidInput` if others hold or wait in another shared
    /// mode; errors of the ledger.
    pub fn attempt(&mut self, request: &Acquire) -> Result<Asked> {
        let id = request.key.id;
        if !self.name.is_empty() {
            // A retry: the first delivery did its work.
            if let Some(asked) = self.ask_again(id, request.queue_ttl) {
                return Ok(asked);
            }
            if self.name.holders.iter().any(|l| l.id == id) {
                return Err(Error::lost(LossReason::Released).with_name(&request.key.name));
            }
            self.check_class(&request.key, request.mode)?;
        }
        let waiting = self.name.waiting();
        // Only the head of the queue is granted. A request that does not queue overtakes no waiter, whatever
        // its priority.
        let (turn, arrival) = match request.queue {
            Queueing::Join => self.name.turn_of(request.priority),
            Queueing::No => (waiting, 0),
        };
        let is_admitted = turn == 0 && self.name.is_admissible(request.mode);
        if !is_admitted && request.queue == Queueing::No {
            return Ok(Asked::Held(self.place(waiting)));
        }
        self.ledger.begin(id, (!is_admitted).then_some(waiting))?;
        let now = self.now;
        if !is_admitted {
            let waiter = Entry::asked(request, Phase::Queued, now + request.queue_ttl);
            self.ledger.note(&waiter, Event::Queued, now);
            self.name.enqueue((turn, arrival), waiter);
            return Ok(Asked::Queued(self.place(turn)));
        }
        let token = self.ledger.mint()?;
        let entry = Entry::asked(request, Phase::Held, now + request.ttl);
        Ok(Asked::Granted(self.grant(entry, token, Event::Granted)))
    }

    fn check_class(&self, key: &LeaseKey, mode: Mode) -> Result<()> {
        match self.name.class().filter(|_| !mode.is_exclusive()) {
            Some(class) if class != mode => Err(class.mismatch(mode).with_name(&key.name)),
            _ => Ok(()),
        }
    }

    /// A waiter keeps its place, or claims its offer. `None` if there is neither.
    fn ask_again(&mut self, id: RequestId, queue_ttl: Duration) -> Option<Asked> {
        let now = self.now;
        if let Some(lease) = self.name.lease_mut(id) {
            if lease.phase == Phase::Offered {
                (lease.phase, lease.expires) = (Phase::Held, now + lease.ttl());
                self.ledger.note(lease, Event::Changed, now);
            }
            return Some(Asked::Granted(lease.lease(now)));
        }
        let position = self.name.position(id)?;
        let waiter = self.name.waiter_mut(position)?;
        if waiter.expires + self.ledger.slack(queue_ttl) < now + queue_ttl {
            waiter.expires = now + queue_ttl;
            self.ledger.note(waiter, Event::Changed, now);
        }
        Some(Asked::Queued(self.place(position)))
    }

    /// The place of a request with `ahead` waiters ahead: the first blocking entry that may expire unnoticed.
    /// Waiters behind the head block nobody before the head is gone.
    fn place(&self, ahead: usize) -> Place {
        let head = self.name.head().filter(|_| ahead > 0);
        let ends = self.name.holders.iter().chain(head).map(|e| e.expires);
        Place {
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
            recheck_in: ends.min().map(|end| self.now.until(end)),
        }
    }

    /// Renews a lease and confirms a claim window, or renews a queue entry and asks again.
    pub fn renew(&mut self, item: &RenewItem, sent: Timestamp) -> RenewOutcome {
        if item.kind == RenewKind::Queued {
            return match self.ask_again(item.key.id, item.ttl) {
                Some(Asked::Granted(lease)) => RenewOutcome::Granted(lease.grant(item.key.clone(), sent)),
                Some(Asked::Queued(place) | Asked::Held(place)) => RenewOutcome::Queued {
                    recheck_in: place.recheck_in,
                    ahead: Some(place.ahead),
                },
                None => RenewOutcome::Gone,
            };
        }
        let Some(lease) = self.name.lease_mut(item.key.id) else {
            return RenewOutcome::Gone;
        };
        lease.extend(self.now, item.ttl);
        self.ledger.note(lease, Event::Changed, self.now);
        RenewOutcome::Renewed(Renewal::new(sent, self.now.until(lease.expires)))
    }

    /// Ends a lease, at once or after a minimum hold.
    pub fn release(&mut self, id: RequestId, how: Release) -> Released {
        let Some(index) = self.name.holders.iter().position(|l| l.id == id) else {
            return Released::NotHeld;
        };
        let next = self.name.head().map(|w| w.id);
        let lease = &mut self.name.holders[index];
        match how {
            // A retry does not extend the minimum hold.
            _ if lease.phase == Phase::Kept => {}
            Release::KeepFor(rest) if !rest.is_zero() => {
                (lease.phase, lease.upgrading) = (Phase::Kept, false);
                lease.expires = self.now + rest;
                self.ledger.note(lease, Event::Kept { next }, self.now);
            }
            Release::KeepFor(_) | Release::Now => {
                self.end(index, Cause::Released);
                self.admit();
            }
        }
        Released::Released
    }

    /// Undoes a request, whatever became of it.
    pub fn abandon(&mut self, id: RequestId) -> Abandoned {
        let abandoned = if let Some(position) = self.name.position(id) {
            if let Some(waiter) = self.name.withdraw(position) {
                self.ledger.note(&waiter, Event::Dropped, self.now);
            }
            Abandoned::Withdrawn
        } else {
            let held = |l: &Entry| l.id == id && l.is_lease();
            match self.name.holders.iter().position(held) {
                Some(index) => {
                    let token = self.name.holders[index].token;
                    self.end(index, Cause::Released);
                    Abandoned::WasGranted(token)
                }
                // A minimum hold stays: it was asked for, and others rely on it.
                None => return Abandoned::Nothing,
            }
        };
        self.admit();
        abandoned
    }

    /// Converts a lease to another mode.
    ///
    /// # Errors
    /// `Lost` if there is no such lease; `InvalidInput` if others hold or wait in another shared mode; errors
    /// of the ledger.
    pub fn convert(&mut self, lease: &LeaseKey, to: Mode, sent: Timestamp) -> Result<Converted> {
        let held = |l: &Entry| l.id == lease.id && l.is_lease();
        let index = self.name.holders.iter().position(held);
        let index = index.ok_or_else(|| Error::lost(LossReason::Refused).with_name(&lease.name))?;
        self.check_class(lease, to)?;
        let from = self.name.holders[index].mode;
        let mut fresh = None;
        if to.is_exclusive() && !from.is_exclusive() {
            if self.name.holders.len() > 1 {
                return Ok(self.wait_for_upgrade(index));
            }
            // Concurrent readers may have had a larger token than this lease.
            fresh = Some(self.ledger.mint()?);
        }
        let own = &mut self.name.holders[index];
        (own.mode, own.upgrading) = (to, false);
        own.token = fresh.or(own.token);
        own.extend(self.now, own.ttl());
        let grant = own.lease(self.now).grant(lease.clone(), sent);
        if from == to {
            self.ledger.note(own, Event::Changed, self.now);
        } else {
            self.ledger.note(own, Event::Converted, self.now);
            self.admit();
        }
        Ok(Converted::Done(grant))
    }

    /// Two upgrading leases would each wait for the other to end, so the second gets `WouldDeadlock`.
    fn wait_for_upgrade(&mut self, index: usize) -> Converted {
        let others = self.name.holders.iter().enumerate().filter(|(i, _)| *i != index);
        if others.into_iter().any(|(_, l)| l.upgrading) {
            return Converted::WouldDeadlock;
        }
        let lease = &mut self.name.holders[index];
        if !std::mem::replace(&mut lease.upgrading, true) {
            self.ledger.note(lease, Event::Changed, self.now);
        }
        Converted::Busy
    }

    /// Raises the token of a lease that is still held, and all later tokens with it.
    pub fn raise(&mut self, id: RequestId, to: Token) -> Raised {
        let Some(lease) = self.name.lease_mut(id) else {
            return Raised::NotHeld;
        };
        let token = lease.token.map_or(to, |t| t.max(to));
        if lease.token.replace(token) != Some(token) {
            self.ledger.note(lease, Event::Changed, self.now);
        }
        self.ledger.raise(token);
        Raised::Raised(token)
    }

    /// Ends every lease and returns how many there were.
    pub fn force_release(&mut self) -> u32 {
        let ended = std::mem::take(&mut self.name.holders);
        for lease in &ended {
            self.ledger.note(lease, Event::Ended(Cause::Forced), self.now);
        }
        self.admit();
        u32::try_from(ended.len()).unwrap_or(u32::MAX)
    }
}
