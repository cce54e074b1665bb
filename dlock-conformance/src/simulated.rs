//! The reference backend in the simulator, alone or as a quorum: the rules run in virtual time, and depend
//! only on the seed.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::memory::{Config, Sizes};
use dlock_core::sim::{FaultPlan, Link, Sim, SimRuntime};
use dlock_core::spi::{Lock, capabilities_of};
use dlock_core::{Capabilities, Capability, Client, Memory, Result, Runtime, Strength};
use futures::FutureExt;
use futures::future::{BoxFuture, Either, ready, select};

use crate::agent::Process;
use crate::claims::{Claims, Need};
use crate::cx::Cx;
use crate::engine_subject::EngineSubject;
use crate::harness::{Clockwork, Connecting, Driven, Harness};
use crate::hooks::{Hooks, MemoryHooks, Restart, WallClock};
use crate::network::Network;
use crate::panics;
use crate::simulated_full::Fillable;
use crate::simulated_network::SimulatedNetwork;
use crate::simulated_process::{SimulatedProcess, Surroundings};
use crate::subject::Subject;

/// How long to wait for a quorum member that does not answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// One simulated world: a memory store on a server, or a quorum of several on a server each, and clients that
/// reach them over links. Make a new one for each run.
///
/// All clocks show the same time, so that a history has one clock.
#[derive(Debug)]
pub struct Simulated {
    clockwork: Arc<SimulatedTime>,
    members: Vec<(SimRuntime, Memory)>,
    /// For a single store; a quorum has no hooks.
    hooks: Option<MemoryHooks>,
    plan: FaultPlan,
    /// Whether there is no room for anything new.
    full: Arc<AtomicBool>,
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
        let clockwork = SimulatedTime::new(seed);
        let server = clockwork.machine("server");
        // A store that writes its tokens and gates to a disk. Its leases use a clock that cannot be set,
        // unless a planted bug changes that.
        let mut config = Config::new()
            .strength(Strength::AcrossRestart)
            // Limits that only the rule about limits reaches.
            .max_held(Some(1_200))
            .max_waiters(Some(600));
        let wall = Arc::new(WallClock::new(Arc::new(server.clone())));
        if crate::switch::on("token_walltime") || crate::switch::on("server_walltime") {
            let wall = Arc::clone(&wall);
            config = config.clock(Arc::new(move || wall.now()));
        }
        if crate::switch::on("prio_silently_ignored") {
            // An option can be silently ignored only if it is not declared.
            config = config.without(Capability::Priority);
        }
        let store = config.connect(Arc::new(server.clone()));
        let hooks = MemoryHooks::new(store.clone()).replicated().clock(wall);
        Self::of(clockwork, vec![(server, store)], Some(hooks), plan)
    }

    /// A correct quorum of that many stores, at least two, on a network without faults. It proves the rules
    /// about quorums, and every other rule that it claims.
    pub fn quorum(seed: u64, members: usize) -> Self {
        let clockwork = SimulatedTime::new(seed);
        let member = |n: usize| {
            let server = clockwork.machine(&format!("server {n}"));
            let config = Config::new().strength(Strength::AcrossRestart);
            let store = config.connect(Arc::new(server.clone()));
            (server, store)
        };
        let members = (0..members).map(member).collect();
        Self::of(clockwork, members, None, FaultPlan::healthy())
    }

    fn of(
        clockwork: SimulatedTime,
        members: Vec<(SimRuntime, Memory)>,
        hooks: Option<MemoryHooks>,
        plan: FaultPlan,
    ) -> Self {
        let full = Arc::<AtomicBool>::default();
        Self {
            clockwork: Arc::new(clockwork),
            members,
            hooks: hooks.map(|hooks| hooks.filled(Arc::clone(&full))),
            plan,
            full,
            clients: AtomicU64::new(0),
            processes: AtomicU32::new(0),
        }
    }

    /// A number that is equal for two runs that made the same decisions.
    pub fn event_hash(&self) -> u64 {
        self.clockwork.0.event_hash()
    }

    /// The machine of one more client.
    fn node(&self) -> SimRuntime {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        self.clockwork.machine(&format!("client {number}"))
    }

    /// From that machine to each of the servers.
    fn links(&self, node: &SimRuntime, plan: &FaultPlan) -> Vec<Arc<Link>> {
        let members = self.members.iter();
        members
            .map(|(server, store)| {
                let store = Arc::new(Fillable::new(store.connect(), &self.full));
                Link::new(store, node, server, plan.clone())
            })
            .collect()
    }

    fn client(&self, links: &[Arc<Link>], runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Subject>> {
        subject(backend(links, &runtime)?, runtime)
    }

    /// The store, if it is a single one.
    fn store(&self) -> Option<&(SimRuntime, Memory)> {
        match &self.members[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

fn backend(links: &[Arc<Link>], runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
    if let [only] = links {
        return Ok(Arc::clone(only) as _);
    }
    let members = links.iter().map(|link| Arc::clone(link) as Arc<dyn Lock>);
    Ok(Arc::new(Quorum::new(
        members.collect(),
        Arc::clone(runtime),
        PATIENCE,
    )?))
}

fn subject(backend: Arc<dyn Lock>, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Subject>> {
    let client = Client::builder(backend, runtime).build()?;
    Ok(Arc::new(EngineSubject::new(client)))
}

/// The claims of both, under that name.
fn claimed(product: &str, capabilities: Capabilities) -> Claims {
    Claims::new(product, env!("CARGO_PKG_VERSION"), capabilities)
        .slack(Duration::from_millis(50))
        .op_bound(Duration::from_millis(500))
        .cancel_prompt(Duration::from_millis(50))
        .drop_prompt(Duration::from_millis(50))
        .claim(Need::Reentrant)
        .claim(Need::Events)
}

/// The claims of a single store.
pub(crate) fn claims(store: &Memory) -> Claims {
    claimed("dlock memory (simulated)", capabilities_of(&*store.connect()))
        .wake_p99(Duration::from_millis(20))
        .survives(Restart::InOrder)
        .claim(Need::SafeFailover)
}

impl Harness for Simulated {
    fn claims(&self) -> Claims {
        if let Some((_, store)) = self.store() {
            return claims(store);
        }
        let node = self.clockwork.machine("claims");
        let links = self.links(&node, &self.plan);
        let quorum = backend(&links, &(Arc::new(node) as _)).expect("memory stores can be a quorum");
        let members = self.members.len();
        // To each member a request to acquire and one to release, and to all but one of a majority one to
        // raise.
        let requests = u32::try_from(3 * members).unwrap_or(u32::MAX);
        claimed("dlock quorum (simulated)", capabilities_of(&*quorum))
            // A waiter polls at least ten times a second.
            .wake_p99(Duration::from_millis(200))
            .round_trips(requests)
            .quorum(members)
            .without(Need::BoundedWakes)
            .without(Need::Secrets)
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.clockwork.0.runtime()
    }

    fn hooks(&self) -> Option<&dyn Hooks> {
        self.hooks.as_ref().map(|hooks| hooks as _)
    }

    fn network(&self, _: &Cx) -> io::Result<Option<Arc<dyn Network>>> {
        let servers = self.members.iter().map(|(server, _)| server.clone()).collect();
        Ok(Some(Arc::new(SimulatedNetwork::new(servers))))
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> Connecting<'a> {
        async move {
            let node = self.node();
            let network = cx.route::<SimulatedNetwork>();
            let mut plan = self.plan.clone();
            if network.is_some() {
                // A lost message is waited for: the engine, or the quorum, has to give up.
                plan.hang = 1.0;
            }
            let links = self.links(&node, &plan);
            if let Some(network) = network {
                for (server, link) in links.iter().enumerate() {
                    network.add(server, link);
                }
            }
            self.client(&links, Arc::new(node))
        }
        .boxed()
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<Connecting<'a>> {
        let node = self.clockwork.machine("a client of nobody");
        let links = self.links(&node, &self.plan);
        links.iter().for_each(|link| link.cut());
        Some(ready(self.client(&links, Arc::new(node))).boxed())
    }

    fn connect_on<'a>(&'a self, _: &'a Cx, runtime: Arc<dyn Runtime>) -> Option<Connecting<'a>> {
        let links = self.links(&self.node(), &self.plan);
        Some(ready(self.client(&links, runtime)).boxed())
    }

    fn connect_with_secret<'a>(&'a self, _: &'a Cx, secret: &'a str) -> Option<Connecting<'a>> {
        let (_, store) = self.store()?;
        let connected = store.connect_with(secret);
        let client = connected.and_then(|backend| subject(backend, Arc::new(self.node())));
        Some(ready(client).boxed())
    }

    fn footprint<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        let of_one = |s: Sizes| s.names + s.queued + s.listeners + s.watchers;
        let kept: usize = self.members.iter().map(|(_, store)| of_one(store.sizes())).sum();
        // A member that was not waited for is sent an abandon, and its tombstones are gone after a minute.
        let tombstones = self.store().map_or(0, |(_, store)| store.sizes().tombstones);
        Some(ready(Ok((kept + tombstones) as u64)).boxed())
    }

    fn process(&self) -> Option<Arc<dyn Process>> {
        let (server, store) = self.store()?;
        let number = self.processes.fetch_add(1, Ordering::Relaxed) + 1;
        let around = Surroundings {
            clockwork: Arc::clone(&self.clockwork),
            server: server.clone(),
            store: store.clone(),
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
    fn new(seed: u64) -> Self {
        Self(Sim::new(seed))
    }

    /// A machine for a process. Its clock shows the same time as all clocks.
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
