//! Records histories.

use std::sync::{Arc, Mutex};

use dlock_core::{Runtime, Timestamp};

use super::event::Event;
use crate::lock::lock;
use crate::nanos::nanos;
use crate::shown::shown;
use crate::subject::Subject;

/// A history under construction, by any number of concurrent lanes.
#[derive(Clone)]
pub struct History(Arc<Inner>);

struct Inner {
    runtime: Arc<dyn Runtime>,
    /// What its times are counted from.
    started: Timestamp,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    lanes: u32,
    ops: u64,
    /// The addresses of the clients so far. The number of a client is its index.
    clients: Vec<usize>,
}

impl History {
    /// An empty history on that runtime's clock.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self(Arc::new(Inner {
            started: runtime.now(),
            runtime,
            state: Mutex::default(),
        }))
    }

    /// Writes an event. It is stamped here, under the lock, so that times never go back from one line to the
    /// next.
    pub fn record(&self, mut event: Event) {
        let mut state = lock(&self.0.state);
        event.t_mono_ns = nanos(self.0.runtime.now().since(self.0.started));
        state.events.push(event);
    }

    pub(super) fn next_lane(&self) -> u32 {
        let mut state = lock(&self.0.state);
        state.lanes += 1;
        state.lanes
    }

    pub(super) fn next_op(&self) -> u64 {
        let mut state = lock(&self.0.state);
        state.ops += 1;
        state.ops
    }

    /// The number of that client in this history. Clients live as long as their run, so an address stands for
    /// one of them.
    pub(super) fn number_of(&self, client: &Arc<dyn Subject>) -> usize {
        let address = Arc::as_ptr(client).cast::<()>() as usize;
        let mut state = lock(&self.0.state);
        if let Some(number) = state.clients.iter().position(|c| *c == address) {
            return number + 1;
        }
        state.clients.push(address);
        state.clients.len()
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.0.state).events.clone()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        lock(&self.0.state).events.is_empty()
    }
}

shown!(History, it => "History({} events)", it.events().len());
