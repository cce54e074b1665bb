//! The connection of one client, and how its calls reach the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::failure::closed;
use super::shared::{Shared, State};
use super::table::Effects;
use super::wait::Anchor;
use crate::error::Result;
use crate::runtime::Runtime;
use crate::spi::Grant;
use crate::timestamp::Timestamp;

pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Whether the clock of the runtime is the store's: then it is read once per call.
    same_clock: bool,
    pub(super) id: u64,
    pub(super) closed: AtomicBool,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            same_clock: shared.clock.is_none() && Arc::ptr_eq(&shared.runtime, &runtime),
            id: shared.next_connection(),
            closed: AtomicBool::new(false),
            shared,
            runtime,
        }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(closed()),
            false => Ok(()),
        }
    }

    /// Runs one call of the store, with the client's time of before.
    pub(super) fn call<R>(&self, call: impl FnOnce(&mut State, Timestamp, &mut Effects) -> R) -> R {
        let sent = self.runtime.now();
        // The same as the store's time if there is only one clock.
        let known = self.same_clock.then_some(sent);
        self.shared
            .run(known, |state, effects| call(state, sent, effects))
    }

    /// What a grant that is pushed later counts from.
    pub(super) fn anchor(&self, sent: Timestamp, now: Timestamp) -> Anchor {
        match self.same_clock {
            true => Anchor::Same,
            false => Anchor::Pair(sent, now),
        }
    }

    /// Without the token, if this store is to have none.
    pub(super) fn shown(&self, mut grant: Grant) -> Grant {
        grant.token = grant.token.filter(|_| self.shared.has_tokens());
        grant
    }
}
