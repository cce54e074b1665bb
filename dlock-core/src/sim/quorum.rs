//! The engine and the quorum over several stores together, under everything that can go wrong.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::channel::oneshot;

use super::executor::Sim;
use super::faults::{FaultPlan, Partition};
use super::judge::{Backing, Judge};
use super::link::Link;
use super::node::SimRuntime;
use super::rng::SimRng;
use super::scenario::{Report, SETTLING, Trace, drawn_plan, spawn};
use super::worker::{Kind, MAX_TTL, Worker, released};
use crate::client::Client;
use crate::combinators::Quorum;
use crate::memory::{self, Memory, Survives};
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::spi::Lock;
use crate::token::Strength;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How long a member that has lost its leases stays away: the longest ttl, plus the drift of the clocks over
/// that time.
const DELAYED_RESTART: Duration = Duration::from_millis(3_100);

/// Runs one seed: some clients, each with a faulty link to each of three or five stores and a clock of its
/// own, use some names at random while links, stores and clients are broken and mended. Clocks of stores run
/// up to 0.4 % fast or slow, those of clients up to half a percent; the margin is one percent. A store that
/// loses its leases keeps its counter, and stays away until what it lost is over.
///
/// It checks what [`scenario::run`](super::scenario::run) checks, except that a guard is backed by *the*
/// store.
///
/// # Panics
/// If nothing can happen any more though the run has not ended, or a task panics; the message of the former
/// names the seed.
pub fn run(seed: u64, trace: Trace) -> Report {
    let sim = Sim::new(seed).with_limits(6_000_000, Duration::from_secs(600));
    if trace == Trace::Keep {
        sim.keep_trace();
    }
    let mut rng = sim.rng("quorum");
    let setting = Setting::new(&sim, &mut rng);
    let judge = setting.judge.clone();
    sim.block_on(setting.play(&sim, rng));
    Report {
        event_hash: sim.event_hash(),
        grants: judge.grants(),
        violation: judge.violation(),
        trace: sim.trace(),
    }
}

#[derive(Clone)]
struct Server {
    runtime: SimRuntime,
    store: Memory,
}

struct Party {
    runtime: SimRuntime,
    links: Vec<Arc<Link>>,
    client: Client,
}

struct Setting {
    clock: Arc<dyn Runtime>,
    servers: Vec<Server>,
    judge: Arc<Judge>,
    names: Arc<[(LockName, Kind)]>,
    parties: Vec<Party>,
    /// Added to every ttl, as in the scenario of one store.
    extra_ttl: Duration,
    /// Whether stores may lose their leases.
    forgetful: bool,
}

fn drift(rng: &mut SimRng, most: u64) -> i32 {
    rng.below(2 * most + 1) as i32 - most as i32
}

impl Setting {
    fn new(sim: &Sim, rng: &mut SimRng) -> Self {
        let members = if rng.chance(0.7) { 3 } else { 5 };
        let extra_ttl = match rng.chance(0.5) {
            true => 120 * SECOND,
            false => Duration::ZERO,
        };
        // If nothing expires, waiting until lost leases are over is impossible.
        let forgetful = extra_ttl.is_zero() && rng.chance(0.5);
        let servers: Vec<Server> = (0..members)
            .map(|n| {
                let name = format!("server {n}");
                let offset = rng.duration(Duration::ZERO..SECOND * 1_000_000);
                let runtime = sim.client_runtime_with(&name, offset, drift(rng, 4_000));
                // One `Arc` for both, so that the store's connections know that they share its clock.
                let config = memory::Config::new().strength(Strength::AcrossRestart);
                Server {
                    store: config.connect(Arc::new(runtime.clone())),
                    runtime,
                }
            })
            .collect();
        let names = (0..1 + rng.below(2))
            .map(|i| {
                let kind = match rng.below(2) {
                    0 => Kind::Exclusive,
                    _ => Kind::ReadWrite,
                };
                (LockName::new(format!("n{i}")).expect("not empty"), kind)
            })
            .collect();
        let backing = match forgetful {
            true => Backing::Forgetful,
            false => {
                let stores = servers.iter().map(|server| server.store.connect()).collect();
                Backing::Majority(stores, Mutex::default())
            }
        };
        let mut setting = Self {
            clock: sim.runtime(),
            servers,
            judge: Arc::new(Judge::new(sim.world(), backing)),
            names,
            parties: Vec::new(),
            extra_ttl,
            forgetful,
        };
        for i in 0..2 + rng.below(3) {
            let party = setting.party(sim, rng, &format!("c{i}"), None);
            setting.parties.push(party);
        }
        setting
    }

    /// A client with a link to each store; of one plan, or each of its own.
    fn party(&self, sim: &Sim, rng: &mut SimRng, name: &str, plan: Option<FaultPlan>) -> Party {
        let offset = rng.duration(Duration::ZERO..SECOND * 1_000_000);
        let runtime = sim.client_runtime_with(name, offset, drift(rng, 5_000));
        let links: Vec<_> = self
            .servers
            .iter()
            .map(|server| {
                let plan = plan.clone().unwrap_or_else(|| drawn_plan(rng, self.extra_ttl));
                let link = if rng.chance(0.25) { Link::polled } else { Link::new };
                link(server.store.connect(), &runtime, &server.runtime, plan)
            })
            .collect();
        let members = links.iter().map(|link| link.clone() as Arc<dyn Lock>).collect();
        let patience = rng.duration(50 * MS..800 * MS);
        let quorum = Quorum::new(members, Arc::new(runtime.clone()), patience).expect("they can be one");
        let quorum = Arc::new(quorum);
        self.judge.knows(&runtime, &quorum);
        let client = Client::builder(quorum, Arc::new(runtime.clone()))
            .op_timeout(patience * 2 + rng.duration(100 * MS..2 * SECOND))
            .build()
            .expect("the quorum keeps its claims");
        Party {
            runtime,
            links,
            client,
        }
    }

    async fn play(self, sim: &Sim, mut rng: SimRng) {
        let stop = Arc::new(AtomicBool::new(false));
        let mut ends = Vec::new();
        for party in &self.parties {
            for i in 0..1 + rng.below(3) {
                let worker = Worker {
                    who: format!("{}/{i}", party.runtime.node_name()),
                    client: party.client.clone(),
                    runtime: party.runtime.clone(),
                    judge: self.judge.clone(),
                    names: self.names.clone(),
                    stop: stop.clone(),
                    extra_ttl: self.extra_ttl,
                    has_priorities: false,
                    has_upgrade: false,
                    rng: rng.fork("worker"),
                };
                ends.push(spawn(&party.runtime, worker.run()));
            }
        }
        let nemesis = Nemesis {
            parties: self
                .parties
                .iter()
                .map(|p| (p.runtime.clone(), p.links.clone()))
                .collect(),
            servers: self.servers.clone(),
            clock: self.clock.clone(),
            stop: stop.clone(),
            extra_ttl: self.extra_ttl,
            forgetful: self.forgetful,
            rng: rng.fork("nemesis"),
        };
        let mended = spawn(&*self.clock, nemesis.run());
        let until = self.clock.now() + rng.duration(2 * SECOND..8 * SECOND);
        while self.clock.now() < until && self.judge.violation().is_none() {
            self.clock.sleep(rng.duration(Duration::ZERO..40 * MS)).await;
            self.judge.check();
        }
        stop.store(true, Ordering::Release);
        let _ = mended.await;
        if self.judge.violation().is_none() {
            self.must_come_to_rest(sim, &mut rng, ends).await;
        }
    }

    async fn must_come_to_rest(&self, sim: &Sim, rng: &mut SimRng, ends: Vec<oneshot::Receiver<()>>) {
        let ended = self.within(SETTLING, futures::future::join_all(ends)).await;
        if ended.is_none() {
            let what = format!("a call has not returned {SETTLING:?} after the last fault");
            return self.judge.condemn(what);
        }
        let fresh = self.party(sim, rng, "fresh", Some(FaultPlan::healthy()));
        for (name, kind) in self.names.iter() {
            let bound = 2 * MAX_TTL + SECOND;
            let since = self.judge.seniority(name);
            let lock = fresh.client.lock(name).expect("a name that was used before");
            match lock.acquire_timeout(bound).await {
                Ok(guard) => {
                    let guard = Arc::new(guard);
                    self.judge.acquired("fresh", &fresh.runtime, &guard, since);
                    if let Err(e) = released(guard).await {
                        self.judge
                            .condemn(format!("a release on healthy links failed: {e:?}"));
                    }
                }
                Err(e) => self
                    .judge
                    .condemn(format!("{name} ({kind:?}) cannot be had within {bound:?}: {e:?}")),
            }
        }
        // Obligations to members are met while the clients are open; all members answer.
        self.clock.sleep(SETTLING).await;
        if !self.extra_ttl.is_zero() {
            self.must_be_empty().await;
        }
        for party in self.parties.iter().chain([&fresh]) {
            match self.within(SETTLING, party.client.close()).await {
                None => self
                    .judge
                    .condemn(format!("close of {} does not return", party.runtime.node_name())),
                Some(Err(e)) => self
                    .judge
                    .condemn(format!("close on healthy links failed: {e:?}")),
                Some(Ok(())) => {}
            }
        }
        self.clock.sleep(2 * MAX_TTL + 10 * SECOND).await;
        for party in &self.parties {
            let left = party.runtime.tasks_alive();
            if left > 0 {
                let who = party.runtime.node_name();
                self.judge
                    .condemn(format!("{who} is closed and has {left} tasks"));
            }
        }
        self.must_be_empty().await;
    }

    async fn must_be_empty(&self) {
        for (n, server) in self.servers.iter().enumerate() {
            let store = server.store.connect();
            let Some(watch) = store.watch() else { return };
            for (name, _) in self.names.iter() {
                match watch.inspect(name).await {
                    Ok(now) if now.holders.is_empty() && now.waiting == 0 => {}
                    other => self
                        .judge
                        .condemn(format!("store {n} keeps {name} for ever: {other:?}")),
                }
            }
        }
    }

    async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let future = std::pin::pin!(future);
        match futures::future::select(future, self.clock.sleep(limit)).await {
            futures::future::Either::Left((output, _)) => Some(output),
            futures::future::Either::Right(_) => None,
        }
    }
}

/// Breaks links, stops clients and stores, and repairs them, until it is stopped.
struct Nemesis {
    parties: Vec<(SimRuntime, Vec<Arc<Link>>)>,
    servers: Vec<Server>,
    clock: Arc<dyn Runtime>,
    stop: Arc<AtomicBool>,
    extra_ttl: Duration,
    /// Whether stores may lose their leases.
    forgetful: bool,
    rng: SimRng,
}

impl Nemesis {
    async fn run(mut self) {
        // How often something happens is drawn too, from rarely to often.
        let pace = Duration::from_millis(10 + self.rng.below(500));
        while !self.stop.load(Ordering::Acquire) {
            let wait = self.rng.duration(Duration::ZERO..pace * 2);
            self.clock.sleep(wait).await;
            if !self.stop.load(Ordering::Acquire) {
                self.strike();
            }
        }
        self.heal().await;
    }

    fn pick(&mut self, of: usize) -> usize {
        self.rng.below(of as u64) as usize
    }

    fn strike(&mut self) {
        let party = self.pick(self.parties.len());
        let member = self.pick(self.servers.len());
        let (client, links) = self.parties[party].clone();
        let link = links[member].clone();
        let server = self.servers[member].clone();
        match self.rng.below(20) {
            18 => self.isolate(party),
            19 => links.iter().for_each(|link| link.heal()),
            0 => link.partition(Partition::Both),
            1 => link.partition(Partition::Requests),
            2 => link.partition(Partition::Replies),
            3 | 4 => link.heal(),
            5 => link.cut(),
            6 | 7 => link.reconnect(),
            8 => link.hold(),
            9 | 10 => link.let_go(),
            11 => client.pause(),
            12 | 13 => client.resume(),
            14 => link.set_plan(drawn_plan(&mut self.rng, self.extra_ttl)),
            // A member that is away because of a loss returns on its own.
            15 if self.forgetful => {}
            15 if server.runtime.is_paused() => server.runtime.resume(),
            15 => server.runtime.pause(),
            16 => self.restart(member),
            _ => {
                let time = self.rng.duration(Duration::ZERO..Duration::from_millis(300));
                client.world().stall(time);
            }
        }
    }

    /// A client reaches a minority of the stores, and no others.
    fn isolate(&mut self, party: usize) {
        let links = self.parties[party].1.clone();
        let first = self.pick(links.len());
        let reached = self.rng.below(links.len() as u64 / 2 + 1) as usize;
        for (n, link) in links.iter().enumerate() {
            if (n + links.len() - first) % links.len() >= reached {
                link.partition(Partition::Both);
            }
        }
    }

    /// Every connection to it breaks. With its leases; or without, and then it stays away until they are
    /// over.
    fn restart(&mut self, member: usize) {
        let server = self.servers[member].clone();
        if self.forgetful && self.rng.chance(0.5) {
            server.store.crash(Survives::Nothing);
            server.runtime.pause();
            let back = self.clock.sleep(DELAYED_RESTART);
            let runtime = server.runtime.clone();
            let comes_back = async move {
                back.await;
                runtime.resume();
            };
            self.clock.spawn(comes_back.boxed());
        } else if !server.runtime.is_paused() {
            server.store.crash(Survives::Memory);
        }
        for (_, links) in &self.parties {
            links[member].cut();
            links[member].reconnect();
        }
    }

    async fn heal(&self) {
        // Members that must stay away do so.
        if self.forgetful {
            self.clock.sleep(DELAYED_RESTART).await;
        }
        for server in &self.servers {
            server.runtime.resume();
        }
        for (client, links) in &self.parties {
            for link in links {
                link.set_plan(FaultPlan::healthy());
                link.heal();
                link.let_go();
                link.reconnect();
            }
            client.resume();
        }
    }
}
