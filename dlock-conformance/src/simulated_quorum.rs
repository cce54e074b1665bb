//! A quorum over stores in the simulator: what the rules about quorums are proved on, and every other rule
//! that it claims.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::sim::{FaultPlan, Link, SimRuntime};
use dlock_core::spi::{Lock, capabilities_of};
use dlock_core::{Client, Memory, Result, Runtime, Strength};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::claims::{Claims, Need};
use crate::cx::Cx;
use crate::engine_subject::EngineSubject;
use crate::harness::{Clockwork, Harness};
use crate::network::Network;
use crate::simulated::SimulatedTime;
use crate::simulated_network::SimulatedNetwork;
use crate::subject::Subject;

/// How long a member is waited for that does not answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// One simulated world: memory stores, each on a server of its own, and clients of a quorum of them. Make a
/// new one for each run.
#[derive(Debug)]
pub struct SimulatedQuorum {
    clockwork: Arc<SimulatedTime>,
    members: Vec<(SimRuntime, Memory)>,
    plan: FaultPlan,
    clients: AtomicU64,
}

impl SimulatedQuorum {
    /// A correct quorum of so many stores, on a network without faults.
    pub fn new(seed: u64, members: usize) -> Self {
        Self::with(seed, members, FaultPlan::healthy())
    }

    /// One on a network like that.
    pub fn with(seed: u64, members: usize, plan: FaultPlan) -> Self {
        let clockwork = Arc::new(SimulatedTime::new(seed));
        let member = |n: usize| {
            let server = clockwork.machine(&format!("server {n}"));
            let store = Memory::builder(Arc::new(server.clone()))
                .strength(Strength::AcrossRestart)
                .build();
            (server, store)
        };
        Self {
            members: (0..members).map(member).collect(),
            clockwork,
            plan,
            clients: AtomicU64::new(0),
        }
    }

    /// A number that is the same for two runs that decided the same.
    pub fn event_hash(&self) -> u64 {
        self.clockwork.event_hash()
    }

    /// The machine of one more client.
    fn node(&self) -> SimRuntime {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        self.clockwork.machine(&format!("client {number}"))
    }

    fn links(&self, node: &SimRuntime, plan: &FaultPlan) -> Vec<Arc<Link>> {
        let link =
            |(server, store): &(SimRuntime, Memory)| Link::new(store.connect(), node, server, plan.clone());
        self.members.iter().map(link).collect()
    }

    fn quorum(&self, links: &[Arc<Link>], runtime: Arc<dyn Runtime>) -> Result<Quorum> {
        let members = links
            .iter()
            .map(|link| Arc::clone(link) as Arc<dyn Lock>)
            .collect();
        Quorum::new(members, runtime, PATIENCE)
    }

    fn client(&self, links: &[Arc<Link>], runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Subject>> {
        let quorum = self.quorum(links, Arc::clone(&runtime))?;
        let client = Client::builder(Arc::new(quorum), runtime).build()?;
        Ok(Arc::new(EngineSubject::new(client)))
    }
}

impl Harness for SimulatedQuorum {
    fn claims(&self) -> Claims {
        let node = self.clockwork.machine("claims");
        let quorum = self.quorum(&self.links(&node, &self.plan), Arc::new(node));
        let capabilities = capabilities_of(&quorum.expect("memory stores can be a quorum"));
        let members = self.members.len();
        // To each member a request to acquire and one to release, and to all but one of a majority one to
        // raise.
        let requests = u32::try_from(3 * members).unwrap_or(u32::MAX);
        Claims::new(
            "dlock quorum (simulated)",
            env!("CARGO_PKG_VERSION"),
            capabilities,
        )
        .slack(Duration::from_millis(50))
        .op_bound(Duration::from_millis(500))
        // Who waits looks every tenth of a second at the least.
        .wake_p99(Duration::from_millis(200))
        .cancel_prompt(Duration::from_millis(50))
        .drop_prompt(Duration::from_millis(50))
        .round_trips(requests)
        .quorum(members)
        .without(Need::BoundedWakes)
        .without(Need::Secrets)
        .reentrant()
        .traced()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.clockwork.runtime()
    }

    fn network(&self, _: &Cx) -> io::Result<Option<Arc<dyn Network>>> {
        let servers = self.members.iter().map(|(server, _)| server.clone()).collect();
        Ok(Some(Arc::new(SimulatedNetwork::new(servers))))
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move {
            let node = self.node();
            let network = cx.route::<SimulatedNetwork>();
            let mut plan = self.plan.clone();
            if network.is_some() {
                // What the network loses is waited for: it is the quorum's to give up.
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

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let node = self.clockwork.machine("a client of nobody");
        let links = self.links(&node, &self.plan);
        links.iter().for_each(|link| link.cut());
        let client = self.client(&links, Arc::new(node));
        Some(futures::future::ready(client).boxed())
    }

    fn connect_on<'a>(
        &'a self,
        _: &'a Cx,
        runtime: Arc<dyn Runtime>,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let links = self.links(&self.node(), &self.plan);
        let client = self.client(&links, runtime);
        Some(futures::future::ready(client).boxed())
    }

    fn footprint<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        let sizes = self.members.iter().map(|(_, store)| store.sizes());
        // Without the tombstones, which are gone after a minute: a member that was not waited for is sent an
        // abandon.
        let all = sizes.map(|s| s.names + s.queued + s.listeners + s.watchers);
        Some(futures::future::ready(Ok(all.sum::<usize>() as u64)).boxed())
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        Arc::clone(&self.clockwork) as _
    }
}
