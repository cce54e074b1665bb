//! Releases and abandons.

use dlock_core::{Error, ErrorKind, RequestId, Result, Timestamp};
use event_listener::EventListener;

use super::Board;
use super::state::Holder;
use crate::session::keys::Key;

/// What an abandon has found.
pub(in crate::session) enum Found {
    Nothing,
    InLine,
    /// Its answer comes on the shared connection.
    Trying,
    /// It is told to stop; this says that it has, or that something else has happened.
    Contending(EventListener),
    Holding(Holder),
}

impl Board {
    /// The holder of that request, which is being given back from now on. It is never granted again.
    pub(in crate::session) fn leave(
        &self,
        key: &Key,
        id: RequestId,
        now: Timestamp,
    ) -> Result<Option<Holder>> {
        let mut state = self.state();
        state.check_closed()?;
        state.buried.bury(id, now);
        let holder = state.names.get_mut(key).and_then(|name| name.holder.as_mut());
        Ok(holder.filter(|h| h.lease.id == id).map(|holder| {
            holder.leaving = true;
            holder.clone()
        }))
    }

    /// Nothing of that request is to be left. First there is its tombstone; whatever of it is under way meets
    /// that.
    ///
    /// # Errors
    /// `Unknown` while it may be granted in a session of which no more is heard; `Closed`.
    pub(in crate::session) fn abandon(&self, key: &Key, id: RequestId, now: Timestamp) -> Result<Found> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.check_closed()?;
        state.buried.bury(id, now);
        let is_doubtful = state.doubtful.get(&id).is_some_and(|until| now < *until);
        let Some(name) = state.names.get_mut(key) else {
            return certain(Found::Nothing, is_doubtful);
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
        certain(found, is_doubtful)
    }

    /// What was asked for that request was not answered, and its session is given up. The server has ended
    /// that by then.
    pub(in crate::session) fn doubt(&self, id: RequestId, now: Timestamp, until: Timestamp) {
        let mut state = self.state();
        state.doubtful.retain(|_, until| now < *until);
        state.doubtful.insert(id, until);
    }

    /// Somebody believes in it until then. `false` if it is not held any more.
    pub(in crate::session) fn extend(&self, key: &Key, id: RequestId, until: Timestamp) -> bool {
        let mut state = self.state();
        let holder = state.names.get_mut(key).and_then(|name| name.holder.as_mut());
        match holder.filter(|h| h.lease.id == id && !h.leaving) {
            Some(holder) => {
                holder.until = holder.until.max(until);
                true
            }
            None => false,
        }
    }

    /// What hangs on that connection and nobody has renewed, so that nobody believes in it: it is being given
    /// back from now on. The client has stopped without a word, while others share the connection or its
    /// handle is kept somewhere.
    pub(in crate::session) fn lapsed(&self, connection: u64, now: Timestamp) -> Vec<(Key, RequestId)> {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut lapsed = Vec::new();
        for (key, name) in &mut state.names {
            let holder = name.holder.as_mut();
            if let Some(holder) =
                holder.filter(|h| h.connection.id == connection && !h.leaving && h.until < now)
            {
                holder.leaving = true;
                state.buried.bury(holder.lease.id, now);
                lapsed.push((*key, holder.lease.id));
            }
        }
        lapsed
    }

    /// The holder of that request has been given back, or was found not to have had it any more.
    pub(in crate::session) fn unlocked(&self, key: &Key, id: RequestId, was_held: bool, now: Timestamp) {
        let mut state = self.state();
        if was_held {
            state.released.bury(id, now);
        }
        let Some(name) = state.names.get_mut(key) else {
            return;
        };
        name.holder.take_if(|h| h.lease.id == id);
        name.ring_first();
        state.tidy(key);
    }

    /// Whether that request was given back by an earlier delivery of its release.
    pub(in crate::session) fn was_released(&self, id: RequestId) -> bool {
        self.state().released.has(&id)
    }

    /// As [`leave`](Self::leave), if nobody has asked for it since it was let in. Whether it is to be given
    /// back.
    pub(in crate::session) fn leave_unclaimed(&self, key: &Key, id: RequestId, now: Timestamp) -> bool {
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
                state.buried.bury(id, now);
                true
            }
            None => false,
        }
    }

    pub(in crate::session) fn holder(&self, key: &Key, id: RequestId) -> Option<Holder> {
        let state = self.state();
        let holder = state.names.get(key)?.holder.as_ref()?;
        (holder.lease.id == id && !holder.leaving).then(|| holder.clone())
    }
}

fn certain(found: Found, is_doubtful: bool) -> Result<Found> {
    match is_doubtful {
        false => Ok(found),
        true => Err(Error::new(
            ErrorKind::Unknown,
            "the request may have the lock in a session that nothing was heard of; the server ends that \
             after the ttl",
        )),
    }
}
