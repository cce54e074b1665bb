//! Who asks the server, and what comes of it.

use std::sync::Arc;

use dlock_core::spi::{LeaseKey, LostLeases};
use dlock_core::{Error, ErrorKind, LossReason, Result, Timestamp, Token};
use event_listener::Event;
use futures::channel::oneshot;

use super::{Board, CROWDED, GRACE, Holder, Name};
use crate::session::handle::Handle;
use crate::session::keys::Key;

#[derive(Clone)]
pub(super) struct Waiter {
    pub(super) lease: LeaseKey,
    pub(super) bell: Arc<Event>,
    /// Since when nobody listens.
    pub(super) left: Option<Timestamp>,
    /// It could not wait at the server.
    pub(super) failed: bool,
}

/// Whose lock the server is asked for.
pub(super) struct Bidder {
    pub(super) waiter: Waiter,
    /// Ends its wait. A try has none, nor has who was told.
    pub(super) stop: Option<oneshot::Sender<Option<Arc<Handle>>>>,
    /// If nothing comes of it, it is the first in line again.
    returns: bool,
}

/// Tells a connection to stop its wait, and by which connection the server is told so, if there is one.
pub(crate) type Stop = oneshot::Receiver<Option<Arc<Handle>>>;

/// A request that the server is asked for, in the hands of whoever asks. When this is dropped nothing is
/// asked any more and nothing is held of it, and the next one may bid.
pub(crate) struct Bid {
    board: Arc<Board>,
    pub(crate) key: Key,
    pub(crate) lease: LeaseKey,
    /// It may be granted, and until when if no more is heard of its session.
    pub(crate) doubt: Option<Timestamp>,
}

/// What is to be done for a request.
pub(crate) enum Asked {
    /// It has it.
    Granted(Holder),
    /// Somebody of this client is there.
    Wait,
    /// Somebody of another client was there a moment ago, and a connection to wait on is to spare. A waiter
    /// is let in at once if nobody is there: one request, where a try in vain would be the first of two. If
    /// the connection is taken meanwhile, it is to ask again.
    Expect,
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
        match &mut name.holder {
            Some(holder) if holder.lease.id != lease.id => return Ok(Asked::Wait),
            Some(holder) if holder.leaving => return Err(Error::lost(LossReason::Released)),
            Some(holder) => {
                holder.until = holder.until.max(holder.connection.life.lapses());
                return Ok(Asked::Granted(holder.clone()));
            }
            None => {}
        }
        match &name.bidder {
            Some(bidder) if bidder.waiter.lease.id == lease.id && bidder.stop.is_none() => {
                return Err(Error::new(
                    ErrorKind::Unknown,
                    "another call of the same request is on its way, and may have the lock: ask again",
                ));
            }
            Some(_) => return Ok(Asked::Wait),
            None => {}
        }
        if name.line.front().is_some_and(|first| first.lease.id != lease.id) {
            return Ok(Asked::Wait);
        }
        let is_crowded = state.crowded.of(key).is_some_and(|at| now.since(*at) < CROWDED);
        // The last connection is for whoever has met somebody.
        let to_spare = state.idle.len() > 1 || state.idle.len() == 1 && state.waiting < self.most_waiting;
        if waits && is_crowded && to_spare {
            state.tidy(key);
            return Ok(Asked::Expect);
        }
        let place = name.line.pop_front();
        name.bidder = Some(Bidder {
            returns: place.is_some(),
            waiter: place.unwrap_or_else(|| Waiter::new(lease)),
            stop: None,
        });
        Ok(Asked::Try(Bid::new(self, key, lease)))
    }
}

impl Name {
    /// That waiter is waited for at the server.
    pub(super) fn contend(&mut self, waiter: Waiter) -> Stop {
        let (stop, stopped) = oneshot::channel();
        let (stop, returns) = (Some(stop), true);
        self.bidder = Some(Bidder {
            waiter,
            stop,
            returns,
        });
        stopped
    }
}

impl Bid {
    pub(super) fn new(board: &Arc<Board>, key: &Key, lease: &LeaseKey) -> Self {
        Self {
            board: board.clone(),
            key: *key,
            lease: lease.clone(),
            doubt: None,
        }
    }

    /// Whether it is still to be waited for: asked between two turns. It is not again once it was not.
    pub(crate) fn is_wanted(&self, now: Timestamp) -> bool {
        let state = &mut *self.board.state();
        let name = state.names.get_mut(&self.key);
        let Some(bidder) = name.and_then(|name| name.bidder(self.lease.id)) else {
            return false;
        };
        // Who was told to stop is buried.
        let is_wanted = !state.closed && !state.buried.has(&self.lease.id) && bidder.waiter.is_here(now);
        bidder.returns = is_wanted;
        is_wanted
    }

    /// The server has let it in, on that connection. If that is not kept, the connection unlocks before it
    /// drops the bid.
    pub(crate) fn won(&mut self, token: Token, connection: Arc<Handle>, now: Timestamp) -> bool {
        let state = &mut *self.board.state();
        let id = self.lease.id;
        if state.closed || state.buried.has(&id) {
            return false;
        }
        let Some(name) = state.names.get_mut(&self.key) else {
            return false;
        };
        // Whoever tries is here, whether its stream is or not.
        let is_it = |bidder: &mut Bidder| {
            bidder.waiter.lease.id == id && (bidder.stop.is_none() || bidder.waiter.is_here(now))
        };
        let Some(Bidder { waiter, stop, .. }) = name.bidder.take_if(is_it) else {
            return false;
        };
        self.doubt = None;
        state.doubtful.remove(&id);
        let mut until = connection.life.lapses();
        if stop.is_some() && waiter.left.is_some() {
            // Nobody has heard of it yet.
            until = until.min(now + GRACE);
        }
        let holder = Holder {
            lease: waiter.lease,
            token,
            connection,
            leaving: false,
            until,
        };
        let before = name.holder.replace(holder);
        waiter.bell.notify(usize::MAX);
        // Whoever is first now contends, behind the holder.
        name.ring_first();
        // The server has given away what it had: its session has ended, and we have not been told yet.
        if let Some(before) = before.filter(|before| !before.leaving) {
            state.lost(LostLeases::These(vec![before.lease]), LossReason::SessionLost);
        }
        true
    }
}

impl Drop for Bid {
    fn drop(&mut self) {
        let state = &mut *self.board.state();
        let id = self.lease.id;
        if let Some(until) = self.doubt {
            state.doubtful.insert(id, until);
        }
        let Some(name) = state.names.get_mut(&self.key) else {
            return;
        };
        let Some(mut bidder) = name.bidder.take_if(|b| b.waiter.lease.id == id) else {
            return;
        };
        bidder.waiter.bell.notify(usize::MAX);
        if bidder.returns && !state.buried.has(&id) {
            if bidder.stop.is_some() {
                // The next one tries, and tells its caller what is wrong.
                bidder.waiter.failed = true;
                state.crowded.forget(&self.key);
            }
            name.line.push_front(bidder.waiter);
        }
        name.ring_first();
        state.tidy(&self.key);
    }
}

impl Bidder {
    pub(super) fn stop(&mut self, by: Option<&Arc<Handle>>) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(by.cloned());
        }
    }
}

impl Waiter {
    pub(super) fn new(lease: &LeaseKey) -> Self {
        Self {
            lease: lease.clone(),
            bell: Arc::default(),
            left: None,
            failed: false,
        }
    }

    pub(super) fn is_here(&self, now: Timestamp) -> bool {
        self.left.is_none_or(|left| now.since(left) <= GRACE)
    }
}
