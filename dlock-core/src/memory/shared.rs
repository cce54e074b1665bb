//! The state that all connections share, and how a call of the store runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::mpsc::UnboundedSender;

use super::table::{Effects, Settings, Table};
use super::wait::Listener;
use super::watchers::Watcher;
use crate::capabilities::{Capabilities, Capability};
use crate::gate::FencedValue;
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::spi::{LeaseKey, Signal};
use crate::timestamp::Timestamp;
use crate::token::Strength;

/// A clock for a store that does not use its runtime's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The state that all connections share.
pub(super) struct Shared {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) clock: Option<Clock>,
    /// Never shown.
    pub(super) password: Option<Box<str>>,
    pub(super) caps: Capabilities,
    pub(super) strength: Strength,
    pub(super) settings: Settings,
    pub(super) connections: AtomicU64,
    /// The values of the fence gate. They have a separate mutex, since a caller's closure must not delay the
    /// locks.
    pub(super) gates: Mutex<HashMap<LockName, FencedValue>>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) table: Table,
    /// The latest time that was seen. Two threads may read the clock in one order and arrive here in the
    /// other.
    now: Timestamp,
    /// Counts crashes, so that an older stream notices that its connection broke.
    pub(super) epoch: u64,
    /// Counts fail-overs.
    pub(super) term: u64,
    pub(super) waiters: HashMap<LeaseKey, Vec<Listener>>,
    pub(super) watchers: HashMap<LockName, Vec<Watcher>>,
    pub(super) next_watcher: u64,
    pub(super) signals: Vec<UnboundedSender<Signal>>,
}

impl State {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            table: Table::new(settings),
            now: Timestamp::ZERO,
            epoch: 0,
            term: 0,
            waiters: HashMap::new(),
            watchers: HashMap::new(),
            next_watcher: 0,
            signals: Vec::new(),
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn gates(&self) -> MutexGuard<'_, HashMap<LockName, FencedValue>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn has_tokens(&self) -> bool {
        !self.caps.took_back(Capability::Fencing)
    }

    /// Runs one call of the store. `known` is the time on the store's clock, if the caller has just read it.
    pub(super) fn run<R>(
        &self,
        known: Option<Timestamp>,
        call: impl FnOnce(&mut State, &mut Effects) -> R,
    ) -> R {
        let (answer, outbox) = {
            let mut state = self.lock();
            let read = known.unwrap_or_else(|| match &self.clock {
                Some(clock) => clock(),
                None => self.runtime.now(),
            });
            let now = read.max(state.now);
            state.now = now;
            let mut effects = Effects::of(now, !state.watchers.is_empty());
            let answer = call(&mut state, &mut effects);
            match effects.into_news() {
                None => return answer,
                Some(news) => (answer, state.dispatch(*news)),
            }
        };
        outbox.deliver();
        answer
    }
}
