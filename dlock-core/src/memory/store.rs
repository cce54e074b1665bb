use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::link::MemoryLink;
use super::shared::{Clock, Shared};
use super::table::{Settings, Table};
use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::spi::{Lock, Signal};
use crate::token::Strength;

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
                    self.shared.gates.lock().clear();
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
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) clock: Option<Clock>,
    pub(super) password: Option<Box<str>>,
    pub(super) caps: Capabilities,
    pub(super) settings: Settings,
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
        let shared = Arc::new(Shared::new(self));
        Memory { shared }
    }
}

impl fmt::Debug for MemoryBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBuilder")
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}
