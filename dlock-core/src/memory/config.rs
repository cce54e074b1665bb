//! The configuration of a store.

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

/// The configuration of a [`Memory`] store. Without options it is what [`Memory::new`] creates.
///
/// # Examples
/// ```
/// # dlock_core::doc(|_| async {
/// # use dlock_core as dlock;
/// use dlock::{Client, ErrorKind, memory, runtime};
/// let runtime = runtime::own_thread()?;
/// let store = memory::Config::new().max_waiters(Some(0)).connect(runtime.clone());
/// let client = Client::builder(store.connect(), runtime).build()?;
/// let guard = client.lock("job")?.acquire().await?;
/// let refused = client.lock("job")?.acquire().await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::LimitReached);
/// # drop(guard);
/// # Ok(()) });
/// ```
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
    /// Creates the configuration of a store with every capability and no limits.
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

    /// Sets a password, which [`connect_with`](Memory::connect_with) must give. [`connect`](Memory::connect)
    /// needs none, so it protects nothing: it is for testing how a program behaves when it is refused.
    pub fn password(mut self, password: impl Into<Box<str>>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Makes a hand-off to a queued waiter provisional: it lives for this long, until the first renewal gives
    /// it its full ttl. With `None`, the default, a hand-off is a full grant.
    pub fn claim_window(mut self, window: Option<Duration>) -> Self {
        self.settings.claim_window = window;
        self
    }

    /// Limits how many locks one client may hold. Queued requests count too, so that a hand-off never exceeds
    /// the limit.
    pub fn max_held(mut self, max: Option<u64>) -> Self {
        self.settings.max_held = max;
        self.caps.max_held = max;
        self
    }

    /// Limits how many requests may wait for one name.
    pub fn max_waiters(mut self, max: Option<u64>) -> Self {
        self.settings.max_waiters = max;
        self.caps.max_waiters = max;
        self
    }

    /// Sets the longest name in bytes; 4096 by default.
    pub fn max_name_len(mut self, bytes: usize) -> Self {
        self.caps.max_name_len = bytes;
        self
    }

    /// Sets what the order of the tokens survives; [`Strength::WhileStateSurvives`] by default. With more, a
    /// [crash](Memory::crash) without memory keeps the counter and the gates, as a store does that writes
    /// these to disk, but not the leases.
    pub fn strength(mut self, strength: Strength) -> Self {
        self.strength = strength;
        self
    }

    /// Withdraws a capability, so that clients fail with `Unsupported`. For testing a program on a store with
    /// fewer features.
    pub fn without(mut self, capability: Capability) -> Self {
        self.caps = self.caps.without(capability);
        self
    }

    /// Makes the store use this clock instead of its runtime's. It is read once per call, and never runs
    /// backwards for the store.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Creates the store, which is empty. It uses the clock of `runtime`, as do the clients that
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
