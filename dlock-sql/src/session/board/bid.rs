//! Which request asks the server, and with what result.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Timestamp, Token};
use event_listener::Event;
use futures::channel::oneshot;

use super::{Board, GRACE, Holder, Name};
use crate::session::handle::Handle;
use crate::session::keys::Key;

/// For that long after another client was seen, one is expected.
const CROWDED: Duration = Duration::from_secs(1);

pub(super) struct Waiter {
    pub(super) lease: LeaseKey,
    pub(super) bell: Event,
    /// Since when there is no listener.
    pub(super) left: Option<Timestamp>,
    /// It could not wait at the server.
    pub(super) failed: bool,
}

/// The server is asked for a name.
pub(super) struct Bidding {
    /// Whose try it is, or whose abandon has ended the wait.
    pub(super) of: Option<RequestId>,
    /// Ends a wait. A try has none, nor has a wait that was told, or that nobody wants any more.
    stop: Option<Stopper>,
    /// Says that this was dropped.
    pub(super) over: Event,
}

type Stopper = oneshot::Sender<Option<Arc<Handle>>>;

/// Tells a connection to stop its wait, and by which connection the server is told so, if there is one.
pub(crate) type Stop = oneshot::Receiver<Option<Arc<Handle>>>;

/// The right to ask the server for a name. When this is dropped nothing is asked any more and nothing is
/// held of it, and the next one may bid.
pub(crate) struct Bid {
    board: Arc<Board>,
    pub(crate) key: Key,
    /// Whose try it is. A wait is for the first in line.
    lease: Option<LeaseKey>,
    /// It may be granted, and until when if no more is heard of its session.
    pub(crate) doubt: Option<Timestamp>,
    was_won: bool,
}

/// What is to be done for a request.
pub(crate) enum Asked {
    /// It has it.
    Granted(Holder),
    /// Somebody of this client is there; or somebody of another client was a moment ago, and there is a
    /// connection to wait on at once, where a try in vain would be one request more.
    Wait,
    /// Try it.
    Try(Bid),
}

impl Board {
    /// A request that is to be answered now.
    ///
    /// # Errors
    /// `Lost` if it was abandoned or released; `Unknown` if another call of it is on its way; those of
    /// [`check_open`](Self::check_open).
    pub(crate) fn ask(
        self: &Arc<Self>,
        key: &Key,
        lease: &LeaseKey,
        waits: bool,
        now: Timestamp,
    ) -> Result<Asked> {
        let state = &mut *self.state();
        state.check_open()?;
        if state.buried.has(&lease.id) {
            return Err(Error::lost(LossReason::Refused));
        }
        let name = state.names.entry(*key).or_default();
        name.pass_over(now);
        match (&mut name.holder, &name.bidding) {
            (Some(holder), _) if holder.lease.id == lease.id && !holder.leaving => {
                holder.until = holder.until.max(holder.connection.life.lapses());
                return Ok(Asked::Granted(holder.clone()));
            }
            (None, Some(bidding)) if bidding.of == Some(lease.id) => {
                return Err(Error::new(
                    ErrorKind::Unknown,
                    "another call for the same request is in flight, and may have the lock: try again",
                ));
            }
            (None, None) if name.line.front().is_none_or(|first| first.lease.id == lease.id) => {}
            _ => return Ok(Asked::Wait),
        }
        let is_crowded = state.crowded.of(key).is_some_and(|at| now.since(*at) < CROWDED);
        // The last connection is kept for a request that has met another holder.
        let to_spare = state.idle.len() > 1 || state.waiting < self.most_waiting;
        if waits && is_crowded && to_spare && !state.idle.is_empty() {
            state.tidy(key);
            return Ok(Asked::Wait);
        }
        name.bidding = Some(Bidding::new(Some(lease.id), None));
        Ok(Asked::Try(Bid::new(self, key, Some(lease.clone()))))
    }
}

impl Name {
    /// The place of that request in line, which is the last one if it has none.
    pub(super) fn join(&mut self, lease: &LeaseKey) -> &mut Waiter {
        let place = self.line.iter().position(|w| w.lease.id == lease.id);
        let place = place.unwrap_or_else(|| {
            self.line.push_back(Waiter::new(lease));
            self.line.len() - 1
        });
        &mut self.line[place]
    }

    /// The first in line is waited for at the server.
    pub(super) fn contend(&mut self, board: &Arc<Board>, key: &Key) -> (Bid, Stop) {
        let (stop, stopped) = oneshot::channel();
        self.bidding = Some(Bidding::new(None, Some(stop)));
        (Bid::new(board, key, None), stopped)
    }
}

impl Bid {
    fn new(board: &Arc<Board>, key: &Key, lease: Option<LeaseKey>) -> Self {
        Self {
            board: board.clone(),
            key: *key,
            lease,
            doubt: None,
            was_won: false,
        }
    }

    /// Whether there is a waiter, and the wait was not stopped: checked between two turns.
    pub(crate) fn is_wanted(&self, now: Timestamp) -> bool {
        let names = &mut self.board.state().names;
        names.get_mut(&self.key).is_some_and(|name| {
            name.pass_over(now);
            let Some(bidding) = &mut name.bidding else {
                return false;
            };
            bidding.stop.take_if(|_| name.line.is_empty());
            bidding.stop.is_some()
        })
    }

    /// The server has let it in, on that connection. Answers for whom. If that is nobody, the connection
    /// unlocks before it drops the bid.
    pub(crate) fn won(&mut self, token: Token, connection: Arc<Handle>, now: Timestamp) -> Option<RequestId> {
        let state = &mut *self.board.state();
        // There is none after the client was closed.
        let name = state.names.get_mut(&self.key)?;
        let mut until = connection.life.lapses();
        let waiter = match &self.lease {
            Some(lease) if state.buried.has(&lease.id) => return None,
            // A request that tries is present, whether its stream is or not.
            Some(lease) => {
                let place = name.line.iter().position(|w| w.lease.id == lease.id);
                let waiter = place.and_then(|place| name.line.remove(place));
                waiter.unwrap_or_else(|| Waiter::new(lease))
            }
            None => {
                name.pass_over(now);
                let first = name.line.pop_front()?;
                if first.left.is_some() {
                    // Nobody has heard of it yet.
                    until = until.min(now + GRACE);
                }
                first
            }
        };
        let id = waiter.lease.id;
        (self.was_won, self.doubt) = (true, None);
        state.doubtful.remove(&id);
        name.bidding = None;
        let holder = Holder {
            lease: waiter.lease,
            token,
            connection,
            leaving: false,
            until,
        };
        let before = name.holder.replace(holder);
        waiter.bell.notify(usize::MAX);
        // The new first waiter contends, behind the holder.
        name.ring_first();
        // The server has given away what it had: its session has ended, and we have not been told yet.
        if let Some(before) = before.filter(|before| !before.leaving) {
            state.lost(LostLeases::These(vec![before.lease]), LossReason::SessionLost);
        }
        Some(id)
    }
}

impl Drop for Bid {
    fn drop(&mut self) {
        let state = &mut *self.board.state();
        let name = state.names.get_mut(&self.key).filter(|_| !self.was_won);
        let Some((name, bidding)) = name.and_then(|name| name.bidding.take().map(|b| (name, b))) else {
            return;
        };
        let first = name.line.front_mut();
        let of = bidding.of.or(first.as_ref().map(|first| first.lease.id));
        if let Some((of, until)) = of.zip(self.doubt) {
            state.doubtful.insert(of, until);
        }
        if let Some(first) = first.filter(|_| bidding.stop.is_some()) {
            // It could not wait. The next one tries, and tells its caller what is wrong.
            first.failed = true;
            state.crowded.forget(&self.key);
        }
        name.ring_first();
        state.tidy(&self.key);
    }
}

impl Bidding {
    fn new(of: Option<RequestId>, stop: Option<Stopper>) -> Self {
        let over = Event::new();
        Self { of, stop, over }
    }

    /// Ends a wait, for the abandon of that request.
    pub(super) fn stop(&mut self, of: Option<RequestId>, by: Option<Arc<Handle>>) {
        if let Some(stop) = self.stop.take() {
            self.of = of;
            let _ = stop.send(by);
        }
    }
}

impl Drop for Bidding {
    fn drop(&mut self) {
        self.over.notify(usize::MAX);
    }
}

impl Waiter {
    fn new(lease: &LeaseKey) -> Self {
        Self {
            lease: lease.clone(),
            bell: Event::new(),
            left: None,
            failed: false,
        }
    }

    pub(super) fn is_here(&self, now: Timestamp) -> bool {
        self.left.is_none_or(|left| now.since(left) <= GRACE)
    }
}
