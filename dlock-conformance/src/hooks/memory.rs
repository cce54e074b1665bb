//! The hooks of the reference backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::memory::{Memory, Survives};
use dlock_core::{LockName, Result};
use futures::FutureExt;
use futures::future::ready;

use super::{Hooks, Offer, Restart, Step, Vitals, WallClock};

/// Hooks into a [`Memory`] store.
#[derive(Clone, Debug)]
pub struct MemoryHooks {
    store: Memory,
    replicated: bool,
    clock: Option<Arc<WallClock>>,
    full: Option<Arc<AtomicBool>>,
}

impl MemoryHooks {
    /// The hooks of that store.
    pub fn new(store: Memory) -> Self {
        Self {
            store,
            replicated: false,
            clock: None,
            full: None,
        }
    }

    /// Adds a failover, as if to another server with the same state.
    #[must_use]
    pub fn replicated(mut self) -> Self {
        self.replicated = true;
        self
    }

    /// Adds that clock as the server's wall clock, whether the store uses it or not.
    #[must_use]
    pub fn clock(mut self, clock: Arc<WallClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Also full when that says so, to which the way to the store keeps.
    pub(crate) fn filled(mut self, full: Arc<AtomicBool>) -> Self {
        self.full = Some(full);
        self
    }
}

/// Done when it is polled, not before: whether there is a hook is asked by asking for it.
fn offer<'a, T: Send + 'a>(does: impl FnOnce() -> T + Send + 'a) -> Offer<'a, T> {
    Some(async move { Result::Ok(does()) }.boxed())
}

impl Hooks for MemoryHooks {
    fn vitals(&self) -> Offer<'_, Vitals> {
        let mut vitals = Vitals::new().run(self.store.starts());
        if self.replicated {
            vitals = vitals.leader(self.store.term());
        }
        if let Some(clock) = &self.clock {
            vitals = vitals.clock(Duration::from_nanos(clock.now().as_nanos()));
        }
        Some(ready(Ok(vitals)).boxed())
    }

    fn restart(&self, how: Restart) -> Offer<'_> {
        let memory = match how {
            Restart::InOrder => Survives::Memory,
            Restart::Crash => Survives::Nothing,
        };
        offer(move || self.store.crash(memory))
    }

    fn fail_over(&self) -> Offer<'_> {
        self.replicated.then_some(())?;
        offer(|| self.store.fail_over())
    }

    fn step_clock(&self, step: Step) -> Offer<'_> {
        let clock = self.clock.as_ref()?;
        offer(move || clock.step(step))
    }

    fn fill(&self, full: bool) -> Offer<'_> {
        let is_full = self.full.as_ref()?;
        offer(move || is_full.store(full, Ordering::Release))
    }

    fn set_counter<'a>(&'a self, _: &'a LockName, to: u64) -> Offer<'a> {
        offer(move || self.store.skip_tokens(to))
    }

    fn counter<'a>(&'a self, _: &'a LockName) -> Offer<'a, u64> {
        offer(|| self.store.last_token())
    }

    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        offer(move || self.store.spoil(name, with))
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        offer(move || {
            let foreign = self.store.spoiled(name);
            foreign.map_or_else(Vec::new, |text| text.as_bytes().to_vec())
        })
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        offer(move || self.store.mend(name))
    }
}
