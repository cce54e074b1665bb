//! Which connections there are, and what ends with them.

use std::sync::Arc;

use dlock_core::spi::{LostLeases, Signal};
use dlock_core::{Error, ErrorKind, LossReason, Result};

use super::Board;
use super::state::InLine;
use crate::session::connection::{Handle, Kind};
use crate::session::failure::Failed;

impl Board {
    pub(in crate::session) fn shared(&self) -> Option<Arc<Handle>> {
        self.state().shared.clone()
    }

    /// # Errors
    /// `Closed`, or `Unsupported` behind a pooler.
    pub(in crate::session) fn check_open(&self) -> Result<()> {
        self.state().check_open()
    }

    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub(in crate::session) fn install(&self, shared: Arc<Handle>) -> Result<()> {
        let mut state = self.state();
        state.check_open()?;
        state.shared = Some(shared);
        drop(state);
        self.signal(&Signal::Back);
        Ok(())
    }

    /// That connection holds nothing and waits for nothing.
    pub(in crate::session) fn put_back(&self, connection: Arc<Handle>) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        state.idle.push(connection);
        state.feed();
    }

    /// Takes an idle connection out for good. `false` if somebody has just taken it.
    pub(in crate::session) fn retire(&self, connection: u64) -> bool {
        let mut state = self.state();
        let before = state.idle.len();
        state.idle.retain(|l| l.id != connection);
        state.idle.len() < before
    }

    /// A connection that was to be made has not been.
    pub(in crate::session) fn not_made(&self) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_sub(1);
        state.feed();
    }

    /// That connection has ended, or is about to be closed: what hung on it is told as lost.
    pub(in crate::session) fn over(&self, connection: u64, kind: Kind, why: Option<&Failed>) {
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
                Kind::Shared => drop(state.shared.take_if(|s| s.id == connection)),
                Kind::Waiting => {
                    state.idle.retain(|l| l.id != connection);
                    state.waiting = state.waiting.saturating_sub(1);
                }
            }
            for name in state.names.values_mut() {
                if let Some(holder) = name.holder.take_if(|h| h.connection.id == connection) {
                    lost.push(holder.lease);
                    name.ring_first();
                }
                if let Some(contender) = name.contender.take_if(|c| c.connection == Some(connection)) {
                    contender.bell.notify(usize::MAX);
                    let is_wanted = !state.buried.has(&contender.lease.id);
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

    /// Nothing is asked for any more, and no connection is kept: each ends when it has done what it was
    /// asked.
    pub(in crate::session) fn close(&self) {
        let (names, shared, _idle) = {
            let mut state = self.state();
            if state.closed {
                return;
            }
            state.closed = true;
            (
                std::mem::take(&mut state.names),
                state.shared.take(),
                std::mem::take(&mut state.idle),
            )
        };
        // First this: with the connections go the locks.
        self.signal(&Signal::Lost(LostLeases::All, LossReason::Closed));
        for name in names.into_values() {
            if let Some(contender) = name.contender {
                // It lives until it has said so.
                contender.cancel.set_by(shared.clone());
                contender.bell.notify(usize::MAX);
            }
            for place in name.line {
                place.bell.notify(usize::MAX);
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
