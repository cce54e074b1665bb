use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;

use super::gate::Gates;
use super::link::MemoryLink;
use super::table::{Effects, Held, News, Settings, Table};
use super::watch::Watcher;
use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::spi::{Grant, LeaseKey, Lock, Push, Signal};
use crate::timestamp::Timestamp;
use crate::token::Strength;

/// The clock of a store that does not go by its runtime's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A lock store in memory: the "server". Clones are the same store; [`connect`](Self::connect) gives each
/// client a link of its own.
///
/// ```
/// # #[cfg(feature = "tokio")] fn f(runtime: std::sync::Arc<dyn dlock_core::Runtime>) {
/// use dlock_core::memory::Memory;
/// let store = Memory::new(runtime);
/// let backend = store.connect();
/// assert_eq!(backend.capabilities().backend, "memory");
/// # }
/// ```
#[derive(Clone)]
pub struct Memory {
    pub(super) shared: Arc<Shared>,
}

impl Memory {
    /// A store that goes by the clock of that runtime, with the defaults of the builder.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self::builder(runtime).build()
    }

    /// A store with options.
    pub fn builder(runtime: Arc<dyn Runtime>) -> MemoryBuilder {
        let caps = Capability::ALL
            .iter()
            .fold(Capabilities::new("memory"), |caps, c| caps.with(*c))
            .with_fencing(Strength::WhileStateSurvives)
            .with_owner_label(256)
            .with_ttl(
                Duration::from_millis(10)..=Duration::from_secs(30 * 24 * 3600),
                Duration::from_nanos(1),
            )
            .with_max_name_len(4096);
        MemoryBuilder {
            runtime,
            clock: None,
            password: None,
            caps,
            settings: Settings::default(),
        }
    }

    /// A new client's link, on the runtime of the store.
    pub fn connect(&self) -> Arc<dyn Lock> {
        Arc::new(self.link())
    }

    /// The same for a client that has to show the store's [password](MemoryBuilder::password).
    ///
    /// # Errors
    /// `PermissionDenied` if it shows another one, or the store has none.
    pub fn connect_with(&self, password: &str) -> Result<Arc<dyn Lock>> {
        if self.shared.password.as_deref() == Some(password) {
            return Ok(self.connect());
        }
        let message = "the store refuses this password";
        Err(Error::new(ErrorKind::PermissionDenied, message))
    }

    /// As [`connect`](Self::connect), with the link's own type and thereby its
    /// [gate](MemoryLink::memory_gate).
    pub fn link(&self) -> MemoryLink {
        MemoryLink::new(self.shared.clone(), self.shared.runtime.clone())
    }

    /// The link of a client whose clock is not the store's: its replies are counted on the clock of that
    /// runtime.
    pub fn link_on(&self, runtime: Arc<dyn Runtime>) -> MemoryLink {
        MemoryLink::new(self.shared.clone(), runtime)
    }

    /// Stops the store at once and starts it again: every push stream ends, every watch stream ends with an
    /// error, and every link is told of doubt and of the return. Without its memory the store forgets leases
    /// and queues, and, unless its tokens [survive a restart](MemoryBuilder::strength), tokens and gates.
    pub fn crash(&self, memory: Survives) {
        let (waiters, watchers, signals) = {
            let mut state = self.shared.lock();
            state.epoch += 1;
            if memory == Survives::Nothing {
                let last_token = state.table.last_token();
                let durable = self
                    .shared
                    .caps
                    .strength
                    .is_some_and(|s| s >= Strength::AcrossRestart);
                state.table = Table::new(self.shared.settings);
                if durable {
                    state.table.skip_tokens(last_token);
                } else {
                    self.shared.gates.clear();
                }
            }
            (
                std::mem::take(&mut state.waiters),
                std::mem::take(&mut state.watchers),
                state.signals.clone(),
            )
        };
        // Outside the mutex: a waker may run code that calls the store. In the order of the names: a
        // simulated run must not depend on the order of a hash map.
        drop(BTreeMap::from_iter(waiters));
        BTreeMap::from_iter(watchers)
            .into_values()
            .flatten()
            .filter_map(|w| w.waker)
            .for_each(Waker::wake);
        for signal in signals {
            // A link that listens no more has nothing to be told.
            let _ = signal.unbounded_send(Signal::Doubt);
            let _ = signal.unbounded_send(Signal::Back);
        }
    }

    /// What the store keeps at the moment. After everything was released there are no names, no waiters and
    /// no watchers, and the tombstones of abandoned requests go with the abandons that come two minutes
    /// later.
    pub fn sizes(&self) -> Sizes {
        let state = self.shared.lock();
        let (names, queued, tombstones) = state.table.sizes();
        Sizes {
            names,
            queued,
            tombstones,
            listeners: state.waiters.len(),
            watchers: state.watchers.values().map(Vec::len).sum(),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("sizes", &self.sizes())
            .finish_non_exhaustive()
    }
}

/// What a [crash](Memory::crash) leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survives {
    /// Only connections break.
    Memory,
    /// What is on a disk, if anything: see [`MemoryBuilder::strength`]. Otherwise the store starts empty, its
    /// tokens from the beginning.
    Nothing,
}

/// What a store keeps, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// Names that are held or waited for.
    pub names: usize,
    /// Queued requests.
    pub queued: usize,
    /// Tombstones of abandoned requests.
    pub tombstones: usize,
    /// Queued requests with somebody to push to.
    pub listeners: usize,
    /// Watch streams.
    pub watchers: usize,
}

/// Options of a store; from [`Memory::builder`].
#[must_use]
pub struct MemoryBuilder {
    runtime: Arc<dyn Runtime>,
    clock: Option<Clock>,
    password: Option<Box<str>>,
    caps: Capabilities,
    settings: Settings,
}

impl MemoryBuilder {
    /// Those who [connect with](Memory::connect_with) a password have to know this one. It keeps nobody out
    /// who has the store at hand, as all have who use `connect`: it is for seeing what a program does when it
    /// is refused.
    pub fn password(mut self, password: impl Into<Box<str>>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// A hand-off to a queued waiter is provisional and lives only that long, until the first renewal gives
    /// it its full ttl. `None`, the default: a hand-off is a full grant.
    pub fn claim_window(mut self, window: Option<Duration>) -> Self {
        self.settings.claim_window = window;
        self
    }

    /// How many locks one client may hold; those it waits for count too, so that a hand-off never exceeds it.
    pub fn max_held(mut self, max: Option<u64>) -> Self {
        self.settings.max_held = max;
        self.caps.max_held = max;
        self
    }

    /// How many requests may wait for one name.
    pub fn max_waiters(mut self, max: Option<u64>) -> Self {
        self.settings.max_waiters = max;
        self.caps.max_waiters = max;
        self
    }

    /// The longest name in bytes; 4096 unless set.
    pub fn max_name_len(mut self, bytes: usize) -> Self {
        self.caps.max_name_len = bytes;
        self
    }

    /// What the tokens survive; [`Strength::WhileStateSurvives`] unless set. With more than that a
    /// [crash](Memory::crash) without memory keeps the counter and the gates, as a store does that writes
    /// these to a disk, and the leases not.
    pub fn strength(mut self, strength: Strength) -> Self {
        self.caps.strength = self.caps.strength.map(|_| strength);
        self
    }

    /// Takes a claim back: the store then answers `Unsupported`. For trying how a program does on a poorer
    /// store.
    pub fn without(mut self, capability: Capability) -> Self {
        self.caps = self.caps.without(capability);
        self
    }

    /// The store goes by that clock rather than by its runtime's. It is read once per call and never runs
    /// backwards for the store.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store.
    pub fn build(self) -> Memory {
        Memory {
            shared: Arc::new(Shared {
                runtime: self.runtime,
                clock: self.clock,
                password: self.password,
                caps: self.caps,
                settings: self.settings,
                links: AtomicU64::new(0),
                gates: Gates::default(),
                state: Mutex::new(State {
                    table: Table::new(self.settings),
                    now: Timestamp::ZERO,
                    epoch: 0,
                    term: 0,
                    waiters: HashMap::default(),
                    watchers: HashMap::default(),
                    next_watcher: 0,
                    signals: Vec::new(),
                }),
            }),
        }
    }
}

impl fmt::Debug for MemoryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBuilder")
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

/// What all links of a store share.
pub(super) struct Shared {
    runtime: Arc<dyn Runtime>,
    clock: Option<Clock>,
    /// Shown nowhere.
    password: Option<Box<str>>,
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
    fn grant(self, key: LeaseKey, held: Held, now: Timestamp) -> Grant {
        let (from, life) = match self {
            Self::Same => (now, now.until(held.expires)),
            Self::Pair(client, store) => (client, store.until(held.expires)),
        };
        to_grant(key, held, from, life)
    }
}

pub(super) fn to_grant(key: LeaseKey, held: Held, from: Timestamp, life: Duration) -> Grant {
    let grant = Grant::new(key, Some(held.token), from, life);
    if held.provisional {
        grant.provisional()
    } else {
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
        call: impl FnOnce(&mut State, Timestamp, &mut Effects) -> R,
    ) -> R {
        let (answer, outbox) = {
            let mut state = self.lock();
            let read = known.unwrap_or_else(|| match &self.clock {
                Some(clock) => clock(),
                None => self.runtime.now(),
            });
            let now = read.max(state.now);
            state.now = now;
            let mut effects = Effects::of(!state.watchers.is_empty());
            let answer = call(&mut state, now, &mut effects);
            match effects.into_news() {
                None => return answer,
                Some(news) => (answer, state.dispatch(*news, now)),
            }
        };
        outbox.deliver();
        answer
    }
}

impl State {
    #[inline(never)]
    fn dispatch(&mut self, news: News, now: Timestamp) -> Outbox {
        let mut outbox = Outbox::default();
        for (key, held) in news.granted {
            for listener in self.waiters.remove(&key).into_iter().flatten() {
                let grant = listener.anchor.grant(key.clone(), held, now);
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
