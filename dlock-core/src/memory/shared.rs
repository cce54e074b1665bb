//! What all links of a store share, and how one call of the store runs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures::channel::mpsc::UnboundedSender;

use super::gate::Gates;
use super::store::MemoryBuilder;
use super::table::{Effects, News, Settings, Table};
use super::watch::Watcher;
use crate::capabilities::Capabilities;
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::spi::{Grant, LeaseKey, Push, Signal};
use crate::timestamp::Timestamp;

/// The clock of a store that does not go by its runtime's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What all links of a store share.
pub(super) struct Shared {
    pub(super) runtime: Arc<dyn Runtime>,
    clock: Option<Clock>,
    /// Shown nowhere.
    pub(super) password: Option<Box<str>>,
    pub(super) caps: Capabilities,
    pub(super) settings: Settings,
    links: AtomicU64,
    pub(super) gates: Gates,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) table: Table,
    /// The latest time that was seen. Two threads may read the clock in one order and come here in the other.
    now: Timestamp,
    /// Counts crashes, so that a stream of the time before knows that its connection broke.
    pub(super) epoch: u64,
    /// Counts the servers that took over.
    pub(super) term: u64,
    pub(super) waiters: HashMap<LeaseKey, Vec<Listener>>,
    pub(super) watchers: HashMap<LockName, Vec<Watcher>>,
    pub(super) next_watcher: u64,
    pub(super) signals: Vec<UnboundedSender<Signal>>,
}

/// Somebody who waits for a push.
pub(super) struct Listener {
    pub(super) link: u64,
    pub(super) sender: UnboundedSender<Push>,
    pub(super) anchor: Anchor,
}

/// How the client's time of a pushed grant is found.
///
/// A push answers no request, so there is no send time to count from. With one clock the store's own time of
/// the grant is exact. With two, a pair read in this order, client then store, is kept from the last time
/// that the waiter asked: the grant then counts from that client time, as long as the store's time from the
/// pair to the expiry. Any pause between the two readings makes the deadline earlier, never later; what the
/// clocks drift apart over the wait is within the engine's margin, which it takes off the whole span.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    /// The client's clock is the store's.
    Same,
    /// The client's time, then the store's.
    Pair(Timestamp, Timestamp),
}

impl Anchor {
    /// A grant that counts from the store's time, for the client.
    fn grant(self, mut grant: Grant) -> Grant {
        if let Self::Pair(client, store) = self {
            grant.expires_in += store.until(grant.counted_from);
            grant.counted_from = client;
        }
        grant
    }
}

/// What is sent once the mutex is free again: waking somebody may run code that calls the store.
#[derive(Default)]
struct Outbox {
    pushes: Vec<(Listener, Grant)>,
    /// Those who are to ask again.
    changed: Vec<UnboundedSender<Push>>,
    /// Ended without a grant; dropping the sender ends the stream.
    ended: Vec<Listener>,
    wakers: Vec<Waker>,
}

impl Outbox {
    fn deliver(self) {
        for (listener, grant) in self.pushes {
            // Nobody there: the grant stands, and is abandoned or lapses. Passing over it here would take the
            // lock from a waiter that is about to ask again.
            let _ = listener.sender.unbounded_send(Push::Granted(grant));
        }
        for sender in self.changed {
            let _ = sender.unbounded_send(Push::Changed);
        }
        drop(self.ended);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl Shared {
    pub(super) fn new(store: MemoryBuilder) -> Self {
        Self {
            runtime: store.runtime,
            clock: store.clock,
            password: store.password,
            caps: store.caps,
            settings: store.settings,
            links: AtomicU64::new(0),
            gates: Gates::default(),
            state: Mutex::new(State {
                table: Table::new(store.settings),
                now: Timestamp::ZERO,
                epoch: 0,
                term: 0,
                waiters: HashMap::default(),
                watchers: HashMap::default(),
                next_watcher: 0,
                signals: Vec::new(),
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_link(&self) -> u64 {
        self.links.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a client on that runtime has the clock that the store goes by.
    pub(super) fn same_clock(&self, runtime: &Arc<dyn Runtime>) -> bool {
        self.clock.is_none() && Arc::ptr_eq(&self.runtime, runtime)
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

impl State {
    #[inline(never)]
    fn dispatch(&mut self, news: News) -> Outbox {
        let mut outbox = Outbox::default();
        for grant in news.granted {
            for listener in self.waiters.remove(&grant.key).into_iter().flatten() {
                let grant = listener.anchor.grant(grant.clone());
                outbox.pushes.push((listener, grant));
            }
        }
        for key in news.dropped {
            outbox
                .ended
                .extend(self.waiters.remove(&key).into_iter().flatten());
        }
        for key in news.sooner {
            let listeners = self.waiters.get(&key).into_iter().flatten();
            outbox.changed.extend(listeners.map(|l| l.sender.clone()));
        }
        for (name, change) in news.changes {
            for watcher in self.watchers.get_mut(&name).into_iter().flatten() {
                watcher.note(change.clone());
                outbox.wakers.extend(watcher.waker.take());
            }
        }
        for name in news.nudged {
            for watcher in self.watchers.get_mut(&name).into_iter().flatten() {
                outbox.wakers.extend(watcher.waker.take());
            }
        }
        outbox
    }
}
