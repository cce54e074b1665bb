//! ZooKeeper as a subject: one server, or an ensemble of three.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dlock::spi::Lock;
use dlock::zookeeper::Config;
use dlock::{Capabilities, Client, Result, Runtime};
use dlock_conformance::hooks::{Hooks, Restart};
use dlock_conformance::{Claims, Cx, Need};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::capabilities_of;
use super::zookeeper_hooks::ZkHooks;
use super::{Cluster, TIMEOUT};

/// How long a client may be silent until its locks are given away. The shortest ttl, and so what most rules
/// wait for.
const SESSION: Duration = Duration::from_secs(4);
/// How long it may take to be connected. A server that is busy with sixteen clients at once, beside a machine
/// that is, needs a while.
const CONNECT: Duration = Duration::from_secs(4);

/// Below what all nodes are.
const ROOT: &str = "/dlock";

/// Servers that this process started, or its parent: then without hooks.
pub(crate) struct ZooKeeper {
    addresses: Vec<SocketAddr>,
    capabilities: Capabilities,
    hooks: Option<ZkHooks>,
}

fn config(at: &str) -> Config {
    Config::new(at).root(ROOT).session_timeout(SESSION)
}

async fn connect(at: String, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
    Ok(Arc::new(config(&at).timeout(CONNECT).connect(runtime).await?))
}

impl ZooKeeper {
    pub(crate) fn start(backend: &str, runtime: &Arc<dyn Runtime>) -> Self {
        let hooks = ZkHooks::start(backend == "zookeeper-ensemble", ROOT);
        let hooks = hooks.expect("ZooKeeper servers can be started");
        Self::new(hooks.addresses(), Some(hooks), runtime)
    }

    /// Those of the parent of this process, by what it [handed over](Cluster::handed_over).
    pub(crate) fn of_parent(place: &str, runtime: &Arc<dyn Runtime>) -> Self {
        let addresses = place.split(',').map(|at| at.parse().expect("an address is told"));
        Self::new(addresses.collect(), None, runtime)
    }

    fn new(addresses: Vec<SocketAddr>, hooks: Option<ZkHooks>, runtime: &Arc<dyn Runtime>) -> Self {
        let (on, at) = (runtime.clone(), joined(&addresses));
        let opening = async move {
            let lock = config(&at).connect(on).await?;
            Ok(Arc::new(lock) as Arc<dyn Lock>)
        };
        Self {
            addresses,
            capabilities: capabilities_of(runtime, opening.boxed()),
            hooks,
        }
    }
}

impl Cluster for ZooKeeper {
    fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn open<'a>(&'a self, cx: &Cx, runtime: Arc<dyn Runtime>) -> BoxFuture<'a, Result<Arc<dyn Lock>>> {
        let address = |(n, at): (usize, &SocketAddr)| cx.addr(n).and_then(|a| a.tcp()).unwrap_or(*at);
        let addresses: Vec<_> = self.addresses.iter().enumerate().map(address).collect();
        connect(joined(&addresses), runtime).boxed()
    }

    fn open_nowhere(&self, runtime: Arc<dyn Runtime>) -> BoxFuture<'_, Result<Arc<dyn Lock>>> {
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9)).to_string();
        connect(nobody, runtime).boxed()
    }

    fn connect_with(&self, secret: &str, runtime: Arc<dyn Runtime>) -> BoxFuture<'_, Result<Client>> {
        let at = joined(&self.addresses);
        let url = format!("zk://app:{secret}@{at}?session_timeout=3s");
        async move { dlock::connect(url).runtime(runtime).await }.boxed()
    }

    fn claims(&self) -> Claims {
        let product = match self.addresses.len() {
            1 => "dlock ZooKeeper",
            _ => "dlock ZooKeeper (ensemble)",
        };
        let claims = Claims::new(product, env!("CARGO_PKG_VERSION"), self.capabilities.clone())
            // A guard is valid for two thirds of a session, and the server gives its lock away at the first
            // tick after the whole of it.
            .slack(SESSION / 3 + Duration::from_millis(300))
            // The driver leaves small packets to Nagle's algorithm: create and list, or the line and both,
            // are often two.
            .round_trips(3)
            .survives(Restart::Crash)
            .give_up(TIMEOUT * 2 + Duration::from_millis(500));
        match self.addresses.len() {
            1 => claims,
            _ => claims.claim(Need::SafeFailover),
        }
    }

    fn hooks(&self) -> Option<&dyn Hooks> {
        self.hooks.as_ref().map(|hooks| hooks as &dyn Hooks)
    }

    fn footprint(&self) -> Option<BoxFuture<'_, Result<u64>>> {
        self.hooks.as_ref().map(ZkHooks::footprint)
    }

    fn handed_over(&self) -> String {
        format!("zookeeper {}", joined(&self.addresses))
    }
}

fn joined(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    all.join(",")
}
