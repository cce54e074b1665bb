//! What one client has and wants, by the keys that the server knows: a state machine without I/O.
//!
//! ```text
//!              asked for, and nobody of this client is there
//!   (nothing) ------------------------------------------------> trying ----> holder
//!       |                                                          | somebody else has it
//!       | somebody of this client is there                         v
//!       +--------------------------------> in line <---------- (nothing)
//!                                             | the first, and nobody contends
//!                                             v            the server lets it in
//!                                         contender -----------------------------> holder
//! ```
//!
//! A session is let in again by a lock that it holds. So this table keeps the requests *of one client* from
//! one another:
//!
//! * *One tries at a time*, on the shared connection, and only while nobody of this client holds or contends.
//!   Two tries of one name in one session would both be let in.
//! * *One contends at a time*, on a connection of its own that holds nothing. It may stand behind a holder of
//!   this client: another session, which keeps it out.
//! * *By the key, not by the name*: two names of one hash are one lock.
//!
//! What could break it, and why it does not:
//!
//! * *The caller goes away while its request is tried.* The [connection](super::connection) notes the
//!   outcome, not the caller. An abandon buries the request first; then the connection gives back what it was
//!   granted before it says that the try is over, so that nobody tries meanwhile.
//! * *The server lets the contender in, and a holder of this client is still here.* Its release is on its way
//!   back (it is `leaving`), or its session was ended and we have not been told: then it has lost its lock,
//!   and is told before the next one.
//! * *A waiter is gone without a word.* A request that is answered `Held` may leave nothing behind. It keeps
//!   its place while its [seat](Seat) lives, and for a [`GRACE`], since the engine is away for a moment when
//!   it asks again. Then it is passed over, and what it was let in to lapses.
//! * *A connection ends.* All that hung on it is taken out in one step, and told as lost before the
//!   connection is closed from this side.

mod requests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, Signal, Tombstones};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Runtime, Timestamp, Token};
use event_listener::{Event, EventListener, IntoNotification as _};
use futures::channel::mpsc;

use super::failure::Failed;
use super::handle::{Cancel, Handle};
use super::keys::Key;
use crate::lately::Lately;

/// How long a waiter may be away between two questions.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// For so long after somebody of another client was there, one is counted on.
const CROWDED: Duration = Duration::from_secs(1);

/// A late call of an abandoned request comes from this process: nothing overtakes within a session. So its
/// memory is enough. No call is under way for a day, nor are so many at once.
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
    /// Connections that wait for nothing and hold nothing, the latest last.
    idle: Vec<Arc<Handle>>,
    /// How many connections there are beside the shared one, with those that are being made.
    waiting: usize,
    /// There may be a connection to wait on.
    free: Event,
    /// When somebody of another client was there last.
    crowded: Lately<Key, Timestamp>,
    signals: Vec<mpsc::UnboundedSender<Signal>>,
    /// Sessions are shared behind our back: nothing is asked for any more.
    pooler: Option<Error>,
    closed: bool,
}

#[derive(Default)]
struct Name {
    holder: Option<Holder>,
    trying: Option<RequestId>,
    contender: Option<(Waiter, Arc<Cancel>)>,
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
    /// Until when anybody believes in it. What is not renewed by then lapses.
    until: Timestamp,
}

struct Waiter {
    lease: LeaseKey,
    bell: Arc<Event>,
    /// Since when nobody listens.
    left: Option<Timestamp>,
    /// It could not contend.
    failed: bool,
}

/// What is to be done for a request.
pub(super) enum Asked {
    /// It has it.
    Granted(Holder),
    /// Somebody of this client is there.
    Wait,
    /// Somebody of another client was there a moment ago, and a connection to wait on is to spare. A waiter
    /// on it is let in at once if nobody is there: one request, where a try in vain would be the first of
    /// two. If that connection is taken meanwhile, it is to ask again.
    Expect,
    /// Send it. The place of whoever tries is taken.
    Try,
}

/// What is to be done for a waiter.
pub(super) enum Step {
    /// There is something to ask for.
    Ready,
    /// Wait for this. It hears all that happens after the look.
    Stay(EventListener),
    /// There is no connection to wait on: ask on the shared one after either of these.
    Starved(EventListener, EventListener),
    /// It is its turn to contend, on that connection or on a new one.
    Contend(Option<Arc<Handle>>, Arc<Cancel>),
    /// It could not contend.
    Failed,
}

/// What was found of a request that is withdrawn.
pub(super) enum Found {
    Nothing,
    InLine,
    /// The shared connection is trying it.
    Trying(Option<Arc<Handle>>),
    /// It is told to stop; this says that it has, or that something else has happened.
    Contending(EventListener),
    Holding(Holder),
}

/// Why a contender has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Unwanted,
    Failed,
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
            free: Event::new(),
            crowded: Lately::default(),
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

    /// # Errors
    /// `Closed`, or `Unsupported` behind a pooler.
    pub(super) fn check_open(&self) -> Result<()> {
        self.state().check_open()
    }

    /// The shared connection, if there is one that works.
    pub(super) fn shared(&self) -> Option<Arc<Handle>> {
        self.state().shared.clone().filter(|shared| shared.is_open())
    }

    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub(super) fn install(&self, shared: Arc<Handle>) -> Result<()> {
        let mut state = self.state();
        state.check_open()?;
        state.shared = Some(shared);
        state.signal(&Signal::Back);
        Ok(())
    }

    /// That connection holds nothing and waits for nothing.
    pub(super) fn put_back(&self, connection: Arc<Handle>) {
        let mut state = self.state();
        if !state.closed {
            state.idle.push(connection);
            state.free.notify(1.additional());
        }
    }

    /// Takes an idle connection out for good. `false` if somebody has just taken it.
    pub(super) fn retire(&self, connection: u64) -> bool {
        let mut state = self.state();
        let before = state.idle.len();
        state.idle.retain(|idle| idle.id != connection);
        state.idle.len() < before
    }

    /// A connection to wait on has ended, or was not made.
    pub(super) fn one_less(&self) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(1);
        state.free.notify(1.additional());
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.state().names.is_empty()
    }

    /// That connection has ended, or is about to be closed: what hung on it is told as lost.
    pub(super) fn over(&self, connection: u64, why: Option<&Failed>) {
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(why) = why.filter(|why| why.error.kind() == ErrorKind::Unsupported) {
            state.pooler.get_or_insert_with(|| why.error.clone());
        }
        state.shared.take_if(|shared| shared.id == connection);
        state.idle.retain(|idle| idle.id != connection);
        let mut lost = Vec::new();
        for name in state.names.values_mut() {
            if let Some(holder) = name.holder.take_if(|h| h.connection.id == connection) {
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
        let (names, shared, _idle) = {
            let mut state = self.state();
            if state.closed {
                return;
            }
            state.closed = true;
            // First this: with the connections go the locks.
            state.lost(LostLeases::All, LossReason::Closed);
            let names = std::mem::take(&mut state.names);
            (names, state.shared.take(), std::mem::take(&mut state.idle))
        };
        for mut name in names.into_values() {
            if let Some((waiter, cancel)) = name.contender {
                // The shared connection lives until the server is told.
                cancel.set(shared.clone());
                name.line.push_back(waiter);
            }
            for waiter in name.line {
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

    /// Nothing is kept of a name that nobody of this client is at.
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
        self.holder.is_none() && self.trying.is_none() && self.contender.is_none() && self.line.is_empty()
    }

    fn holder(&mut self, id: RequestId) -> Option<&mut Holder> {
        self.holder.as_mut().filter(|h| h.lease.id == id)
    }

    fn contender(&mut self, id: RequestId) -> Option<&mut (Waiter, Arc<Cancel>)> {
        self.contender
            .as_mut()
            .filter(|(waiter, _)| waiter.lease.id == id)
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

impl Waiter {
    fn is_here(&self, now: Timestamp) -> bool {
        self.left.is_none_or(|left| now.since(left) <= GRACE)
    }
}

/// A place in line that is kept while this lives, and for [`GRACE`] after it.
pub(super) struct Seat {
    pub(super) board: Arc<Board>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) key: Key,
    pub(super) lease: LeaseKey,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.board.left(&self.key, &self.lease, self.runtime.now());
    }
}
