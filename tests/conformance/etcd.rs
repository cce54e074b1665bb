//! etcd as a subject: one server, or an ensemble of three.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dlock::etcd::Config;
use dlock::spi::Lock;
use dlock::{Capabilities, Client, Result, Runtime};
use dlock_conformance::hooks::{Hooks, Restart};
use dlock_conformance::{Claims, Cx, Need};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::capabilities_of;
use super::etcd_hooks::EtcdHooks;
use super::{Cluster, PREFIX, TIMEOUT};

/// How long a client may be silent until its locks are given away. The shortest ttl, and so what most rules
/// wait for.
const SESSION: Duration = Duration::from_secs(3);

/// Servers that this process started, or its parent: then without hooks.
pub(crate) struct Etcd {
    addresses: Vec<SocketAddr>,
    capabilities: Capabilities,
    hooks: Option<EtcdHooks>,
}

fn config(at: &str) -> Config {
    Config::new(at).prefix(PREFIX).session_timeout(SESSION)
}

async fn connect(at: String, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
    Ok(Arc::new(config(&at).timeout(TIMEOUT * 2).connect(runtime).await?))
}

impl Etcd {
    pub(crate) fn start(backend: &str, runtime: &Arc<dyn Runtime>) -> Self {
        let hooks = EtcdHooks::start(backend == "etcd-ensemble", PREFIX);
        let hooks = hooks.expect("etcd servers can be started");
        Self::new(hooks.addresses(), Some(hooks), runtime)
    }

    /// Those of the parent of this process, by what it [handed over](Cluster::handed_over).
    pub(crate) fn of_parent(place: &str, runtime: &Arc<dyn Runtime>) -> Self {
        let addresses = place.split(',').map(|at| at.parse().expect("an address is told"));
        Self::new(addresses.collect(), None, runtime)
    }

    fn new(addresses: Vec<SocketAddr>, hooks: Option<EtcdHooks>, runtime: &Arc<dyn Runtime>) -> Self {
        let opening = connect(joined(&addresses), runtime.clone());
        Self {
            addresses,
            capabilities: capabilities_of(runtime, opening.boxed()),
            hooks,
        }
    }
}

impl Cluster for Etcd {
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
        let url = format!("etcd://app:{secret}@{}", joined(&self.addresses));
        async move { dlock::connect(url).runtime(runtime).await }.boxed()
    }

    fn claims(&self) -> Claims {
        let product = match self.addresses.len() {
            1 => "dlock etcd",
            _ => "dlock etcd (ensemble)",
        };
        let claims = Claims::new(product, env!("CARGO_PKG_VERSION"), self.capabilities.clone())
            // A leader looks twice a second for leases that have ended.
            .slack(Duration::from_millis(1_000))
            // On each of the two a server may measure the connection, which the driver answers.
            .round_trips(4)
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
        self.hooks.as_ref().map(EtcdHooks::footprint)
    }

    fn handed_over(&self) -> String {
        format!("etcd {}", joined(&self.addresses))
    }
}

fn joined(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    all.join(",")
}
