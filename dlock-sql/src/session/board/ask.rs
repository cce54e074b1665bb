//! Requests that are tried on the shared connection.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, ErrorKind, LossReason, Result, Timestamp, Token};

use super::Board;
use super::state::Holder;
use crate::session::connection::Handle;
use crate::session::keys::Key;

/// For so long after somebody of another client was there, one is counted on.
const CROWDED: Duration = Duration::from_secs(1);

/// What is to be done for a request.
pub(in crate::session) enum Asked {
    /// It has it.
    Granted(Holder),
    /// Somebody of this client is there.
    Wait,
    /// Somebody of another client was there a moment ago, and there is a connection to wait on, and then one
    /// to spare. Whoever waits on it is let in at once where nobody is: one statement, where a try in vain
    /// would be the first of two. If it is gone when it is wanted, it is asked again.
    Expect,
    /// Send it. The place of whoever tries is taken.
    Try,
}

/// What becomes of a lock that the server gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) enum Verdict {
    Keep,
    /// Nobody wants it any more: give it back, then say that there is nothing.
    GiveBack,
}

impl Board {
    /// A request that is to be answered now. After [`Asked::Try`] the caller sends it without a pause, or
    /// calls [`tried`](Self::tried).
    ///
    /// # Errors
    /// `Lost` if it was abandoned or released; `Unknown` if another call of it is on its way; `Unsupported`
    /// behind a pooler; `Closed`.
    pub(in crate::session) fn ask(
        &self,
        key: &Key,
        lease: &LeaseKey,
        waits: bool,
        now: Timestamp,
    ) -> Result<Asked> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.check_open()?;
        if state.buried.has(&lease.id) {
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
                let message = "another call of the same request is on its way, and what comes of it is not \
                 known yet: ask again";
                return Err(Error::new(ErrorKind::Unknown, message));
            }
            Some(_) => return Ok(Asked::Wait),
            None => {}
        }
        if name.line.front().is_some_and(|first| first.lease.id != lease.id) {
            return Ok(Asked::Wait);
        }
        let is_crowded = state.crowded.of(key).is_some_and(|at| now.since(*at) < CROWDED);
        let to_spare = state.idle.len() > 1 || state.idle.len() == 1 && state.waiting < self.most_waiting;
        if waits && is_crowded && to_spare {
            return Ok(Asked::Expect);
        }
        name.trying = Some(lease.clone());
        Ok(Asked::Try)
    }

    /// A try has found that somebody of another client is there.
    pub(in crate::session) fn met_others(&self, key: &Key, now: Timestamp) {
        self.state().crowded.note(key, now);
    }

    /// The try has ended. With [`Verdict::GiveBack`] its place stays taken: the connection unlocks, and says so by
    /// another call with `None`.
    pub(in crate::session) fn tried(
        &self,
        key: &Key,
        lease: &LeaseKey,
        got: Option<(Token, Arc<Handle>)>,
    ) -> Verdict {
        let mut guard = self.state();
        let state = &mut *guard;
        let is_buried = state.buried.has(&lease.id) || state.closed;
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
        if let Some((token, connection)) = got {
            state.doubtful.remove(&lease.id);
            name.line.retain(|l| l.lease.id != lease.id);
            name.holder = Some(Holder {
                lease: lease.clone(),
                token,
                until: connection.life.lapses(),
                connection,
                leaving: false,
                claimed: true,
            });
        }
        // Whoever is first now contends, behind the holder.
        name.ring_first();
        state.tidy(key);
        Verdict::Keep
    }
}
