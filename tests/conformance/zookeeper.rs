//! ZooKeeper as a subject: one server, or an ensemble of three; and one server with priorities.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dlock::spi::Lock;
use dlock::{Capabilities, Client, Result, Runtime};
use dlock_conformance::hooks::Restart;
use dlock_conformance::{Claims, Cx};
use futures::FutureExt;

use super::TIMEOUT;
use super::capabilities_of;
use super::zookeeper_hooks::ZkHooks;

/// How long a client may be silent until its locks are given away. The shortest ttl, and so what most rules wait for.
const SESSION: Duration = Duration::from_secs(4);
/// How long it may take to be connected. A server that is busy with sixteen clients at once, beside a machine that is, needs a while.
const CONNECT: Duration = Duration::from_secs(4);

/// Below what all nodes are.
const ROOT: &str = "/dlock";

/// Servers that this process started, or its parent: then without hooks.
pub(crate) struct ZooKeeper {
    way: Way,
    addresses: Vec<SocketAddr>,
    capabilities: Capabilities,
    pub(crate) hooks: Option<ZkHooks>,
}

/// In which way its locks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    InTurn,
    Priorities,
}

impl Way {
    fn of(backend: &str) -> Self {
        match backend {
            "zookeeper-priorities" => Self::Priorities,
            _ => Self::InTurn,
        }
    }

    fn builder(self) -> dlock::zookeeper::Builder {
        let builder = dlock::zookeeper::builder().root(ROOT).session_timeout(SESSION);
        match self {
            Self::InTurn => builder,
            Self::Priorities => builder.priorities(),
        }
    }

    async fn open_at(self, at: &str, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        Ok(Arc::new(self.builder().timeout(CONNECT).open(at, runtime).await?))
    }
}

impl ZooKeeper {
    pub(crate) fn start(backend: &str, runtime: &Arc<dyn Runtime>) -> Self {
        let hooks = ZkHooks::start(backend == "zookeeper-ensemble", ROOT);
        let hooks = hooks.expect("ZooKeeper servers can be started");
        Self::new(Way::of(backend), hooks.addresses(), Some(hooks), runtime)
    }

    /// Those of the parent of this process, by what it [handed over](Self::handed_over).
    pub(crate) fn of_parent(backend: &str, place: &str, runtime: &Arc<dyn Runtime>) -> Self {
        let addresses = place.split(',').map(|at| at.parse().expect("an address is told"));
        Self::new(Way::of(backend), addresses.collect(), None, runtime)
    }

    fn new(way: Way, addresses: Vec<SocketAddr>, hooks: Option<ZkHooks>, runtime: &Arc<dyn Runtime>) -> Self {
        let (on, at) = (runtime.clone(), joined(&addresses));
        let opening = async move {
            let lock = way.builder().open(&at, on).await?;
            Ok(Arc::new(lock) as Arc<dyn Lock>)
        };
        Self {
            way,
            addresses,
            capabilities: capabilities_of(runtime, opening.boxed()),
            hooks,
        }
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A client of its servers, by the proxies before them.
    pub(crate) async fn open(&self, cx: &Cx, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        let address = |(n, at): (usize, &SocketAddr)| cx.addr(n).and_then(|a| a.tcp()).unwrap_or(*at);
        let addresses: Vec<_> = self.addresses.iter().enumerate().map(address).collect();
        self.way.open_at(&joined(&addresses), runtime).await
    }

    /// One of a server that is not there.
    pub(crate) async fn open_nowhere(&self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9)).to_string();
        self.way.open_at(&nobody, runtime).await
    }

    /// One who has a password.
    pub(crate) async fn connect_with(&self, secret: &str, runtime: Arc<dyn Runtime>) -> Result<Client> {
        let more = match self.way {
            Way::InTurn => "",
            Way::Priorities => "&priorities=true",
        };
        let at = joined(&self.addresses);
        let url = format!("zk://app:{secret}@{at}?session_timeout=3s{more}");
        dlock::connect(url).runtime(runtime).await
    }

    pub(crate) fn claims(&self) -> Claims {
        let product = match self.addresses.len() {
            1 if self.way == Way::Priorities => "dlock ZooKeeper (priorities)",
            1 => "dlock ZooKeeper",
            _ => "dlock ZooKeeper (ensemble)",
        };
        let claims = Claims::new(product, env!("CARGO_PKG_VERSION"), self.capabilities.clone())
            // A guard is valid for two thirds of a session, and the server gives its lock away at the first tick after the whole of it.
            .slack(SESSION / 3 + Duration::from_millis(300))
            // The driver leaves small packets to Nagle's algorithm: create and list, or the line and both, are often two.
            .round_trips(match self.way {
                Way::InTurn => 3,
                // One more to take it.
                Way::Priorities => 4,
            })
            .survives(Restart::Crash)
            .give_up(TIMEOUT * 2 + Duration::from_millis(500));
        match self.addresses.len() {
            1 => claims,
            _ => claims.safe_failover(),
        }
    }

    /// What a child of this process has to know.
    pub(crate) fn handed_over(&self) -> String {
        let backend = match self.way {
            Way::InTurn => "zookeeper",
            Way::Priorities => "zookeeper-priorities",
        };
        format!("{backend} {}", joined(&self.addresses))
    }
}

fn joined(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    all.join(",")
}
