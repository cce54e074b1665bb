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
//! A session is let in again by a lock that it holds. So what keeps the requests *of one client* apart is this table:
//!
//! * *One tries at a time*, on the shared connection, and only while nobody of this client holds or contends. Two tries of one name in one session would both be let in.
//! * *One contends at a time*, on a connection of its own that holds nothing. It may stand behind a holder of this client: another session, which keeps it out.
//! * *By the key, not by the name*: two names with one hash are one lock.
//!
//! What could break it, and why it does not:
//!
//! * *The caller goes away while it is tried.* What comes of it is noted by the [link](super::link) that asked, not by the caller. An abandon buries the request first; then the
//!   link gives back what it was granted before it says that the try is over, so that nobody tries meanwhile.
//! * *The server lets the contender in, and a holder of this client is still here.* Its release is on its way back (it is `leaving`), or its session was ended and we have
//!   not been told: then it has lost its lock, and is told before the next one.
//! * *Who waits is gone without a word.* A request that is answered `Held` may leave nothing behind. While somebody listens to its [seat](Seat) it keeps its place; the engine asks again now and then, and is
//!   away for a moment. Who is away for longer than [`GRACE`] is passed over, and what it was let in to is given back.
//! * *A connection ends.* All that hung on it is taken out in one step, and told as lost before the connection is closed from this side.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, RequestId, Signal};
use dlock_core::{Error, ErrorKind, LossReason, Result, Timestamp, Token};
use event_listener::{Event, EventListener};
use futures::channel::mpsc;

use super::key::Key;
use super::link::{Handle, Kind};
use super::tombstones::Tombstones;
use super::wire::Failed;

/// How long somebody in line may be away between two questions.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// See the head of the file.
pub(super) struct Board {
    state: Mutex<State>,
    signals: Mutex<Vec<mpsc::UnboundedSender<Signal>>>,
    /// How many connections may wait.
    most_waiting: usize,
}

#[derive(Default)]
struct State {
    names: HashMap<Key, Name>,
    buried: Tombstones,
    /// Of those, who was given back as a holder.
    released: Tombstones,
    shared: Option<Arc<Handle>>,
    /// Connections that wait for nothing and hold nothing, the latest last.
    idle: Vec<Arc<Handle>>,
    /// How many connections there are beside the shared one, and how many are being made.
    waiting: usize,
    /// Whose first in line found no connection to wait on.
    starved: VecDeque<Key>,
    /// Sessions are shared behind our back: nothing is asked for any more.
    pooler: Option<Error>,
    closed: bool,
}

#[derive(Default)]
struct Name {
    holder: Option<Holder>,
    trying: Option<LeaseKey>,
    contender: Option<Contender>,
    line: VecDeque<InLine>,
}

impl Name {
    fn is_empty(&self) -> bool {
        self.holder.is_none() && self.trying.is_none() && self.contender.is_none() && self.line.is_empty()
    }

    /// Who is away for too long is no longer in line.
    fn pass_over(&mut self, now: Timestamp) {
        self.line.retain(|l| !l.presence.is_gone(now));
    }

    fn ring_first(&self) {
        if let Some(first) = self.line.front() {
            first.bell.notify(usize::MAX);
        }
    }
}

/// A lease, and the connection on which it hangs.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) lease: LeaseKey,
    pub(super) token: Token,
    pub(super) link: Arc<Handle>,
    /// It is being given back.
    leaving: bool,
    /// Whoever asked for it knows that it has it, or has been there when it was granted.
    claimed: bool,
}

struct Contender {
    lease: LeaseKey,
    bell: Arc<Event>,
    cancel: Arc<Cancel>,
    presence: Presence,
    /// Once there is one.
    link: Option<u64>,
}

struct InLine {
    lease: LeaseKey,
    bell: Arc<Event>,
    presence: Presence,
    /// Why it could not contend.
    failure: Option<Error>,
}

/// Whether somebody listens.
#[derive(Clone, Copy)]
enum Presence {
    Here,
    Since(Timestamp),
}

impl Presence {
    fn is_gone(self, now: Timestamp) -> bool {
        match self {
            Self::Here => false,
            Self::Since(left) => now.since(left) > GRACE,
        }
    }
}

/// Tells the link of a contender to stop.
#[derive(Debug, Default)]
pub(super) struct Cancel {
    is_set: AtomicBool,
    pub(super) event: Event,
}

impl Cancel {
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.event.notify(usize::MAX);
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }
}

/// What is to be done for a request.
pub(super) enum Asked {
    /// It has it.
    Granted(Holder),
    /// Somebody of this client is there.
    Wait,
    /// Send it. The place of whoever tries is taken.
    Try,
}

/// What is to be done for whoever waits.
pub(super) enum Step {
    /// There is something to ask for.
    Ready,
    /// Wait for this. It hears all that happens after the look.
    Stay(EventListener),
    /// There is no connection to wait on: what this tells of is asked for on the shared one.
    Starved(EventListener),
    /// It is its turn to contend, on that connection or on a new one.
    Contend(Option<Arc<Handle>>, Arc<Cancel>),
    /// It could not contend.
    Failed,
}

/// What becomes of a lock that the server gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    /// Nobody wants it any more: give it back, then say that there is nothing.
    GiveBack,
}

/// What an abandon has found.
pub(super) enum Found {
    Nothing,
    InLine,
    /// Its answer comes on the shared connection.
    Trying,
    /// It is told to stop; this says that it has, or that something else has happened.
    Contending(EventListener),
    Holding(Holder),
}

impl Board {
    pub(super) fn new(most_waiting: usize) -> Self {
        Self {
            state: Mutex::default(),
            signals: Mutex::default(),
            most_waiting,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- requests ----

    /// A request that is to be answered now. After [`Asked::Try`] the caller sends it without a pause, or calls [`tried`](Self::tried).
    ///
    /// # Errors
    /// `Lost` if it was abandoned or released; `Unknown` if another call of it is on its way; `Unsupported` behind a pooler; `Closed`.
    pub(super) fn ask(&self, key: &Key, lease: &LeaseKey, now: Timestamp) -> Result<Asked> {
        let mut state = self.state();
        state.check_open()?;
        if state.buried.has(lease.id) {
            return Err(Error::lost(LossReason::Refused));
        }
        let name = state.names.entry(*key).or_default();
        name.pass_over(now);
        if let Some(holder) = &mut name.holder {
            return match holder.lease.id == lease.id {
                true if holder.leaving => Err(Error::lost(LossReason::Released)),
                true => {
                    holder.claimed = true;
                    Ok(Asked::Granted(holder.clone()))
                }
                false => Ok(Asked::Wait),
            };
        }
        if name.contender.is_some() {
            return Ok(Asked::Wait);
        }
        match &name.trying {
            Some(other) if other.id == lease.id => {
                let message = "another call of the same request is on its way, and what comes of it is not known yet: ask again";
                return Err(Error::new(ErrorKind::Unknown, message));
            }
            Some(_) => return Ok(Asked::Wait),
            None => {}
        }
        if name.line.front().is_some_and(|first| first.lease.id != lease.id) {
            return Ok(Asked::Wait);
        }
        name.trying = Some(lease.clone());
        Ok(Asked::Try)
    }

    /// The try has ended. With [`Verdict::GiveBack`] its place stays taken: the link unlocks, and says so by another call with `None`.
    pub(super) fn tried(&self, key: &Key, lease: &LeaseKey, got: Option<(Token, Arc<Handle>)>) -> Verdict {
        let mut state = self.state();
        let is_buried = state.buried.has(lease.id) || state.closed;
        if got.is_some() && is_buried {
            return Verdict::GiveBack;
        }
        let Some(name) = state.names.get_mut(key) else {
            return Verdict::Keep;
        };
        if name.trying.as_ref().is_none_or(|t| t.id != lease.id) {
            return Verdict::Keep;
        }
        name.trying = None;
        if let Some((token, link)) = got {
            name.line.retain(|l| l.lease.id != lease.id);
            name.holder = Some(Holder {
                lease: lease.clone(),
                token,
                link,
                leaving: false,
                claimed: true,
            });
        }
        // Whoever is first now contends, behind the holder.
        name.ring_first();
        state.tidy(key);
        Verdict::Keep
    }

    /// Somebody listens for its turn.
    pub(super) fn step(&self, key: &Key, lease: &LeaseKey, now: Timestamp) -> Step {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.closed || state.pooler.is_some() || state.buried.has(lease.id) {
            return Step::Ready;
        }
        let name = state.names.entry(*key).or_default();
        if name.holder.as_ref().is_some_and(|h| h.lease.id == lease.id) {
            return Step::Ready;
        }
        if let Some(contender) = name.contender.as_mut().filter(|c| c.lease.id == lease.id) {
            contender.presence = Presence::Here;
            return Step::Stay(contender.bell.listen());
        }
        match name.line.iter_mut().find(|l| l.lease.id == lease.id) {
            Some(place) => place.presence = Presence::Here,
            None => name.line.push_back(InLine {
                lease: lease.clone(),
                bell: Arc::default(),
                presence: Presence::Here,
                failure: None,
            }),
        }
        name.pass_over(now);
        let is_first = name.line.front().is_some_and(|first| first.lease.id == lease.id);
        if !is_first || name.contender.is_some() || name.trying.is_some() {
            let place = name.line.iter().find(|l| l.lease.id == lease.id);
            return place.map_or(Step::Ready, |place| Step::Stay(place.bell.listen()));
        }
        let Some(mut first) = name.line.pop_front() else {
            return Step::Ready;
        };
        if first.failure.take().is_some() {
            name.line.push_front(first);
            return Step::Failed;
        }
        let link = state.idle.pop();
        if link.is_none() {
            if state.waiting >= self.most_waiting {
                let rung = first.bell.listen();
                name.line.push_front(first);
                if !state.starved.contains(key) {
                    state.starved.push_back(*key);
                }
                return Step::Starved(rung);
            }
            state.waiting += 1;
        }
        let cancel = Arc::<Cancel>::default();
        name.contender = Some(Contender {
            lease: first.lease,
            bell: first.bell,
            cancel: cancel.clone(),
            presence: Presence::Here,
            link: link.as_ref().map(|l| l.id),
        });
        Step::Contend(link, cancel)
    }

    /// Whoever listened listens no more.
    fn left(&self, key: &Key, lease: &LeaseKey, now: Timestamp) {
        let mut state = self.state();
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        if let Some(contender) = name.contender.as_mut().filter(|c| c.lease.id == lease.id) {
            contender.presence = Presence::Since(now);
        } else if let Some(place) = name.line.iter_mut().find(|l| l.lease.id == lease.id) {
            place.presence = Presence::Since(now);
        }
    }

    // ---- contending ----

    /// The contender has its connection.
    pub(super) fn contends_on(&self, key: &Key, lease: &LeaseKey, link: u64) {
        if let Some(contender) = self.state().contender(key, lease) {
            contender.link = Some(link);
        }
    }

    /// Whether the contender is still wanted: asked between two turns.
    pub(super) fn is_wanted(&self, key: &Key, lease: &LeaseKey, now: Timestamp) -> bool {
        let mut state = self.state();
        if state.closed || state.buried.has(lease.id) {
            return false;
        }
        let contender = state.contender(key, lease);
        contender.is_some_and(|c| !c.cancel.is_set() && !c.presence.is_gone(now))
    }

    /// The server has let the contender in. With [`Verdict::GiveBack`] it stays the contender: the link unlocks, and says so by
    /// [`withdrawn`](Self::withdrawn).
    ///
    /// Whether somebody listens is told as well: if not, the link looks a while later whether somebody has come.
    pub(super) fn contended(
        &self,
        key: &Key,
        lease: &LeaseKey,
        token: Token,
        link: Arc<Handle>,
        now: Timestamp,
    ) -> (Verdict, IsHeard) {
        let mut state = self.state();
        if state.closed || state.buried.has(lease.id) {
            return (Verdict::GiveBack, IsHeard::No);
        }
        let Some(name) = state.names.get_mut(key) else {
            return (Verdict::GiveBack, IsHeard::No);
        };
        let Some(contender) = name
            .contender
            .take_if(|c| c.lease.id == lease.id && !c.presence.is_gone(now))
        else {
            return (Verdict::GiveBack, IsHeard::No);
        };
        let before = name.holder.replace(Holder {
            lease: contender.lease,
            token,
            link,
            leaving: false,
            claimed: matches!(contender.presence, Presence::Here),
        });
        // The server has given away what it had: its session has ended, and we have not been told yet.
        if let Some(before) = before.filter(|before| !before.leaving) {
            self.signal(&Signal::Lost(
                LostLeases::These(vec![before.lease]),
                LossReason::SessionLost,
            ));
        }
        contender.bell.notify(usize::MAX);
        name.ring_first();
        let is_heard = match contender.presence {
            Presence::Here => IsHeard::Yes,
            Presence::Since(_) => IsHeard::No,
        };
        (Verdict::Keep, is_heard)
    }

    /// The contender has stopped, and holds nothing. With an error it was not its own wish: then it is the first in line again, and is told.
    pub(super) fn withdrawn(&self, key: &Key, lease: &LeaseKey, failure: Option<Error>) {
        let mut state = self.state();
        let is_buried = state.buried.has(lease.id);
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        let Some(contender) = name.contender.take_if(|c| c.lease.id == lease.id) else {
            return;
        };
        contender.bell.notify(usize::MAX);
        if let Some(failure) = failure
            && !is_buried
        {
            name.line.push_front(InLine {
                lease: contender.lease,
                bell: contender.bell,
                presence: contender.presence,
                failure: Some(failure),
            });
        }
        name.ring_first();
        state.tidy(key);
    }

    // ---- releasing ----

    /// The holder of that request, which is being given back from now on. It is never granted again.
    pub(super) fn leave(&self, key: &Key, id: RequestId) -> Result<Option<Holder>> {
        let mut state = self.state();
        state.check_closed()?;
        state.buried.bury(id);
        let holder = state.names.get_mut(key).and_then(|name| name.holder.as_mut());
        Ok(holder.filter(|h| h.lease.id == id).map(|holder| {
            holder.leaving = true;
            holder.clone()
        }))
    }

    /// Nothing of that request is to be left. First there is its tombstone; whatever of it is under way meets that.
    pub(super) fn abandon(&self, key: &Key, id: RequestId) -> Result<Found> {
        let mut state = self.state();
        state.check_closed()?;
        state.buried.bury(id);
        let Some(name) = state.names.get_mut(key) else {
            return Ok(Found::Nothing);
        };
        if let Some(holder) = name.holder.as_mut().filter(|h| h.lease.id == id) {
            holder.leaving = true;
            return Ok(Found::Holding(holder.clone()));
        }
        if let Some(contender) = name.contender.as_ref().filter(|c| c.lease.id == id) {
            let stopped = contender.bell.listen();
            contender.cancel.set();
            return Ok(Found::Contending(stopped));
        }
        if name.trying.as_ref().is_some_and(|t| t.id == id) {
            return Ok(Found::Trying);
        }
        let before = name.line.len();
        name.line.retain(|l| l.lease.id != id);
        let found = match name.line.len() < before {
            true => Found::InLine,
            false => Found::Nothing,
        };
        name.ring_first();
        state.tidy(key);
        Ok(found)
    }

    /// The holder of that request has been given back, or was found not to have had it any more.
    pub(super) fn unlocked(&self, key: &Key, id: RequestId, was_held: bool) {
        let mut state = self.state();
        if was_held {
            state.released.bury(id);
        }
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        name.holder.take_if(|h| h.lease.id == id);
        name.ring_first();
        state.tidy(key);
    }

    /// Whether that request was given back by an earlier delivery of its release.
    pub(super) fn was_released(&self, id: RequestId) -> bool {
        self.state().released.has(id)
    }

    /// As [`leave`](Self::leave), if nobody has asked for it since it was let in. Whether it is to be given back.
    pub(super) fn leave_unclaimed(&self, key: &Key, id: RequestId) -> bool {
        let mut state = self.state();
        let Some(name) = state.names.get_mut(key) else {
            return false;
        };
        match name
            .holder
            .as_mut()
            .filter(|h| h.lease.id == id && !h.claimed && !h.leaving)
        {
            Some(holder) => {
                holder.leaving = true;
                state.buried.bury(id);
                true
            }
            None => false,
        }
    }

    pub(super) fn holder(&self, key: &Key, id: RequestId) -> Option<Holder> {
        let state = self.state();
        let holder = state.names.get(key)?.holder.as_ref()?;
        (holder.lease.id == id && !holder.leaving).then(|| holder.clone())
    }

    // ---- connections ----

    pub(super) fn shared(&self) -> Option<Arc<Handle>> {
        self.state().shared.clone()
    }

    /// # Errors
    /// `Closed`, or `Unsupported` behind a pooler.
    pub(super) fn check_open(&self) -> Result<()> {
        self.state().check_open()
    }

    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub(super) fn install(&self, shared: Arc<Handle>) -> Result<()> {
        let mut state = self.state();
        state.check_open()?;
        state.shared = Some(shared);
        drop(state);
        self.signal(&Signal::Back);
        Ok(())
    }

    /// That connection holds nothing and waits for nothing.
    pub(super) fn put_back(&self, link: Arc<Handle>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.idle.push(link);
        state.feed();
    }

    /// Takes an idle connection out for good. `false` if somebody has just taken it.
    pub(super) fn retire(&self, link: u64) -> bool {
        let mut state = self.state();
        let before = state.idle.len();
        state.idle.retain(|l| l.id != link);
        state.idle.len() < before
    }

    /// A connection that was to be made has not been.
    pub(super) fn not_made(&self) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(1);
        state.feed();
    }

    /// That connection has ended, or is about to be closed: what hung on it is told as lost.
    pub(super) fn over(&self, link: u64, kind: Kind, why: Option<&Failed>) {
        let mut lost = Vec::new();
        {
            let mut guard = self.state();
            let state = &mut *guard;
            if let Some(why) = why
                && why.error.kind() == ErrorKind::Unsupported
            {
                state.pooler.get_or_insert_with(|| why.error.clone());
            }
            match kind {
                Kind::Shared => drop(state.shared.take_if(|s| s.id == link)),
                Kind::Waiting => {
                    state.idle.retain(|l| l.id != link);
                    state.waiting = state.waiting.saturating_sub(1);
                }
            }
            for name in state.names.values_mut() {
                if let Some(holder) = name.holder.take_if(|h| h.link.id == link) {
                    lost.push(holder.lease);
                    name.ring_first();
                }
                if let Some(contender) = name.contender.take_if(|c| c.link == Some(link)) {
                    contender.bell.notify(usize::MAX);
                    let is_wanted = !state.buried.has(contender.lease.id);
                    if is_wanted {
                        name.line.push_front(InLine {
                            lease: contender.lease,
                            bell: contender.bell,
                            presence: contender.presence,
                            failure: Some(why.map_or_else(gone, |w| w.error.clone())),
                        });
                    }
                    name.ring_first();
                }
            }
            state.names.retain(|_, name| !name.is_empty());
            state.feed();
        }
        if !lost.is_empty() {
            self.signal(&Signal::Lost(LostLeases::These(lost), LossReason::SessionLost));
        }
    }

    /// Nothing is asked for any more, and no connection is kept: each ends when it has done what it was asked.
    pub(super) fn close(&self) {
        let (names, _connections) = {
            let mut state = self.state();
            if state.closed {
                return;
            }
            state.closed = true;
            (
                std::mem::take(&mut state.names),
                (state.shared.take(), std::mem::take(&mut state.idle)),
            )
        };
        // First this: with the connections go the locks.
        self.signal(&Signal::Lost(LostLeases::All, LossReason::Closed));
        for name in names.into_values() {
            if let Some(contender) = name.contender {
                contender.cancel.set();
                contender.bell.notify(usize::MAX);
            }
            for place in name.line {
                place.bell.notify(usize::MAX);
            }
        }
    }

    // ---- signals ----

    pub(super) fn signals(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (send, receive) = mpsc::unbounded();
        self.senders().push(send);
        receive
    }

    fn senders(&self) -> MutexGuard<'_, Vec<mpsc::UnboundedSender<Signal>>> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: &Signal) {
        self.senders()
            .retain(|s| s.unbounded_send(signal.clone()).is_ok());
    }
}

/// Whether somebody listened when the server let it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IsHeard {
    Yes,
    No,
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

    fn contender(&mut self, key: &Key, lease: &LeaseKey) -> Option<&mut Contender> {
        let name = self.names.get_mut(key)?;
        name.contender.as_mut().filter(|c| c.lease.id == lease.id)
    }

    /// Nothing is kept of a name that nobody of this client is at.
    fn tidy(&mut self, key: &Key) {
        if self.names.get(key).is_some_and(Name::is_empty) {
            self.names.remove(key);
        }
    }

    /// There may be a connection to wait on.
    fn feed(&mut self) {
        while let Some(key) = self.starved.pop_front() {
            if let Some(name) = self.names.get(&key)
                && !name.line.is_empty()
            {
                name.ring_first();
                return;
            }
        }
    }
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection that waited for the lock was closed",
    )
}

/// A place in line that is kept while this lives, and for [`GRACE`] after it.
pub(super) struct Seat {
    board: Arc<Board>,
    runtime: Arc<dyn dlock_core::Runtime>,
    key: Key,
    lease: LeaseKey,
}

impl Seat {
    pub(super) fn new(
        board: Arc<Board>,
        runtime: Arc<dyn dlock_core::Runtime>,
        key: Key,
        lease: LeaseKey,
    ) -> Self {
        Self {
            board,
            runtime,
            key,
            lease,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.board.left(&self.key, &self.lease, self.runtime.now());
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    fn lease(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, n))
    }

    fn key() -> Key {
        Key::new("space", &lease(0).name)
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    fn token(n: u64) -> Token {
        Token::new(n).unwrap()
    }

    fn is_wait(asked: Result<Asked>) -> bool {
        matches!(asked, Ok(Asked::Wait))
    }

    /// The request tries and has it.
    fn hold(board: &Board, n: u64, link: &Arc<Handle>) {
        assert!(matches!(board.ask(&key(), &lease(n), at(0)), Ok(Asked::Try)));
        let kept = board.tried(&key(), &lease(n), Some((token(n), link.clone())));
        assert_eq!(kept, Verdict::Keep);
    }

    /// The request is the contender, on that connection.
    fn contend(board: &Board, n: u64, link: &Arc<Handle>) {
        let Step::Contend(None, _) = board.step(&key(), &lease(n), at(0)) else {
            panic!("it is not its turn to contend");
        };
        board.contends_on(&key(), &lease(n), link.id);
    }

    fn lost(signals: &mut mpsc::UnboundedReceiver<Signal>) -> Vec<LeaseKey> {
        match signals.next().now_or_never() {
            Some(Some(Signal::Lost(LostLeases::These(keys), LossReason::SessionLost))) => keys,
            _ => Vec::new(),
        }
    }

    #[test]
    fn two_requests_of_one_client_never_try_together() {
        let (board, link) = (Board::new(4), Handle::apart(1));
        assert!(matches!(board.ask(&key(), &lease(1), at(0)), Ok(Asked::Try)));
        assert!(is_wait(board.ask(&key(), &lease(2), at(0))));
        let again = board.ask(&key(), &lease(1), at(0)).err().unwrap();
        assert!(again.may_be_held(), "{again}");
        board.tried(&key(), &lease(1), Some((token(1), link)));
        assert!(
            is_wait(board.ask(&key(), &lease(2), at(0))),
            "a session is let in again"
        );
        assert!(matches!(
            board.ask(&key(), &lease(1), at(0)),
            Ok(Asked::Granted(holder)) if holder.token == token(1)
        ));
    }

    #[test]
    fn what_was_abandoned_while_it_was_tried_is_given_back_before_anybody_else_tries() {
        let (board, link) = (Board::new(4), Handle::apart(1));
        assert!(matches!(board.ask(&key(), &lease(1), at(0)), Ok(Asked::Try)));
        assert!(matches!(board.abandon(&key(), lease(1).id), Ok(Found::Trying)));
        let verdict = board.tried(&key(), &lease(1), Some((token(1), link)));
        assert_eq!(verdict, Verdict::GiveBack);
        assert!(
            is_wait(board.ask(&key(), &lease(2), at(0))),
            "it is not given back yet"
        );
        board.tried(&key(), &lease(1), None);
        assert!(matches!(board.ask(&key(), &lease(2), at(0)), Ok(Asked::Try)));
        let late = board.ask(&key(), &lease(1), at(0)).err().unwrap();
        assert_eq!(late.kind(), ErrorKind::Lost);
    }

    #[test]
    fn a_holder_whose_lock_the_server_gave_away_is_told_so() {
        let (board, first, second) = (Board::new(4), Handle::apart(1), Handle::apart(2));
        let mut signals = board.signals();
        hold(&board, 1, &first);
        contend(&board, 2, &second);
        let (verdict, heard) = board.contended(&key(), &lease(2), token(2), second, at(0));
        assert_eq!((verdict, heard), (Verdict::Keep, IsHeard::Yes));
        assert_eq!(lost(&mut signals), [lease(1)]);
        // What comes of the first one's release says nothing of the second.
        board.unlocked(&key(), lease(1).id, false);
        assert!(board.holder(&key(), lease(2).id).is_some());
    }

    #[test]
    fn a_holder_on_its_way_out_is_not_told_that_it_has_lost() {
        let (board, first, second) = (Board::new(4), Handle::apart(1), Handle::apart(2));
        let mut signals = board.signals();
        hold(&board, 1, &first);
        contend(&board, 2, &second);
        assert!(board.leave(&key(), lease(1).id).unwrap().is_some());
        board.contended(&key(), &lease(2), token(2), second, at(0));
        assert!(lost(&mut signals).is_empty());
    }

    #[test]
    fn a_connection_that_ends_takes_with_it_what_hung_on_it_and_nothing_else() {
        let (board, first, second) = (Board::new(4), Handle::apart(1), Handle::apart(2));
        let mut signals = board.signals();
        hold(&board, 1, &first);
        contend(&board, 2, &second);
        board.over(2, Kind::Waiting, None);
        assert!(lost(&mut signals).is_empty() && board.holder(&key(), lease(1).id).is_some());
        // It is told once that it could not, and is the first in line.
        assert!(matches!(board.step(&key(), &lease(2), at(0)), Step::Failed));
        assert!(matches!(
            board.step(&key(), &lease(2), at(0)),
            Step::Contend(None, _)
        ));
        board.over(1, Kind::Shared, None);
        assert_eq!(lost(&mut signals), [lease(1)]);
    }

    #[test]
    fn who_is_away_for_long_is_passed_over() {
        let (board, link) = (Board::new(4), Handle::apart(1));
        hold(&board, 1, &link);
        contend(&board, 2, &Handle::apart(2));
        assert!(matches!(board.step(&key(), &lease(3), at(0)), Step::Stay(_)));
        board.left(&key(), &lease(2), at(0));
        assert!(board.is_wanted(&key(), &lease(2), at(3000)));
        assert!(!board.is_wanted(&key(), &lease(2), at(3001)));
        let (verdict, _) = board.contended(&key(), &lease(2), token(2), link, at(3001));
        assert_eq!(verdict, Verdict::GiveBack);
        board.withdrawn(&key(), &lease(2), None);
        assert!(matches!(
            board.step(&key(), &lease(3), at(3001)),
            Step::Contend(..)
        ));
    }

    #[test]
    fn whoever_finds_no_connection_to_wait_on_is_rung_when_there_is_one() {
        let (board, link) = (Board::new(0), Handle::apart(1));
        let Step::Starved(rung) = board.step(&key(), &lease(1), at(0)) else {
            panic!("there is no connection");
        };
        // It may ask on the shared connection meanwhile.
        assert!(matches!(board.ask(&key(), &lease(1), at(0)), Ok(Asked::Try)));
        board.tried(&key(), &lease(1), None);
        let mut rung = Box::pin(rung);
        assert!(rung.as_mut().now_or_never().is_some(), "the end of a try rings");
        let Step::Starved(rung) = board.step(&key(), &lease(1), at(0)) else {
            panic!("there is no connection");
        };
        board.put_back(link);
        assert!(rung.now_or_never().is_some());
        assert!(matches!(
            board.step(&key(), &lease(1), at(0)),
            Step::Contend(Some(_), _)
        ));
    }

    #[test]
    fn nothing_is_kept_of_a_name_that_nobody_is_at() {
        let (board, link) = (Board::new(4), Handle::apart(1));
        hold(&board, 1, &link);
        board.leave(&key(), lease(1).id).unwrap();
        board.unlocked(&key(), lease(1).id, true);
        assert!(board.was_released(lease(1).id));
        assert!(board.state().names.is_empty());
    }
}
