//! What one client has and wants, by the keys that the server knows: a state machine without I/O.
//!
//! ```text
//!            nobody of this client is there             let in
//! (nothing) --------------------------------> a try -------------> holder
//!     | somebody is                             | not let in          ^ for the first in line
//!     v                                         v                     |
//!   in line <-----------------------------------+        a wait ------+
//!     | the first, and nobody bids                          ^
//!     +-----------------------------------------------------+
//! ```
//!
//! A session is let in again by a lock that it holds. So this table keeps the requests *of one client* from
//! one another, by the key, as two names of one hash are one lock. *One bids at a time*: by a try on the
//! shared connection, and only while nobody of this client holds, as two tries in one session would both be
//! let in; or by a wait on a connection of its own that holds nothing. That may stand behind a holder of this
//! client: another session, which keeps it out. It goes to the first waiter at the time of the grant.
//!
//! What could break it, and why it does not:
//!
//! * *The caller goes away while its request bids.* The [connection](super::connection) has the [`Bid`], not
//!   the caller. An abandon buries the request first; then the connection gives back what it was granted, and
//!   only then drops the bid: nobody of this client bids meanwhile.
//! * *The server lets a wait in, and a holder of this client is still here.* Its release is on its way back
//!   (it is `leaving`), or its session was ended: then it is told of its loss before the next one is.
//! * *A waiter is gone without a word*, as a request that is answered `Held` may. It keeps its place while
//!   somebody listens, and for a [`GRACE`], since the engine is away for a moment when it asks again. Then it
//!   is passed over, and what it was let in to lapses.
//! * *A connection ends.* All that hung on it is taken out in one step, and told as lost before the
//!   connection is closed from this side. A bid on it ends with it.

mod bid;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, Signal, Tombstones};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Timestamp, Token};
use event_listener::EventListener;
use futures::channel::mpsc;

pub(super) use self::bid::{Asked, Bid, Stop};
use self::bid::{Bidding, Waiter};
use super::failure::Failed;
use super::handle::{Handle, Life};
use super::keys::Key;
use crate::cache::Cache;

/// How long a waiter may be away between two questions.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// How long an unneeded waiting connection is kept.
const KEPT_IDLE: Duration = Duration::from_secs(30);

/// A late call of an abandoned request comes from this process, since nothing overtakes within a session.
/// None is in flight for a day, nor are that many at once.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(24 * 3600), 1 << 14);

/// See the head of the file.
pub(super) struct Board {
    state: Mutex<State>,
    /// How many connections may wait.
    most_waiting: usize,
}

struct State {
    names: HashMap<Key, Name>,
    /// Requests that were released or abandoned.
    buried: Tombstones<RequestId>,
    /// Of those, the holders that were given back.
    released: Tombstones<RequestId>,
    /// Requests that may be granted in a session of which no more is heard, and until when that may live.
    doubtful: HashMap<RequestId, Timestamp>,
    shared: Option<Arc<Handle>>,
    /// Connections that wait for nothing and hold nothing, and since when; the latest last.
    idle: Vec<(Arc<Handle>, Timestamp)>,
    /// How many connections there are beside the shared one, with those that are being made.
    waiting: usize,
    /// When another client was seen last.
    crowded: Cache<Key, Timestamp>,
    signals: Vec<mpsc::UnboundedSender<Signal>>,
    /// Sessions are shared behind our back: nothing is asked for any more.
    pooler: Option<Error>,
    closed: bool,
}

#[derive(Default)]
struct Name {
    holder: Option<Holder>,
    bidding: Option<Bidding>,
    line: VecDeque<Waiter>,
}

/// A lease, and the connection on which it hangs.
#[derive(Clone)]
pub(super) struct Holder {
    lease: LeaseKey,
    pub(super) token: Token,
    pub(super) connection: Arc<Handle>,
    /// It is being given back.
    leaving: bool,
    /// The deadline. It expires if it is not renewed by then.
    until: Timestamp,
}

/// What is to be done for a waiter.
pub(super) enum Step {
    /// There is something to ask for.
    Ready,
    /// Wait for this. It hears all that happens after the look.
    Stay(EventListener),
    /// There is no connection to wait on: ask on the shared one after this, or when the engine does.
    Starved(EventListener),
    /// It is its turn to wait at the server, on that connection or on a new one.
    Contend(Option<Arc<Handle>>, Bid, Stop),
    /// It could not wait at the server.
    Failed,
}

/// What was found of a request that is withdrawn.
pub(super) enum Found {
    Nothing,
    /// The server is asked for it; this says that it is not any more.
    Bidding(EventListener),
    Holding(Holder),
}

impl Board {
    pub(super) fn new(most_waiting: usize) -> Self {
        let (keep, most) = REMEMBERED;
        let state = State {
            names: HashMap::new(),
            buried: Tombstones::new(keep, most),
            released: Tombstones::new(keep, most),
            doubtful: HashMap::new(),
            shared: None,
            idle: Vec::new(),
            waiting: 0,
            crowded: Cache::default(),
            signals: Vec::new(),
            pooler: None,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            most_waiting,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (send, receive) = mpsc::unbounded();
        self.state().signals.push(send);
        receive
    }

    /// There is a shared connection again.
    pub(super) fn back(&self) {
        self.state().signal(&Signal::Back);
    }

    /// # Errors
    /// `Closed`, or `Unsupported` behind a pooler.
    pub(super) fn check_open(&self) -> Result<()> {
        self.state().check_open()
    }

    /// The shared connection. Where there is none that works, it is opened.
    ///
    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub(super) fn shared(&self, open: impl FnOnce() -> Arc<Handle>) -> Result<Arc<Handle>> {
        let mut state = self.state();
        state.check_open()?;
        state.shared.take_if(|shared| !shared.is_open());
        Ok(state.shared.get_or_insert_with(open).clone())
    }

    /// That connection holds nothing and waits for nothing: if it is one to wait on, it is anybody's to take.
    pub(super) fn put_back(&self, connection: Arc<Handle>, now: Timestamp) {
        let mut state = self.state();
        if !state.closed && !connection.life.is_shared {
            state.idle.push((connection, now));
        }
    }

    /// Ends the connections that were unneeded for long.
    pub(super) fn retire(&self, now: Timestamp) {
        let mut state = self.state();
        state.idle.retain(|(_, since)| now.since(*since) < KEPT_IDLE);
    }

    /// A connection to wait on has ended, or was not made.
    pub(super) fn one_less(&self) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(1);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.state().names.is_empty()
    }

    /// Somebody of another client is there.
    pub(super) fn met_others(&self, key: &Key, now: Timestamp) {
        self.state().crowded.note(key, now);
    }

    /// Somebody listens for its turn.
    pub(super) fn step(self: &Arc<Self>, key: &Key, lease: &LeaseKey, now: Timestamp) -> Step {
        let state = &mut *self.state();
        if state.check_open().is_err() || state.buried.has(&lease.id) {
            return Step::Ready;
        }
        let name = state.names.entry(*key).or_default();
        if name.holder(lease.id).is_some() {
            return Step::Ready;
        }
        let waiter = name.join(lease);
        waiter.left = None;
        let rung = waiter.bell.listen();
        name.pass_over(now);
        let may_bid = name.bidding.is_none();
        let first = name.line.front_mut();
        let Some(first) = first.filter(|first| may_bid && first.lease.id == lease.id) else {
            return Step::Stay(rung);
        };
        if std::mem::take(&mut first.failed) {
            return Step::Failed;
        }
        let idle = state.idle.pop().map(|(connection, _)| connection);
        if idle.is_none() {
            if state.waiting >= self.most_waiting {
                return Step::Starved(rung);
            }
            state.waiting += 1;
        }
        let (bid, stop) = name.contend(self, key);
        Step::Contend(idle, bid, stop)
    }

    /// The listener has gone.
    pub(super) fn left(&self, key: &Key, lease: &LeaseKey, now: Timestamp) {
        let mut state = self.state();
        let line = state.names.get_mut(key).map(|name| &mut name.line);
        if let Some(waiter) = line.and_then(|line| line.iter_mut().find(|w| w.lease.id == lease.id)) {
            waiter.left = Some(now);
        }
    }

    /// Nothing of that request is to be left. First there is its tombstone; whatever of it is under way meets
    /// that. A holder is being given back from now on, and is never granted again.
    ///
    /// # Errors
    /// `Unknown` while it may be granted in a session of which no more is heard; `Closed`.
    pub(super) fn withdraw(&self, key: &Key, id: RequestId, now: Timestamp) -> Result<Found> {
        let state = &mut *self.state();
        state.check_closed()?;
        state.buried.bury(id, now);
        let shared = state.shared.clone().filter(|shared| shared.is_made());
        if let Some(name) = state.names.get_mut(key) {
            if let Some(holder) = name.holder(id) {
                holder.leaving = true;
                return Ok(Found::Holding(holder.clone()));
            }
            if name.line.iter().any(|w| w.lease.id == id) {
                name.line.retain(|w| w.lease.id != id && w.is_here(now));
                // Its wait goes on for the others, if there are any.
                if let Some(wait) = name.bidding.as_mut().filter(|_| name.line.is_empty()) {
                    wait.stop(Some(id), shared);
                }
            }
            if let Some(bidding) = name.bidding.as_ref().filter(|bidding| bidding.of == Some(id)) {
                return Ok(Found::Bidding(bidding.over.listen()));
            }
            name.ring_first();
            state.tidy(key);
        }
        state.doubtful.retain(|_, until| now < *until);
        match state.doubtful.contains_key(&id) {
            false => Ok(Found::Nothing),
            true => Err(Error::new(
                ErrorKind::Unknown,
                "the request may have the lock, in a session that does not answer; the server ends that \
                 session after its ttl",
            )),
        }
    }

    /// Somebody believes in that lease from now on for as long as in its session: the connection on which it
    /// hangs, and since when that counts. `None` if it is not held any more.
    pub(super) fn extend(&self, key: &Key, id: RequestId) -> Option<(Arc<Handle>, Timestamp)> {
        let mut state = self.state();
        let holder = state.names.get_mut(key)?.holder(id).filter(|h| !h.leaving)?;
        let (connection, from) = (&holder.connection, holder.connection.life.confirmed());
        holder.until = holder.until.max(from + connection.life.ttl);
        Some((connection.clone(), from))
    }

    /// The unrenewed holds on the connection of that life: they are being released from now on. Its client
    /// has stopped without a word, or did not hear that it was let in.
    pub(super) fn lapsed(&self, life: &Arc<Life>, now: Timestamp) -> Vec<(Key, RequestId, Arc<Handle>)> {
        let State { names, buried, .. } = &mut *self.state();
        let mut lapsed = Vec::new();
        for (key, name) in names {
            let holder = name.holder.as_mut();
            let is_over = |h: &&mut Holder| h.connection.is_of(life) && !h.leaving && h.until < now;
            if let Some(holder) = holder.filter(is_over) {
                holder.leaving = true;
                buried.bury(holder.lease.id, now);
                lapsed.push((*key, holder.lease.id, holder.connection.clone()));
            }
        }
        lapsed
    }

    /// The holder of that request has been given back, or was found not to have had it any more.
    pub(super) fn unlocked(&self, key: &Key, id: RequestId, was_held: bool, now: Timestamp) {
        let state = &mut *self.state();
        if was_held {
            state.released.bury(id, now);
        }
        if let Some(name) = state.names.get_mut(key) {
            name.holder.take_if(|h| h.lease.id == id);
            name.ring_first();
        }
        state.tidy(key);
    }

    /// By an earlier delivery of its release.
    pub(super) fn was_released(&self, id: RequestId) -> bool {
        self.state().released.has(&id)
    }

    /// The connection of that life has ended, or is about to be closed: its holds are reported lost.
    pub(super) fn over(&self, life: &Arc<Life>, why: Option<&Failed>) {
        let state = &mut *self.state();
        if let Some(why) = why.filter(|why| why.error.kind() == ErrorKind::Unsupported) {
            state.pooler.get_or_insert_with(|| why.error.clone());
        }
        state.idle.retain(|(idle, _)| !idle.is_of(life));
        let mut lost = Vec::new();
        for name in state.names.values_mut() {
            if let Some(holder) = name.holder.take_if(|h| h.connection.is_of(life)) {
                lost.push(holder.lease);
                name.ring_first();
            }
        }
        state.names.retain(|_, name| !name.is_empty());
        if !lost.is_empty() {
            state.lost(LostLeases::These(lost), LossReason::SessionLost);
        }
    }

    /// Nothing is asked for any more, and no connection is kept: each ends when it has done what it was
    /// asked.
    pub(super) fn close(&self) {
        let state = &mut *self.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        // First this: with the connections go the locks.
        state.lost(LostLeases::All, LossReason::Closed);
        let shared = state.shared.take().filter(|shared| shared.is_made());
        state.idle.clear();
        for mut name in std::mem::take(&mut state.names).into_values() {
            if let Some(bidding) = &mut name.bidding {
                // The shared connection lives until the server is told.
                bidding.stop(None, shared.clone());
            }
            for waiter in &name.line {
                waiter.bell.notify(usize::MAX);
            }
        }
    }
}

impl State {
    fn check_closed(&self) -> Result<()> {
        match self.closed {
            true => Err(Error::new(ErrorKind::Closed, "the client was closed")),
            false => Ok(()),
        }
    }

    fn check_open(&self) -> Result<()> {
        self.check_closed()?;
        self.pooler.clone().map_or(Ok(()), Err)
    }

    /// Forgets a name that this client does not use.
    fn tidy(&mut self, key: &Key) {
        if self.names.get(key).is_some_and(Name::is_empty) {
            self.names.remove(key);
        }
    }

    fn lost(&mut self, leases: LostLeases, reason: LossReason) {
        self.signal(&Signal::Lost(leases, reason));
    }

    fn signal(&mut self, signal: &Signal) {
        self.signals.retain(|s| s.unbounded_send(signal.clone()).is_ok());
    }
}

impl Name {
    fn is_empty(&self) -> bool {
        self.holder.is_none() && self.bidding.is_none() && self.line.is_empty()
    }

    fn holder(&mut self, id: RequestId) -> Option<&mut Holder> {
        self.holder.as_mut().filter(|h| h.lease.id == id)
    }

    /// Who is away for too long is no longer in line.
    fn pass_over(&mut self, now: Timestamp) {
        self.line.retain(|waiter| waiter.is_here(now));
    }

    fn ring_first(&self) {
        if let Some(first) = self.line.front() {
            first.bell.notify(usize::MAX);
        }
    }
}
