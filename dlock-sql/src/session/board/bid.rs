//! Who asks the server, and what comes of it.

use std::sync::Arc;

use dlock_core::spi::{LeaseKey, LostLeases};
use dlock_core::{LossReason, Timestamp, Token};

use super::{Bidder, Board, GRACE, Holder};
use crate::session::handle::Handle;
use crate::session::keys::Key;

/// A request that the server is asked for, in the hands of whoever asks. When this is dropped nothing is
/// asked any more and nothing is held of it, and the next one may bid.
pub(crate) struct Bid {
    board: Arc<Board>,
    pub(crate) key: Key,
    pub(crate) lease: LeaseKey,
    /// It may be granted, and until when if no more is heard of its session.
    pub(crate) doubt: Option<Timestamp>,
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
        let is_it = |bidder: &mut Bidder| bidder.waiter.lease.id == id && bidder.waiter.is_here(now);
        let Some(Bidder { waiter, .. }) = name.bidder.take_if(is_it) else {
            return false;
        };
        self.doubt = None;
        state.doubtful.remove(&id);
        let mut until = connection.life.lapses();
        if waiter.left.is_some() {
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
