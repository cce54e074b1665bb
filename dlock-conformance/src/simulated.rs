//! The reference backend in the simulator: the rules in virtual time, a function of the seed.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::sim::{FaultPlan, Link, Sim, SimRuntime};
use dlock_core::spi::capabilities_of;
use dlock_core::{Capability, Client, Memory, Result, Runtime, Strength};
use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};

use crate::agent::Process;
use crate::claims::Claims;
use crate::cx::Cx;
use crate::engine_subject::EngineSubject;
use crate::harness::{Clockwork, Driven, Harness};
use crate::hooks::{Hooks, MemoryHooks, Restart, WallClock};
use crate::network::Network;
use crate::panics;
use crate::simulated_network::SimulatedNetwork;
use crate::simulated_process::{SimulatedProcess, Surroundings};
use crate::subject::Subject;

/// One simulated world: a memory store on a server, and clients that reach it over links. Make a new one for
/// each run.
///
/// All clocks show the same time, so that a history has one clock.
#[derive(Debug)]
pub struct Simulated {
    clockwork: Arc<SimulatedTime>,
    server: SimRuntime,
    store: Memory,
    hooks: MemoryHooks,
    plan: FaultPlan,
    clients: AtomicU64,
    processes: AtomicU32,
}

impl Simulated {
    /// A correct store, on a network without faults.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, FaultPlan::healthy())
    }

    /// A store on a network like that.
    pub fn with(seed: u64, plan: FaultPlan) -> Self {
        let sim = Sim::new(seed);
        let server = sim.client_runtime_with("server", Duration::ZERO, 0);
        // A store that writes its tokens and gates to a disk. Its leases go by a clock that nobody can set,
        // unless a bug says otherwise.
        let mut builder = Memory::builder(Arc::new(server.clone()))
            .strength(Strength::AcrossRestart)
            // Limits that no rule meets but the one about limits.
            .max_held(Some(1_200))
            .max_waiters(Some(600));
        let wall = Arc::new(WallClock::new(Arc::new(server.clone())));
        if crate::switch::on("token_walltime") || crate::switch::on("server_walltime") {
            let wall = Arc::clone(&wall);
            builder = builder.with_clock(Arc::new(move || wall.now()));
        }
        if crate::switch::on("prio_silently_ignored") {
            // What is silently ignored must be undeclared first.
            builder = builder.without(Capability::Priority);
        }
        let store = builder.build();
        Self {
            clockwork: Arc::new(SimulatedTime(sim)),
            server,
            hooks: MemoryHooks::new(store.clone()).replicated().clock(wall),
            store,
            plan,
            clients: AtomicU64::new(0),
            processes: AtomicU32::new(0),
        }
    }

    /// A number that is the same for two runs that decided the same.
    pub fn event_hash(&self) -> u64 {
        self.clockwork.0.event_hash()
    }
}

pub(crate) fn claims(store: &Memory) -> Claims {
    Claims::new(
        "dlock memory (simulated)",
        env!("CARGO_PKG_VERSION"),
        capabilities_of(&*store.connect()),
    )
    .slack(Duration::from_millis(50))
    .op_bound(Duration::from_millis(500))
    .wake_p99(Duration::from_millis(20))
    .cancel_prompt(Duration::from_millis(50))
    .drop_prompt(Duration::from_millis(50))
    .survives(Restart::InOrder)
    .safe_failover()
    .reentrant()
    .traced()
}

impl Simulated {
    /// The machine of one more client.
    fn node(&self) -> SimRuntime {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let name = format!("client {number}");
        self.clockwork.0.client_runtime_with(&name, Duration::ZERO, 0)
    }
}

impl Harness for Simulated {
    fn claims(&self) -> Claims {
        claims(&self.store)
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.clockwork.0.runtime()
    }

    fn hooks(&self) -> Option<&dyn Hooks> {
        Some(&self.hooks)
    }

    fn network(&self, _: &Cx) -> io::Result<Option<Arc<dyn Network>>> {
        Ok(Some(Arc::new(SimulatedNetwork::new(vec![self.server.clone()]))))
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move {
            let runtime = self.node();
            let network = cx.route::<SimulatedNetwork>();
            let mut plan = self.plan.clone();
            if network.is_some() {
                // What the network loses is waited for: it is the engine's to give up.
                plan.hang = 1.0;
            }
            let link = Link::new(self.store.connect(), &runtime, &self.server, plan);
            if let Some(network) = network {
                network.add(0, &link);
            }
            let client = Client::builder(link, Arc::new(runtime)).build()?;
            Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
        }
        .boxed()
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let runtime = self
            .clockwork
            .0
            .client_runtime_with("a client of nobody", Duration::ZERO, 0);
        let link = Link::new(self.store.connect(), &runtime, &self.server, self.plan.clone());
        link.cut();
        let client = Client::builder(link, Arc::new(runtime))
            .build()
            .map(|client| Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>);
        Some(futures::future::ready(client).boxed())
    }

    fn connect_on<'a>(
        &'a self,
        _: &'a Cx,
        runtime: Arc<dyn Runtime>,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let node = self.node();
        let link = Link::new(self.store.connect(), &node, &self.server, self.plan.clone());
        let client = Client::builder(link, runtime)
            .build()
            .map(|client| Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>);
        Some(futures::future::ready(client).boxed())
    }

    fn connect_with_secret<'a>(
        &'a self,
        _: &'a Cx,
        secret: &'a str,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let client = self.store.connect_with(secret).and_then(|backend| {
            let client = Client::builder(backend, Arc::new(self.node())).build()?;
            Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
        });
        Some(futures::future::ready(client).boxed())
    }

    fn footprint<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        let sizes = self.store.sizes();
        let all = sizes.names + sizes.tombstones + sizes.queued + sizes.listeners + sizes.watchers;
        Some(futures::future::ready(Ok(all as u64)).boxed())
    }

    fn process(&self) -> Option<Arc<dyn Process>> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        let around = Surroundings {
            clockwork: Arc::clone(&self.clockwork),
            server: self.server.clone(),
            store: self.store.clone(),
            plan: self.plan.clone(),
        };
        Some(Arc::new(SimulatedProcess::new(number, around)))
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        Arc::clone(&self.clockwork) as _
    }
}

/// The clock of a simulated world.
#[derive(Debug)]
pub struct SimulatedTime(Sim);

impl SimulatedTime {
    /// The clock of a new world.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Sim::new(seed))
    }

    /// What runs the rules.
    pub(crate) fn runtime(&self) -> Arc<dyn Runtime> {
        self.0.runtime()
    }

    /// A number that is the same for two runs that decided the same.
    pub(crate) fn event_hash(&self) -> u64 {
        self.0.event_hash()
    }

    /// A machine on which a process is to live; its clock shows what all clocks show.
    pub(crate) fn machine(&self, name: &str) -> SimRuntime {
        self.0.client_runtime_with(name, Duration::ZERO, 0)
    }
}

impl Clockwork for SimulatedTime {
    fn is_virtual(&self) -> bool {
        true
    }

    fn stall(&self, duration: Duration) {
        self.0.stall(duration);
    }

    fn drive(&self, runtime: &Arc<dyn Runtime>, rule: BoxFuture<'static, ()>, limit: Duration) -> Driven {
        let limit = runtime.sleep(limit);
        // A panic here is one of a background task, or the simulator's own: it cannot go on.
        let run = || match self.0.block_on(select(rule, limit)) {
            Either::Left(_) => Driven::Done,
            Either::Right(_) => Driven::TimedOut,
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
            let panic = panics::caught(&*payload);
            Driven::Stuck(format!(
                "a panic of a background task at {}:{}: {}",
                panic.file, panic.line, panic.text
            ))
        })
    }
}
