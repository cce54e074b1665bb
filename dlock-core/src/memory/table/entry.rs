//! The record of one name: who holds it, who waits, and the one routine that admits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::desk::Desk;
use super::effects::{Effects, Held, Place};
use crate::inspection::{Change, Holder};
use crate::mode::Mode;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::LeaseKey;
use crate::timestamp::{Timestamp, nanos};
use crate::token::Token;

/// What a lease is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A full lease.
    Full,
    /// A claim window, not yet confirmed by a renewal.
    Provisional,
    /// Released with a minimum hold: nobody's any more, and still in the way.
    Kept,
    /// No lease: something that the store did not write.
    Foreign,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: RequestId,
    pub(super) mode: Mode,
    pub(super) token: Token,
    pub(super) expires: Timestamp,
    pub(super) ttl_nanos: u64,
    pub(super) owner: Option<Arc<str>>,
    pub(super) standing: Standing,
    /// It asked for an upgrade and was told `Busy`; until it ends, another upgrader would wait for it and it
    /// for that one.
    pub(super) upgrading: bool,
}

impl Lease {
    pub(super) fn held(&self) -> Held {
        Held {
            token: self.token,
            expires: self.expires,
            provisional: self.standing == Standing::Provisional,
        }
    }

    /// Starts the life anew, never shorter than what was promised before, and confirms a claim window.
    pub(super) fn extend(&mut self, now: Timestamp, ttl: Duration) {
        self.ttl_nanos = nanos(ttl);
        self.expires = self.expires.max(now + ttl);
        self.standing = Standing::Full;
    }

    pub(super) fn holder(&self, now: Timestamp) -> Holder {
        Holder::new(self.id, self.mode, Some(self.token), now.until(self.expires))
            .with_owner(self.owner.clone())
    }
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: RequestId,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) priority: u8,
    /// When the queue entry lapses unless it is renewed.
    pub(super) expires: Timestamp,
    pub(super) owner: Option<Arc<str>>,
}

/// The waiters in the order of their turn: the highest priority first, within one by arrival.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) waiters: VecDeque<Waiter>,
    /// No waiter expires before this, so that a call need not look at each.
    next_expiry: Timestamp,
}

/// One name. It exists only while somebody holds or waits.
///
/// A single holder lives inside the record, so an uncontended acquire and release touch nothing but the map.
#[derive(Debug)]
pub(super) struct Entry {
    /// In grant order.
    pub(super) holders: SmallVec<[Lease; 1]>,
    queue: Option<Box<Queue>>,
    /// The shared mode that the first shared entry fixed; `Exclusive` while there was none.
    class: Mode,
}

impl Entry {
    pub(super) fn new() -> Self {
        Self {
            holders: SmallVec::new(),
            queue: None,
            class: Mode::Exclusive,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiting() == 0
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, |q| q.waiters.len())
    }

    /// What stands here that the store did not write. It is the first, and there is nothing beside it that
    /// holds.
    pub(super) fn foreign(&self) -> Option<&Lease> {
        self.holders.first().filter(|l| l.standing == Standing::Foreign)
    }

    pub(super) fn holder_mut(&mut self, id: RequestId) -> Option<&mut Lease> {
        self.holders.iter_mut().find(|l| l.id == id)
    }

    /// Whether a request of that mode belongs to the class of this name, or would be the first to fix it.
    pub(super) fn fits(&self, mode: Mode) -> bool {
        mode.is_exclusive() || self.is_empty() || self.class.is_exclusive() || self.class == mode
    }

    /// Fixes the class, if a shared mode is the first to come.
    pub(super) fn fix_class(&mut self, mode: Mode) {
        if self.is_empty() || self.class.is_exclusive() {
            self.class = mode;
        }
    }

    /// Whether a request of that mode can be held beside those that hold now.
    pub(super) fn admissible(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared { limit } => {
                self.holders.iter().all(|l| l.mode == mode)
                    && limit.is_none_or(|n| self.holders.len() < n.get() as usize)
            }
        }
    }

    /// Takes back what has run out: leases, and the queue entries that nobody renewed.
    ///
    /// It runs before anything else that touches the name, so a pause of any length of a holder or a waiter
    /// shows as an expiry to whoever comes next, the late one included.
    pub(super) fn purge(&mut self, desk: &mut Desk, name: &LockName, now: Timestamp, effects: &mut Effects) {
        let mut i = 0;
        while let Some(lease) = self.holders.get(i) {
            if lease.expires > now {
                i += 1;
                continue;
            }
            let lease = self.holders.remove(i);
            if lease.standing == Standing::Kept {
                effects.change(name, || Change::Released { id: lease.id });
            } else {
                desk.ended(lease.id);
                effects.change(name, || Change::Expired { id: lease.id });
            }
        }
        if let Some(queue) = self.queue.as_mut().filter(|q| q.next_expiry <= now) {
            let mut next = Timestamp::MAX;
            queue.waiters.retain(|w| {
                if w.expires <= now {
                    desk.ended(w.id);
                    effects.news().dropped.push(LeaseKey::new(name.clone(), w.id));
                    return false;
                }
                next = next.min(w.expires);
                true
            });
            queue.next_expiry = next;
        }
    }

    /// **The** admission rule, run after every change: grants from the head of the queue while the head is
    /// admissible.
    ///
    /// Run by releases alone it would lose grants: a writer that is cancelled, expires or loses its queue
    /// entry must let in the readers behind it, and one release can admit a hundred readers. It never looks
    /// past an inadmissible head, so no stream of readers can starve a writer.
    pub(super) fn admit(&mut self, desk: &mut Desk, name: &LockName, now: Timestamp, effects: &mut Effects) {
        while let Some(mode) = self.head_mode() {
            if !self.admissible(mode) {
                break;
            }
            let Some(waiter) = self.queue.as_mut().and_then(|q| q.waiters.pop_front()) else {
                break;
            };
            let id = waiter.id;
            let held = self.grant(desk, name, waiter, desk.claim_window, now, effects);
            effects
                .news()
                .granted
                .push((LeaseKey::new(name.clone(), id), held));
        }
    }

    pub(super) fn next_in_line(&self) -> Option<RequestId> {
        self.queue.as_ref()?.waiters.front().map(|w| w.id)
    }

    fn head_mode(&self) -> Option<Mode> {
        self.queue.as_ref()?.waiters.front().map(|w| w.mode)
    }

    /// Makes a request a holder. A hand-off gets the claim window, if there is one and it is shorter than the
    /// ttl.
    pub(super) fn grant(
        &mut self,
        desk: &mut Desk,
        name: &LockName,
        request: Waiter,
        window: Option<Duration>,
        now: Timestamp,
        effects: &mut Effects,
    ) -> Held {
        self.fix_class(request.mode);
        let (standing, life) = match window {
            Some(window) if window < request.ttl => (Standing::Provisional, window),
            _ => (Standing::Full, request.ttl),
        };
        let token = desk.mint();
        let lease = Lease {
            id: request.id,
            mode: request.mode,
            token,
            expires: now + life,
            ttl_nanos: nanos(request.ttl),
            owner: request.owner,
            standing,
            upgrading: false,
        };
        effects.change(name, || Change::Granted(lease.holder(now)));
        let held = lease.held();
        self.holders.push(lease);
        held
    }

    /// Where a new request of that priority would stand: behind all that are at least as urgent.
    pub(super) fn turn_of(&self, priority: u8) -> usize {
        match &self.queue {
            Some(q) => q.waiters.partition_point(|w| w.priority >= priority),
            None => 0,
        }
    }

    pub(super) fn enqueue(&mut self, turn: usize, waiter: Waiter) {
        self.fix_class(waiter.mode);
        let queue = self.queue.get_or_insert_with(|| {
            Box::new(Queue {
                waiters: VecDeque::new(),
                next_expiry: Timestamp::MAX,
            })
        });
        queue.next_expiry = queue.next_expiry.min(waiter.expires);
        queue.waiters.insert(turn, waiter);
    }

    pub(super) fn position(&self, id: RequestId) -> Option<usize> {
        self.queue.as_ref()?.waiters.iter().position(|w| w.id == id)
    }

    /// Starts the life of a queue entry anew.
    pub(super) fn renew_waiter(&mut self, position: usize, expires: Timestamp) {
        if let Some(w) = self.queue.as_mut().and_then(|q| q.waiters.get_mut(position)) {
            w.expires = w.expires.max(expires);
        }
    }

    pub(super) fn withdraw(&mut self, position: usize) -> Option<Waiter> {
        self.queue.as_mut()?.waiters.remove(position)
    }

    /// What somebody with that many waiters ahead is to know: the first thing in the way that may run out
    /// unnoticed.
    pub(super) fn place(&self, ahead: usize) -> Place {
        let leases = self.holders.iter().map(|l| l.expires);
        let before = self
            .queue
            .iter()
            .flat_map(|q| q.waiters.iter().take(ahead))
            .map(|w| w.expires);
        Place {
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
            recheck: leases.chain(before).min(),
        }
    }

    /// Changes whenever the set of holders does.
    pub(super) fn fingerprint(&self) -> u64 {
        self.holders
            .iter()
            .map(|l| l.token.get() * 2 + u64::from(l.mode.is_exclusive()))
            .fold(1, u64::wrapping_add)
    }
}
