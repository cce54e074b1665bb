//! The engine, the memory backend and the links together, under everything that can go wrong.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;

use super::executor::Sim;
use super::faults::FaultPlan;
use super::judge::{Backing, Judge};
use super::link::Link;
use super::nemesis::Nemesis;
use super::node::SimRuntime;
use super::rng::SimRng;
use super::worker::{Kind, MAX_TTL, Worker, released};
use crate::capabilities::Capability;
use crate::client::Client;
use crate::memory::{self, Memory};
use crate::name::LockName;
use crate::runtime::Runtime;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// How long after the end of all faults a call may still be on its way out: the longest that a message was
/// held back, and what the engine allows an operation.
pub(super) const SETTLING: Duration = Duration::from_secs(20);

/// What one seed showed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The hash of every decision: the same in each run of the seed.
    pub event_hash: u64,
    /// How many grants were accepted.
    pub grants: u64,
    /// The first invariant that was violated.
    pub violation: Option<String>,
    /// The log of the run, line by line, if it was asked for.
    pub trace: Vec<String>,
}

/// Whether a [`run`] writes down what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// It does.
    Keep,
    /// It does not; faster.
    None,
}

/// Runs one seed. Some clients, on faulty links and with clocks of their own, use some names at random while
/// a nemesis breaks things. Then everything is repaired, and the system must come to rest.
///
/// At every step no two valid guards conflict, each valid guard is backed by the store, lost guards stay lost
/// and tokens grow. After the mending every call returns, every name can be had within its ttl, the store
/// ends up empty, and a closed client leaves no task behind.
///
/// # Panics
/// If nothing can happen any more though the run has not ended, or a task panics; the message of the former
/// names the seed.
pub fn run(seed: u64, trace: Trace) -> Report {
    let sim = Sim::new(seed).with_limits(3_000_000, Duration::from_secs(600));
    if trace == Trace::Keep {
        sim.keep_trace();
    }
    let mut rng = sim.rng("scenario");
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

struct Setting {
    clock: Arc<dyn Runtime>,
    server: SimRuntime,
    store: Memory,
    judge: Arc<Judge>,
    names: Arc<[(LockName, Kind)]>,
    clients: Vec<(SimRuntime, Arc<Link>, Client)>,
    /// Added to every ttl. Where it is minutes nothing lapses within the run, so whatever is left behind is
    /// seen to stay in the way.
    extra_ttl: Duration,
}

impl Setting {
    fn new(sim: &Sim, rng: &mut SimRng) -> Self {
        let server = sim.client_runtime_with("server", 77 * SECOND, 0);
        // One `Arc` for both, so that the store's connections know that they share its clock.
        let on_server: Arc<dyn Runtime> = Arc::new(server.clone());
        let window = rng.chance(0.5).then(|| rng.duration(100 * MS..800 * MS));
        let mut config = memory::Config::new().claim_window(window);
        if rng.chance(0.2) {
            config = config.without(Capability::Queue).without(Capability::Priority);
        }
        let store = config.connect(on_server);
        let judge = Arc::new(Judge::new(sim.world(), Backing::Store(store.connect())));
        let names = (0..1 + rng.below(3))
            .map(|i| {
                let kind = match rng.below(3) {
                    0 => Kind::Exclusive,
                    1 => Kind::ReadWrite,
                    _ => Kind::Permits(1 + rng.below(3) as u32),
                };
                (LockName::new(format!("n{i}")).expect("not empty"), kind)
            })
            .collect();
        let mut setting = Self {
            clock: sim.runtime(),
            server,
            store,
            judge,
            names,
            clients: Vec::new(),
            extra_ttl: if rng.chance(0.5) {
                120 * SECOND
            } else {
                Duration::ZERO
            },
        };
        for i in 0..2 + rng.below(3) {
            let plan = drawn_plan(rng, setting.extra_ttl);
            setting
                .clients
                .push(setting.client(sim, rng, &format!("c{i}"), plan));
        }
        setting
    }

    /// A client whose clock is off by any amount and runs up to half a percent fast or slow; the margin is
    /// one percent.
    fn client(
        &self,
        sim: &Sim,
        rng: &mut SimRng,
        name: &str,
        plan: FaultPlan,
    ) -> (SimRuntime, Arc<Link>, Client) {
        let drift = rng.below(10_001) as i32 - 5_000;
        let runtime = sim.client_runtime_with(name, rng.duration(Duration::ZERO..SECOND * 1_000_000), drift);
        let link = if rng.chance(0.25) { Link::polled } else { Link::new };
        let link = link(self.store.connect(), &runtime, &self.server, plan);
        let client = Client::builder(link.clone(), Arc::new(runtime.clone()))
            .op_timeout(rng.duration(200 * MS..3 * SECOND))
            .build()
            .expect("the memory backend keeps its claims");
        (runtime, link, client)
    }

    async fn play(self, sim: &Sim, mut rng: SimRng) {
        let stop = Arc::new(AtomicBool::new(false));
        let mut ends = Vec::new();
        for (runtime, _, client) in &self.clients {
            for i in 0..1 + rng.below(3) {
                let worker = Worker {
                    who: format!("{}/{i}", runtime.node_name()),
                    client: client.clone(),
                    runtime: runtime.clone(),
                    judge: self.judge.clone(),
                    names: self.names.clone(),
                    stop: stop.clone(),
                    extra_ttl: self.extra_ttl,
                    has_priorities: client.capabilities().has(Capability::Priority),
                    has_upgrade: client.capabilities().has(Capability::Upgrade),
                    rng: rng.fork("worker"),
                };
                ends.push(spawn(runtime, worker.run()));
            }
        }
        let nemesis = Nemesis {
            clients: self
                .clients
                .iter()
                .map(|(r, l, _)| (r.clone(), l.clone()))
                .collect(),
            server: self.server.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            stop: stop.clone(),
            extra_ttl: self.extra_ttl,
            judge: self.judge.clone(),
            // Where nothing lapses, a lease that came up out of the old age's messages would stay in the way
            // for ever.
            forgetful: self.extra_ttl.is_zero() && rng.chance(0.5),
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
        // Their last guards go with them.
        if self
            .within(SETTLING, futures::future::join_all(ends))
            .await
            .is_none()
        {
            return self.judge.condemn(format!(
                "a call has not returned {SETTLING:?} after the last fault"
            ));
        }
        let (runtime, _, fresh) = self.client(sim, rng, "fresh", FaultPlan::healthy());
        for (name, kind) in self.names.iter() {
            // What a dead request left expires with its ttl; a hand-off to a waiter that is gone costs one
            // more ttl.
            let bound = 2 * MAX_TTL + SECOND;
            let since = self.judge.seniority(name);
            let lock = fresh.lock(name).expect("a name that was used before");
            match lock.acquire_timeout(bound).await {
                Ok(guard) => {
                    let guard = Arc::new(guard);
                    self.judge.acquired("fresh", &runtime, &guard, since);
                    if let Err(e) = released(guard).await {
                        self.judge
                            .condemn(format!("a release on a healthy link failed: {e:?}"));
                    }
                }
                Err(e) => self
                    .judge
                    .condemn(format!("{name} ({kind:?}) cannot be had within {bound:?}: {e:?}")),
            }
        }
        let mut closing: Vec<_> = self.clients.iter().map(|(r, _, c)| (r, c)).collect();
        closing.push((&runtime, &fresh));
        for (runtime, client) in closing {
            match self.within(SETTLING, client.close()).await {
                None => self
                    .judge
                    .condemn(format!("close of {} does not return", runtime.node_name())),
                Some(Err(e)) => self
                    .judge
                    .condemn(format!("close on a healthy link failed: {e:?}")),
                Some(Ok(())) => {}
            }
        }
        self.clock.sleep(2 * MAX_TTL + 10 * SECOND).await;
        for (runtime, _, _) in &self.clients {
            let left = runtime.tasks_alive();
            if left > 0 {
                self.judge
                    .condemn(format!("{} is closed and has {left} tasks", runtime.node_name()));
            }
        }
        self.must_be_empty().await;
    }

    async fn must_be_empty(&self) {
        let store = self.store.connect();
        let Some(watch) = store.watch() else { return };
        for (name, _) in self.names.iter() {
            match watch.inspect(name).await {
                Ok(now) if now.holders.is_empty() && now.waiting == 0 => {}
                other => self
                    .judge
                    .condemn(format!("the store keeps {name} for ever: {other:?}")),
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

/// The odds of one link. A copy of an attempt that arrives long after its release may be granted once more,
/// to nobody, until its ttl: that is allowed, so if nothing expires, nothing is sent twice.
pub(super) fn drawn_plan(rng: &mut SimRng, extra_ttl: Duration) -> FaultPlan {
    let mut plan = FaultPlan::random(rng);
    if !extra_ttl.is_zero() {
        plan.duplicate = 0.0;
    }
    plan
}

/// Spawns; the receiver ends with the task.
pub(super) fn spawn(
    runtime: &dyn Runtime,
    task: impl Future<Output = ()> + Send + 'static,
) -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    runtime.spawn(
        async move {
            task.await;
            let _ = ended.send(());
        }
        .boxed(),
    );
    end
}
