//! A store in virtual time, and clients of it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::memory::Config;
use dlock_core::sim::Sim;
use dlock_core::{AutoRenew, Client, LockOptions, Memory, Runtime};

/// A world with one store; each `client` is a client of its own.
pub(crate) struct World {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) store: Memory,
}

impl World {
    pub(crate) fn client(&self) -> Client {
        Client::builder(self.store.connect(), self.runtime.clone())
            .build()
            .unwrap()
    }

    pub(crate) async fn sleep(&self, d: Duration) {
        self.runtime.sleep(d).await;
    }
}

/// Runs a test in virtual time, under several schedules.
pub(crate) fn simulate<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    simulate_with(|m| m, test);
}

pub(crate) fn simulate_with<F: Future<Output = ()>>(
    set_up: impl Fn(Config) -> Config,
    test: impl Fn(World) -> F,
) {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let runtime = sim.runtime();
        let store = set_up(Config::new()).connect(runtime.clone());
        sim.block_on(test(World { runtime, store }));
    }
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn ttl(n: u64) -> LockOptions {
    LockOptions::new().ttl(ms(n))
}

pub(crate) fn passive(n: u64) -> LockOptions {
    ttl(n).auto_renew(AutoRenew::Off)
}
