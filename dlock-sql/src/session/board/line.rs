//! Who waits for a turn, and keeps its place while it listens.

use std::sync::Arc;

use dlock_core::spi::LeaseKey;
use dlock_core::{Runtime, Timestamp};
use event_listener::EventListener;

use super::Board;
use super::state::{Contender, InLine, Presence};
use super::wait::Cancel;
use crate::session::connection::Handle;
use crate::session::keys::Key;

/// What is to be done for whoever waits.
pub(in crate::session) enum Step {
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

impl Board {
    /// Somebody listens for its turn. One that was told to [expect](super::Asked::Expect) others has no
    /// connection made for it.
    pub(in crate::session) fn step(
        &self,
        key: &Key,
        lease: &LeaseKey,
        expects: bool,
        now: Timestamp,
    ) -> Step {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.closed || state.pooler.is_some() || state.buried.has(&lease.id) {
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
        let connection = state.idle.pop();
        if connection.is_none() && expects {
            name.line.push_front(first);
            return Step::Ready;
        }
        if connection.is_none() {
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
            connection: connection.as_ref().map(|l| l.id),
            since: connection.as_ref().map(|_| now),
        });
        Step::Contend(connection, cancel)
    }

    /// Whoever listened listens no more.
    pub(super) fn left(&self, key: &Key, lease: &LeaseKey, now: Timestamp) {
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
}

/// A place in line that is kept while this lives, and for [`GRACE`](super::GRACE) after it.
pub(in crate::session) struct Seat {
    board: Arc<Board>,
    runtime: Arc<dyn Runtime>,
    key: Key,
    lease: LeaseKey,
}

impl Seat {
    pub(in crate::session) fn new(
        board: Arc<Board>,
        runtime: Arc<dyn Runtime>,
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
