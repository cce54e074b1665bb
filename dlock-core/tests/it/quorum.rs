//! The quorum over memory stores behind links, in virtual time: the SPI, and what a client makes of it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::memory::{Config, Survives};
use dlock_core::sim::{FaultPlan, Link, Partition, Sim, SimRuntime};
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Lock, Release, Released, RenewItem, RenewOutcome,
};
use dlock_core::{
    AutoRenew, Capability, Client, ErrorKind, LockName, LockOptions, Memory, Mode, RequestId, Runtime,
    Strength, Timestamp, Token,
};
use futures::future::join_all;

mod grants;
mod holds;
mod late_releases;
mod lost_answers;
mod tokens;
mod waits;

const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_millis(500);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn key(text: &str, n: u64) -> LeaseKey {
    LeaseKey::new(name(text), RequestId::new(7, n))
}

fn request(key: &LeaseKey) -> Acquire {
    Acquire::new(key.clone(), TTL)
}

/// Alive, and a tenth of a second away.
fn slow() -> FaultPlan {
    let mut plan = FaultPlan::healthy();
    plan.delay = ms(50)..ms(51);
    plan
}

fn t(n: u64) -> Token {
    Token::new(n).unwrap()
}

/// Some stores, each on a machine of its own.
struct World<'a> {
    sim: &'a Sim,
    stores: Vec<(Memory, SimRuntime)>,
}

/// A quorum of them as one client sees it.
struct Seen {
    runtime: SimRuntime,
    links: Vec<Arc<Link>>,
    quorum: Arc<Quorum>,
}

impl World<'_> {
    fn client(&self, name: &str) -> Seen {
        self.client_with(name, FaultPlan::healthy())
    }

    fn client_with(&self, name: &str, plan: FaultPlan) -> Seen {
        self.client_of(name, plan, |member| member)
    }

    /// Of members that are made of the stores.
    fn client_of(&self, name: &str, plan: FaultPlan, made: impl Fn(Arc<dyn Lock>) -> Arc<dyn Lock>) -> Seen {
        let runtime = self.sim.client_runtime(name);
        let link = |(store, server): &(Memory, SimRuntime)| {
            Link::new(made(store.connect()), &runtime, server, plan.clone())
        };
        let links: Vec<_> = self.stores.iter().map(link).collect();
        let members = links.iter().map(|link| link.clone() as Arc<dyn Lock>).collect();
        let quorum = Quorum::new(members, Arc::new(runtime.clone()), PATIENCE).unwrap();
        Seen {
            runtime,
            links,
            quorum: Arc::new(quorum),
        }
    }

    async fn sleep(&self, d: Duration) {
        self.sim.runtime().sleep(d).await;
    }

    /// At which stores the name is held.
    async fn held_at(&self, text: &str) -> Vec<usize> {
        let mut held = Vec::new();
        for (n, (store, _)) in self.stores.iter().enumerate() {
            let link = store.connect();
            let now = link.watch().unwrap().inspect(&name(text)).await.unwrap();
            assert!(now.holders.len() <= 1 && now.waiting == 0, "{now:?}");
            if !now.holders.is_empty() {
                held.push(n);
            }
        }
        held
    }
}

impl Seen {
    /// Reaches these members, and no others.
    fn reaches(&self, members: &[usize]) {
        for (n, link) in self.links.iter().enumerate() {
            match members.contains(&n) {
                true => link.reconnect(),
                false => link.cut(),
            }
        }
    }

    fn requests(&self) -> u64 {
        self.links.iter().map(|link| link.traffic().0).sum()
    }

    fn client(&self) -> Client {
        Client::builder(self.quorum.clone(), Arc::new(self.runtime.clone()))
            .build()
            .unwrap()
    }

    async fn granted(&self, key: &LeaseKey) -> Grant {
        match self.quorum.attempt(&request(key)).await.unwrap() {
            Attempt::Granted(grant) => grant,
            other => panic!("{key:?}: {other:?}"),
        }
    }

    async fn is_refused(&self, key: &LeaseKey) -> bool {
        matches!(
            self.quorum.attempt(&request(key)).await.unwrap(),
            Attempt::Held(_)
        )
    }

    async fn release(&self, key: &LeaseKey) -> Released {
        self.quorum.release(key, Release::Now).await.unwrap()
    }

    async fn renew(&self, key: &LeaseKey) -> RenewOutcome {
        let items = [RenewItem::lease(key.clone(), TTL)];
        let part = (&*self.quorum as &dyn Lock).renew().unwrap();
        part.renew(&items).await.pop().unwrap()
    }
}

/// Runs a test over so many stores, under several schedules.
fn simulate(members: usize, test: impl AsyncFn(World<'_>)) {
    simulate_with(members, |_, builder| builder, test);
}

fn simulate_with(members: usize, set_up: impl Fn(usize, Config) -> Config, test: impl AsyncFn(World<'_>)) {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let stores = (0..members)
            .map(|n| {
                let server = sim.client_runtime(&format!("server {n}"));
                let store = set_up(n, Config::new()).connect(Arc::new(server.clone()));
                (store, server)
            })
            .collect();
        sim.block_on(test(World { sim: &sim, stores }));
    }
}
