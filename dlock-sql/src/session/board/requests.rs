//! What becomes of a request: it is tried, waits in line, contends, holds, and is withdrawn.

use std::sync::Arc;

use dlock_core::spi::{LeaseKey, LostLeases};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Timestamp, Token};
use event_listener::Event;

use super::{Asked, Board, CROWDED, Found, GRACE, Holder, State, Step, Stopped, Waiter};
use crate::session::handle::{Cancel, Handle};
use crate::session::keys::Key;

impl Board {
    /// A request that is to be answered now. After [`Asked::Try`] the caller sends it without a pause, or
    /// calls [`tried`](Self::tried).
    ///
    /// # Errors
    /// `Lost` if it was abandoned or released; `Unknown` if another call of it is on its way; those of
    /// [`check_open`](Self::check_open).
    pub(crate) fn ask(&self, key: &Key, lease: &LeaseKey, waits: bool, now: Timestamp) -> Result<Asked> {
        let mut guard = self.state();
        let state = &mut *guard;
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
        if name.trying == Some(lease.id) {
            return Err(Error::new(
                ErrorKind::Unknown,
                "another call of the same request is on its way, and may have the lock: ask again",
            ));
        }
        let is_behind = name.line.front().is_some_and(|first| first.lease.id != lease.id);
        if name.contender.is_some() || name.trying.is_some() || is_behind {
            return Ok(Asked::Wait);
        }
        let is_crowded = state.crowded.of(key).is_some_and(|at| now.since(*at) < CROWDED);
        // The last connection is for whoever has met somebody.
        let to_spare = state.idle.len() > 1 || state.idle.len() == 1 && state.waiting < self.most_waiting;
        if waits && is_crowded && to_spare {
            return Ok(Asked::Expect);
        }
        name.trying = Some(lease.id);
        Ok(Asked::Try)
    }

    /// Somebody of another client is there.
    pub(crate) fn met_others(&self, key: &Key, now: Timestamp) {
        self.state().crowded.note(key, now);
    }

    /// The try has ended. If what it got is not kept, its place stays taken: the connection unlocks, and says
    /// so by another call with `None`.
    pub(crate) fn tried(&self, key: &Key, lease: &LeaseKey, got: Option<(Token, Arc<Handle>)>) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if got.is_some() && (state.closed || state.buried.has(&lease.id)) {
            return false;
        }
        let name = state.names.get_mut(key);
        let Some(name) = name.filter(|name| name.trying == Some(lease.id)) else {
            return false;
        };
        name.trying = None;
        if let Some((token, connection)) = got {
            state.doubtful.remove(&lease.id);
            name.line.retain(|w| w.lease.id != lease.id);
            let until = connection.life.lapses();
            name.holder = Some(Holder {
                lease: lease.clone(),
                token,
                connection,
                leaving: false,
                until,
            });
        }
        // Whoever is first now contends, behind the holder.
        name.ring_first();
        state.tidy(key);
        true
    }

    /// Somebody listens for its turn. One that was told to [expect](Asked::Expect) others has no connection
    /// made for it.
    pub(crate) fn step(&self, key: &Key, lease: &LeaseKey, expects: bool, now: Timestamp) -> Step {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.check_open().is_err() || state.buried.has(&lease.id) {
            return Step::Ready;
        }
        let name = state.names.entry(*key).or_default();
        if name.holder(lease.id).is_some() {
            return Step::Ready;
        }
        if let Some((waiter, _)) = name.contender(lease.id) {
            waiter.left = None;
            return Step::Stay(waiter.bell.listen());
        }
        let place = name.line.iter_mut().find(|w| w.lease.id == lease.id);
        let bell = match place {
            Some(place) => {
                place.left = None;
                place.bell.clone()
            }
            None => {
                let bell = Arc::<Event>::default();
                let lease = lease.clone();
                name.line.push_back(Waiter {
                    lease,
                    bell: bell.clone(),
                    left: None,
                    failed: false,
                });
                bell
            }
        };
        name.pass_over(now);
        let is_busy = name.contender.is_some() || name.trying.is_some();
        let Some(first) = name
            .line
            .front_mut()
            .filter(|first| !is_busy && first.lease.id == lease.id)
        else {
            return Step::Stay(bell.listen());
        };
        if std::mem::take(&mut first.failed) {
            return Step::Failed;
        }
        let connection = state.idle.pop();
        if connection.is_none() {
            if expects {
                return Step::Ready;
            }
            if state.waiting >= self.most_waiting {
                return Step::Starved(bell.listen(), state.free.listen());
            }
            state.waiting += 1;
        }
        let cancel = Arc::<Cancel>::default();
        name.contender = name.line.pop_front().map(|first| (first, cancel.clone()));
        Step::Contend(connection, cancel)
    }

    /// Whoever listened listens no more.
    pub(crate) fn left(&self, key: &Key, lease: &LeaseKey, now: Timestamp) {
        let mut state = self.state();
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        let contender = name.contender.iter_mut().map(|(waiter, _)| waiter);
        let mut all = contender.chain(&mut name.line);
        if let Some(waiter) = all.find(|w| w.lease.id == lease.id) {
            waiter.left = Some(now);
        }
    }

    /// Whether the contender is still wanted: asked between two turns.
    pub(crate) fn is_wanted(&self, key: &Key, lease: &LeaseKey, now: Timestamp) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        let contender = state.names.get_mut(key).and_then(|name| name.contender(lease.id));
        !state.closed
            && !state.buried.has(&lease.id)
            && contender.is_some_and(|(waiter, cancel)| cancel.by().is_none() && waiter.is_here(now))
    }

    /// The server has let the contender in. If that is not kept it stays the contender: the connection
    /// unlocks, and says so by [`stopped`](Self::stopped).
    pub(crate) fn contended(
        &self,
        key: &Key,
        lease: &LeaseKey,
        token: Token,
        connection: Arc<Handle>,
        now: Timestamp,
    ) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.closed || state.buried.has(&lease.id) {
            return false;
        }
        let Some(name) = state.names.get_mut(key) else {
            return false;
        };
        let is_it = |c: &mut (Waiter, _)| c.0.lease.id == lease.id && c.0.is_here(now);
        let Some((waiter, _)) = name.contender.take_if(is_it) else {
            return false;
        };
        state.doubtful.remove(&lease.id);
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
        name.ring_first();
        // The server has given away what it had: its session has ended, and we have not been told yet.
        if let Some(before) = before.filter(|before| !before.leaving) {
            state.lost(LostLeases::These(vec![before.lease]), LossReason::SessionLost);
        }
        true
    }

    /// The contender has stopped, and holds nothing. One that failed is the first in line again, and is told.
    pub(crate) fn stopped(&self, key: &Key, lease: &LeaseKey, why: Stopped) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        let Some((mut waiter, _)) = name.contender.take_if(|(w, _)| w.lease.id == lease.id) else {
            return;
        };
        waiter.bell.notify(usize::MAX);
        if why == Stopped::Failed {
            // The next one tries, and tells its caller what is wrong.
            state.crowded.forget(key);
            if !state.buried.has(&lease.id) {
                waiter.failed = true;
                name.line.push_front(waiter);
            }
        }
        name.ring_first();
        state.tidy(key);
    }

    /// Nothing of that request is to be left. First there is its tombstone; whatever of it is under way meets
    /// that. A holder is being given back from now on, and is never granted again.
    ///
    /// # Errors
    /// `Unknown` while it may be granted in a session of which no more is heard; `Closed`.
    pub(crate) fn withdraw(&self, key: &Key, id: RequestId, now: Timestamp) -> Result<Found> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.check_closed()?;
        state.buried.bury(id, now);
        let mut found = Found::Nothing;
        if let Some(name) = state.names.get_mut(key) {
            if let Some(holder) = name.holder(id) {
                holder.leaving = true;
                return Ok(Found::Holding(holder.clone()));
            }
            if let Some((waiter, cancel)) = name.contender(id) {
                let stopped = waiter.bell.listen();
                cancel.set(state.shared.clone());
                return Ok(Found::Contending(stopped));
            }
            if name.trying == Some(id) {
                return Ok(Found::Trying(state.shared.clone()));
            }
            let before = name.line.len();
            name.line.retain(|w| w.lease.id != id);
            if name.line.len() < before {
                found = Found::InLine;
            }
            name.ring_first();
            state.tidy(key);
        }
        match state.doubtful.get(&id).is_some_and(|until| now < *until) {
            false => Ok(found),
            true => Err(Error::new(
                ErrorKind::Unknown,
                "the request may have the lock in a session that nothing was heard of; the server ends that \
                 after the ttl",
            )),
        }
    }

    /// What was asked for that request was not answered, and its session is given up. The server has ended
    /// that by then.
    pub(crate) fn doubt(&self, id: RequestId, now: Timestamp, until: Timestamp) {
        let mut state = self.state();
        state.doubtful.retain(|_, until| now < *until);
        state.doubtful.insert(id, until);
    }

    /// Somebody believes in it until then. `false` if it is not held any more.
    pub(crate) fn extend(&self, key: &Key, id: RequestId, until: Timestamp) -> bool {
        let mut state = self.state();
        let holder = state.names.get_mut(key).and_then(|name| name.holder(id));
        holder.filter(|h| !h.leaving).is_some_and(|holder| {
            holder.until = holder.until.max(until);
            true
        })
    }

    /// The connection on which that lease hangs.
    pub(crate) fn connection(&self, key: &Key, id: RequestId) -> Option<Arc<Handle>> {
        let mut state = self.state();
        let holder = state.names.get_mut(key)?.holder(id)?;
        (!holder.leaving).then(|| holder.connection.clone())
    }

    /// What hangs on that connection and nobody has renewed: it is being given back from now on. Its client
    /// has stopped without a word, or did not hear that it was let in.
    pub(crate) fn lapsed(&self, connection: u64, now: Timestamp) -> Vec<(Key, RequestId)> {
        let mut guard = self.state();
        let State { names, buried, .. } = &mut *guard;
        let mut lapsed = Vec::new();
        for (key, name) in names {
            let holder = name.holder.as_mut();
            let is_over = |h: &&mut Holder| h.connection.id == connection && !h.leaving && h.until < now;
            if let Some(holder) = holder.filter(is_over) {
                holder.leaving = true;
                buried.bury(holder.lease.id, now);
                lapsed.push((*key, holder.lease.id));
            }
        }
        lapsed
    }

    /// The holder of that request has been given back, or was found not to have had it any more.
    pub(crate) fn unlocked(&self, key: &Key, id: RequestId, was_held: bool, now: Timestamp) {
        let mut state = self.state();
        if was_held {
            state.released.bury(id, now);
        }
        if let Some(name) = state.names.get_mut(key) {
            name.holder.take_if(|h| h.lease.id == id);
            name.ring_first();
        }
        state.tidy(key);
    }

    /// Whether that request was given back by an earlier delivery of its release.
    pub(crate) fn was_released(&self, id: RequestId) -> bool {
        self.state().released.has(&id)
    }
}
