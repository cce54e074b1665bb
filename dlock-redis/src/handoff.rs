//! Coming by when a claim window is over.
//!
//! A grant that is pushed to a waiter is good for a claim window, in which the waiter has to say that it is
//! there. Redis has no timer that would notice one that does not. So whoever caused the push comes by when
//! the window is over, and lets the next one have its turn. For each name that is once in a window and
//! client, however many grants there were in it; with nobody waiting it is never.
//!
//! *If this client dies too*, or is cut off: the next one in line finds out when it extends its place in the
//! queue, at a third of its own lease's length.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dlock_core::{LockName, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{join_all, select};

use crate::backend::Backend;
use crate::connection::pause;
use crate::reply::strange;

/// Not before the server thinks so.
const AFTER: Duration = Duration::from_millis(2);

/// What is due within so long is looked after together.
const TOGETHER: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct HandOffs(Mutex<State>);

#[derive(Default)]
struct State {
    due: HashMap<LockName, Timestamp>,
    running: bool,
    /// Wakes the task, which sleeps until the first of those that were there as it went to sleep.
    wake: Option<oneshot::Sender<()>>,
}

/// What there is to do now.
enum Todo {
    /// Nothing more, and the task ends.
    Nothing,
    /// Nothing for so long, unless something comes that is due sooner.
    Sleep(Duration, oneshot::Receiver<()>),
    Visit(Vec<LockName>),
}

impl State {
    /// It is due at that time, unless it is sooner: what is sooner is asked about what comes later as well.
    /// So too after a visit: while that was under way, or failed, a push may have opened a window that ends
    /// before the one that the visit knew of.
    fn sooner(&mut self, name: &LockName, at: Timestamp) {
        let due = self.due.entry(name.clone()).or_insert(at);
        *due = at.min(*due);
    }
}

impl HandOffs {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There will be something to do for that name.
    fn due(&self, backend: &Arc<Backend>, name: &LockName, at: Timestamp) {
        let mut state = self.state();
        if state.due.values().all(|other| at < *other) {
            drop(state.wake.take());
        }
        state.sooner(name, at);
        if !std::mem::replace(&mut state.running, true) {
            let (weak, runtime) = (Arc::downgrade(backend), backend.runtime.clone());
            backend.runtime.spawn(tend(weak, runtime).boxed());
        }
    }

    fn take(&self) -> Todo {
        let mut state = self.state();
        let Some(first) = state.due.values().min().copied() else {
            state.running = false;
            return Todo::Nothing;
        };
        let now = Timestamp::now();
        if first > now {
            let (wake, woken) = oneshot::channel();
            state.wake = Some(wake);
            return Todo::Sleep(now.until(first), woken);
        }
        let due = state.due.extract_if(|_, at| *at <= now + TOGETHER);
        Todo::Visit(due.map(|(name, _)| name).collect())
    }
}

async fn tend(backend: Weak<Backend>, runtime: Arc<dyn Runtime>) {
    loop {
        let Some(c) = backend.upgrade() else { return };
        match c.handoffs.take() {
            Todo::Nothing => return,
            Todo::Sleep(time, woken) => {
                // Without the backend: it may be given up meanwhile.
                drop(c);
                select(pin!(pause(runtime.sleep(time))), woken).await;
            }
            Todo::Visit(names) => {
                join_all(names.iter().map(|name| c.tend(name))).await;
            }
        }
    }
}

impl Backend {
    async fn tend(&self, name: &LockName) {
        let answer = self.on(&self.scripts.tend, name).run_within().await;
        let again = match answer.and_then(|(_, value)| match value {
            redis::Value::Int(life) => Ok(u64::try_from(life).ok()),
            _ => Err(strange("no number")),
        }) {
            Ok(Some(life)) => Duration::from_millis(life),
            Ok(None) => return,
            // Cut off for now. What happens meanwhile cannot be known, so it comes by when it can.
            Err(e) if e.is_retryable() => self.window,
            Err(_) => return,
        };
        let at = Timestamp::now() + again + if again.is_zero() { Duration::ZERO } else { AFTER };
        self.handoffs.state().sooner(name, at);
    }

    /// Takes in what answers end with: the milliseconds of the longest window that was opened, 0 for none,
    /// less where there is more to do.
    pub(crate) fn pushed(self: &Arc<Self>, name: &LockName, window: i64) {
        let now = Timestamp::now();
        match u64::try_from(window) {
            Ok(0) => {}
            Ok(window) => self
                .handoffs
                .due(self, name, now + Duration::from_millis(window) + AFTER),
            Err(_) => self.handoffs.due(self, name, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_sooner_stays_so() {
        let (mut state, name) = (State::default(), LockName::new("a").unwrap());
        let at = |ms| Timestamp::ZERO + Duration::from_millis(ms);
        // Of a push, while a visit was under way, which comes back with its own.
        for (due, soonest) in [(200, 200), (3_000, 200), (100, 100)] {
            state.sooner(&name, at(due));
            assert_eq!(state.due[&name], at(soonest));
        }
    }
}
