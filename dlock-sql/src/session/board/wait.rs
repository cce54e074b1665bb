//! The one of a name that waits at the server, on a connection of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, Signal};
use dlock_core::{Error, LossReason, Timestamp, Token};
use event_listener::Event;

use super::Board;
use super::ask::Verdict;
use super::state::{Holder, InLine, Presence};
use crate::session::connection::Handle;
use crate::session::keys::Key;

/// Tells the connection of a contender to stop.
#[derive(Debug, Default)]
pub(in crate::session) struct Cancel {
    is_set: AtomicBool,
    /// Who is to say so to the server, where that is not the shared connection of then.
    by: Mutex<Option<Arc<Handle>>>,
    pub(in crate::session) event: Event,
}

impl Cancel {
    pub(in crate::session) fn set(&self) {
        self.is_set.store(true, Ordering::SeqCst);
        self.event.notify(usize::MAX);
    }

    /// As [`set`](Self::set), by that connection: the table is about to forget it.
    pub(super) fn set_by(&self, by: Option<Arc<Handle>>) {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = by;
        self.set();
    }

    pub(in crate::session) fn by(&self) -> Option<Arc<Handle>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(in crate::session) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }
}

/// Who was let in sooner than that has waited for nobody.
const KEPT_WAITING: Duration = Duration::from_millis(5);

/// Whether somebody listened when the server let it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum IsHeard {
    Yes,
    No,
}

impl Board {
    /// The contender has its connection.
    pub(in crate::session) fn contends_on(&self, key: &Key, lease: &LeaseKey, connection: u64) {
        if let Some(contender) = self.state().contender(key, lease) {
            contender.connection = Some(connection);
        }
    }

    /// Whether the contender is still wanted: asked between two turns.
    pub(in crate::session) fn is_wanted(&self, key: &Key, lease: &LeaseKey, now: Timestamp) -> bool {
        let mut state = self.state();
        if state.closed || state.buried.has(&lease.id) {
            return false;
        }
        let contender = state.contender(key, lease);
        contender.is_some_and(|c| !c.cancel.is_set() && !c.presence.is_gone(now))
    }

    /// The server has let the contender in. With [`Verdict::GiveBack`] it stays the contender: the connection
    /// unlocks, and says so by [`withdrawn`](Self::withdrawn).
    ///
    /// Whether somebody listens is told as well: if not, the connection looks a while later whether somebody has
    /// come.
    pub(in crate::session) fn contended(
        &self,
        key: &Key,
        lease: &LeaseKey,
        token: Token,
        connection: Arc<Handle>,
        now: Timestamp,
    ) -> (Verdict, IsHeard) {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.closed || state.buried.has(&lease.id) {
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
        state.doubtful.remove(&lease.id);
        if contender
            .since
            .is_some_and(|since| now.since(since) >= KEPT_WAITING)
        {
            state.crowded.note(key, now);
        }
        let before = name.holder.replace(Holder {
            lease: contender.lease,
            token,
            until: connection.life.lapses(),
            connection,
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

    /// The contender has stopped, and holds nothing. With an error it was not its own wish: then it is the
    /// first in line again, and is told.
    pub(in crate::session) fn withdrawn(&self, key: &Key, lease: &LeaseKey, failure: Option<Error>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let is_buried = state.buried.has(&lease.id);
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        let Some(contender) = name.contender.take_if(|c| c.lease.id == lease.id) else {
            return;
        };
        contender.bell.notify(usize::MAX);
        if failure.is_some() {
            // The next one tries, and tells its caller what is wrong.
            state.crowded.forget(key);
        }
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
}
