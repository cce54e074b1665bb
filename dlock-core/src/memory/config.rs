//! How the store is set up.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::shared::{Clock, Shared, State};
use super::store::Memory;
use super::table::Settings;
use crate::capabilities::{Capabilities, Capability};
use crate::runtime::Runtime;
use crate::token::Strength;

/// What a store in memory is like. Without any of the options it is what [`Memory::new`] makes.
#[derive(Clone)]
#[must_use]
pub struct Config {
    clock: Option<Clock>,
    password: Option<Box<str>>,
    caps: Capabilities,
    strength: Strength,
    settings: Settings,
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// A store that lacks nothing and has no limits.
    pub fn new() -> Self {
        let longest = Duration::from_secs(30 * 24 * 3600);
        Self {
            clock: None,
            password: None,
            caps: Capabilities::new("memory")
                .with_everything()
                .with_ttl(Duration::from_millis(10)..=longest, Duration::from_nanos(1))
                .with_max_name_len(4096),
            strength: Strength::WhileStateSurvives,
            settings: Settings::default(),
        }
    }

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
        self.strength = strength;
        self
    }

    /// Takes a claim back: clients then answer `Unsupported`. For trying how a program does on a poorer
    /// store.
    pub fn without(mut self, capability: Capability) -> Self {
        self.caps = self.caps.without(capability);
        self
    }

    /// The store goes by that clock rather than by its runtime's. It is read once per call and never runs
    /// backwards for the store.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store, with nothing in it. It goes by the clock of that runtime, on which the clients are too that
    /// [connect](Memory::connect) to it.
    pub fn connect(self, runtime: Arc<dyn Runtime>) -> Memory {
        Memory {
            shared: Arc::new(Shared {
                runtime,
                clock: self.clock,
                password: self.password,
                caps: self.caps,
                strength: self.strength,
                settings: self.settings,
                connections: AtomicU64::new(0),
                gates: Mutex::default(),
                state: Mutex::new(State::new(self.settings)),
            }),
        }
    }
}

/// Without the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("caps", &self.caps)
            .field("strength", &self.strength)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
