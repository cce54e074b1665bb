//! The backends and the runtimes, and how a client of one on the other is made.

#[path = "etcd.rs"]
mod etcd;
#[path = "etcd_hooks.rs"]
mod etcd_hooks;
#[path = "redis_hooks.rs"]
mod redis_hooks;
#[path = "redlock.rs"]
mod redlock;
#[path = "sql.rs"]
mod sql;
#[path = "sql_hooks.rs"]
mod sql_hooks;
#[path = "sqlite_hooks.rs"]
mod sqlite_hooks;
#[path = "zookeeper.rs"]
mod zookeeper;
#[path = "zookeeper_hooks.rs"]
mod zookeeper_hooks;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock::runtime::{AsyncStd, Smol, Tokio};
use dlock::spi::{self, Lock};
use dlock::{Capabilities, Client, Memory, Result, Runtime, Timestamp, memory};
use dlock::{redis, sqlite};
use dlock_conformance::hooks::{Hooks, MemoryHooks, Restart};
use dlock_conformance::proxy::ServerAddress;
use dlock_conformance::{Claims, Cx, EngineSubject, Harness, Need, Subject};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::BoxFuture;

use self::RuntimeKind::{AsyncStdGlobal, SmolGlobal, TokioCurrentThread, TokioMultiThread};
use self::etcd::Etcd;
use self::redis_hooks::RedisHooks;
use self::redlock::RedlockHooks;
use self::sql::{Sql, Way};
use self::sqlite_hooks::SqliteHooks;
use self::zookeeper::ZooKeeper;
use dlock_testkit::{Persistence, RedisCluster, RedisOptions, RedisPair, RedisServer};

const EVERY_RUNTIME: &[RuntimeKind] = &[TokioMultiThread, TokioCurrentThread, AsyncStdGlobal, SmolGlobal];

/// Every rule runs on the first runtime of each. Redlock is a quorum of five Redis servers.
pub(crate) const BACKENDS: [(&str, &[RuntimeKind]); 15] = [
    // What takes longest comes first.
    ("mariadb-session", EVERY_RUNTIME),
    ("postgres-session", EVERY_RUNTIME),
    ("zookeeper", EVERY_RUNTIME),
    ("zookeeper-ensemble", EVERY_RUNTIME),
    ("etcd", EVERY_RUNTIME),
    ("etcd-ensemble", EVERY_RUNTIME),
    ("postgres", EVERY_RUNTIME),
    ("postgres-pooler", &[TokioMultiThread]),
    ("redlock", &[TokioMultiThread, AsyncStdGlobal, SmolGlobal]),
    ("mariadb", EVERY_RUNTIME),
    ("redis", EVERY_RUNTIME),
    ("redis-cluster", EVERY_RUNTIME),
    ("sqlite", EVERY_RUNTIME),
    ("redis-plain", &[TokioMultiThread]),
    ("memory", EVERY_RUNTIME),
];

/// Whether it sleeps for most of its time: its leases are seconds.
pub(crate) fn sleeps(backend: &str) -> bool {
    backend.ends_with("-session") || is_cluster(backend)
}

/// Whether its servers are a quorum by themselves.
fn is_cluster(backend: &str) -> bool {
    backend.starts_with("zookeeper") || backend.starts_with("etcd")
}

/// Whether it keeps the processors busy for minutes: then only what sleeps runs beside it.
pub(crate) fn is_heavy(backend: &str) -> bool {
    matches!(backend, "postgres" | "postgres-pooler")
}

/// Whether it is the same code as another backend, on other servers: then the smoke set on one runtime does,
/// unless more is asked for.
pub(crate) fn is_mostly_another(backend: &str) -> bool {
    matches!(backend, "zookeeper-ensemble" | "etcd-ensemble")
}

/// Whether there is a server that a proxy can be put before: for access P.
pub(crate) fn has_server(backend: &str) -> bool {
    Way::of(backend).is_some()
        || is_cluster(backend)
        || matches!(backend, "redis" | "redis-plain" | "redlock")
}

/// Of an operation, where there is a server. Short, so that the rules that wait for it are.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How many times the mean wait a waiter may wait without a queue: the releasing client is the first to ask
/// again, and the others have a chance at each poll.
const NO_QUEUE: u32 = 40;

/// What the keys of the locks begin with.
const PREFIX: &str = "dlock";
/// How long a quorum waits for a member that does not answer.
const PATIENCE: Duration = Duration::from_millis(400);
/// How a quorum of Redis servers is opened.
const REDLOCK: (&str, Duration, Duration) = (PREFIX, TIMEOUT, PATIENCE);

pub(crate) fn labels() -> Vec<String> {
    let all = BACKENDS
        .iter()
        .flat_map(|(b, runtimes)| runtimes.iter().map(move |r| format!("{b}-{}", r.name())));
    all.collect()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RuntimeKind {
    TokioMultiThread,
    TokioCurrentThread,
    AsyncStdGlobal,
    SmolGlobal,
}

impl RuntimeKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TokioMultiThread => "tokio-multi-thread",
            Self::TokioCurrentThread => "tokio-current-thread",
            Self::AsyncStdGlobal => "async-std",
            Self::SmolGlobal => "smol",
        }
    }

    fn start(self) -> Arc<dyn Runtime> {
        let inner = match self {
            Self::TokioMultiThread => {
                let tokio = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build();
                // For as long as the process runs: tasks of one rule may end after it.
                let tokio: &'static _ = Box::leak(Box::new(tokio.expect("threads can be started")));
                Tokio::from_handle(tokio.handle().clone())
            }
            Self::TokioCurrentThread => {
                let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let tokio = tokio.expect("a runtime can be made");
                let handle = tokio.handle().clone();
                std::thread::spawn(move || tokio.block_on(std::future::pending::<()>()));
                Tokio::from_handle(handle)
            }
            Self::AsyncStdGlobal => AsyncStd::global(),
            Self::SmolGlobal => Smol::global(),
        };
        Arc::new(Named {
            inner: inner.expect("its feature is on"),
            name: self.name(),
        })
    }
}

/// A runtime under the name that the report shows: tokio is tested in two forms.
#[derive(Debug)]
struct Named {
    inner: Arc<dyn Runtime>,
    name: &'static str,
}

impl Runtime for Named {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }
    fn now(&self) -> Timestamp {
        self.inner.now()
    }
    fn fill_random(&self, buffer: &mut [u8]) {
        self.inner.fill_random(buffer);
    }
    fn name(&self) -> &'static str {
        self.name
    }
}

/// Clients of one backend on one runtime.
pub(crate) struct Subjects {
    runtime: Arc<dyn Runtime>,
    kind: RuntimeKind,
    store: Store,
}

enum Store {
    Memory(Memory, MemoryHooks),
    /// Each client opens the file separately, as another process would.
    Sqlite {
        directory: PathBuf,
        capabilities: Capabilities,
        hooks: SqliteHooks,
        /// Of the process that made it; a child of that only uses it.
        _owned: Option<tempfile::TempDir>,
    },
    /// Plain locks in a server that this process started, or its parent.
    PlainRedis {
        address: SocketAddr,
        capabilities: Capabilities,
        server: Option<Arc<RedisServer>>,
    },
    /// Servers that this process started, or its parent: then without hooks.
    Redis {
        place: RedisPlace,
        capabilities: Capabilities,
        hooks: Option<RedisHooks>,
    },
    /// A majority of five such servers; likewise.
    Redlock {
        addresses: Vec<SocketAddr>,
        capabilities: Capabilities,
        hooks: Option<RedlockHooks>,
    },
    Cluster(Box<dyn Cluster>),
    Sql(Sql),
}

/// Where a client of Redis finds it.
enum RedisPlace {
    /// One address, or in its place that of a proxy.
    Server(SocketAddr),
    /// The nodes, any of which tells where the others are: a client goes to those addresses, past any proxy.
    Cluster(Vec<SocketAddr>),
}

impl RedisPlace {
    fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// What comes behind the scheme.
    fn hosts(&self, cx: Option<&Cx>) -> String {
        match self {
            Self::Server(address) => {
                let proxy = cx.and_then(|cx| cx.addr(0)).and_then(|a| a.tcp());
                proxy.unwrap_or(*address).to_string()
            }
            Self::Cluster(nodes) => nodes
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(","),
        }
    }

    fn read(is_cluster: bool, hosts: &str) -> Self {
        let mut nodes = hosts.split(',').map(|at| at.parse().expect("an address is told"));
        match is_cluster {
            true => Self::Cluster(nodes.collect()),
            false => Self::Server(nodes.next().expect("an address is told")),
        }
    }

    fn scheme(&self) -> &'static str {
        if self.is_cluster() {
            "redis+cluster"
        } else {
            "redis"
        }
    }

    fn url(&self, cx: Option<&Cx>) -> String {
        format!("{}://{}", self.scheme(), self.hosts(cx))
    }
}

impl Subjects {
    pub(crate) fn new(backend: &str, kind: RuntimeKind) -> Self {
        let runtime = kind.start();
        let store = match backend {
            "memory" => {
                // Limits that no rule meets but the one about limits.
                let config = memory::Config::new().max_held(Some(1_200)).max_waiters(Some(600));
                let store = config.connect(runtime.clone());
                Store::Memory(store.clone(), MemoryHooks::new(store))
            }
            "redis-plain" => {
                let server = RedisServer::start().expect("a Redis server can be started");
                let address = server.address();
                return Self::plain_redis(kind, address, Some(Arc::new(server)));
            }
            "redis" => {
                // A master and its replica. Everything that a server has answered it has after a crash too;
                // and it has a clock that rules may set.
                let options = RedisOptions::new().persistence(Persistence::Always).own_clock();
                let pair = RedisPair::with(options).expect("Redis servers can be started");
                let place = RedisPlace::Server(pair.address());
                let hooks = RedisHooks::new(redis_hooks::Store::Pair(Arc::new(pair)), PREFIX);
                return Self::redis(kind, place, Some(hooks));
            }
            "redis-cluster" => {
                let options = RedisOptions::new().persistence(Persistence::Always).own_clock();
                let cluster = RedisCluster::with(options, false).expect("a Redis cluster can be started");
                let place = RedisPlace::Cluster(cluster.addresses());
                let hooks = RedisHooks::new(redis_hooks::Store::Cluster(Arc::new(cluster)), PREFIX);
                return Self::redis(kind, place, Some(hooks));
            }
            "redlock" => {
                let hooks = RedlockHooks::start(PREFIX).expect("Redis servers can be started");
                return Self::redlock(kind, hooks.addresses(), Some(hooks));
            }
            _ if backend.starts_with("zookeeper") => {
                Store::Cluster(Box::new(ZooKeeper::start(backend, &runtime)))
            }
            _ if backend.starts_with("etcd") => Store::Cluster(Box::new(Etcd::start(backend, &runtime))),
            _ if Way::of(backend).is_some() => {
                let way = Way::of(backend).expect("it is one of these");
                Store::Sql(Sql::start(way, &runtime))
            }
            _ => {
                let directory =
                    tempfile::tempdir_in(dlock_testkit::temporary()).expect("a directory can be made");
                return Self::sqlite(kind, directory.path().to_owned(), Some(directory));
            }
        };
        Self { runtime, kind, store }
    }

    fn sqlite(kind: RuntimeKind, directory: PathBuf, owned: Option<tempfile::TempDir>) -> Self {
        let runtime = kind.start();
        let hooks = SqliteHooks::new(directory.join("locks.sqlite"), runtime.clone());
        let opened = futures::executor::block_on(hooks.open()).expect("the file can be opened");
        let capabilities = spi::capabilities_of(&*opened);
        // Only the clients of rules have it open: a restart is that they end.
        futures::executor::block_on(opened.close()).expect("it can be closed again");
        let store = Store::Sqlite {
            directory,
            capabilities,
            hooks,
            _owned: owned,
        };
        Self { runtime, kind, store }
    }

    fn redis(kind: RuntimeKind, place: RedisPlace, hooks: Option<RedisHooks>) -> Self {
        let runtime = kind.start();
        let (on, url) = (runtime.clone(), place.url(None));
        let opening = async move {
            redis::Config::from_url(&url)?
                .connect(on)
                .await
                .map(|l| Arc::new(l) as Arc<dyn Lock>)
        };
        let store = Store::Redis {
            place,
            capabilities: capabilities_of(&runtime, opening.boxed()),
            hooks,
        };
        Self { runtime, kind, store }
    }

    fn plain_redis(kind: RuntimeKind, address: SocketAddr, server: Option<Arc<RedisServer>>) -> Self {
        let runtime = kind.start();
        let url = format!("redis://{address}");
        let on = runtime.clone();
        let opening = async move {
            redis::Config::from_url(&url)?
                .connect_plain(on)
                .await
                .map(|l| Arc::new(l) as Arc<dyn Lock>)
        };
        let store = Store::PlainRedis {
            address,
            capabilities: capabilities_of(&runtime, opening.boxed()),
            server,
        };
        Self { runtime, kind, store }
    }

    fn redlock(kind: RuntimeKind, addresses: Vec<SocketAddr>, hooks: Option<RedlockHooks>) -> Self {
        let runtime = kind.start();
        let opened = redlock::quorum(&addresses, REDLOCK, runtime.clone(), false);
        // No server is asked for that.
        let opened = futures::executor::block_on(opened).expect("Redis servers can be a quorum");
        let store = Store::Redlock {
            addresses,
            capabilities: spi::capabilities_of(&*opened),
            hooks,
        };
        Self { runtime, kind, store }
    }

    /// Of a SQLite file: the one by whose locks it is told who writes.
    #[allow(dead_code)] // the crash test asks
    pub(crate) fn shared_memory(&self) -> PathBuf {
        match &self.store {
            Store::Sqlite { directory, .. } => directory.join("locks.sqlite-shm"),
            _ => PathBuf::new(),
        }
    }

    /// In a child process: the same store on the same runtime, by what [`hand_over`](Harness::hand_over)
    /// told.
    pub(crate) fn of_a_child(told: &str) -> Self {
        let mut told = told.splitn(3, ' ');
        let mut next = || told.next().expect("a runtime, a backend and its place are told");
        let (runtime, backend, place) = (next(), next(), next());
        let mut all = BACKENDS.iter().flat_map(|(_, runtimes)| runtimes.iter());
        let kind = all
            .find(|kind| kind.name() == runtime)
            .expect("it is one of ours");
        if backend == "sqlite" {
            return Self::sqlite(*kind, PathBuf::from(place), None);
        }
        if backend == "redis-plain" {
            return Self::plain_redis(*kind, place.parse().expect("an address is told"), None);
        }
        if backend.starts_with("redis") {
            return Self::redis(*kind, RedisPlace::read(backend == "redis-cluster", place), None);
        }
        if backend == "redlock" {
            let addresses = place.split(',').map(|at| at.parse().expect("an address is told"));
            return Self::redlock(*kind, addresses.collect(), None);
        }
        let runtime = kind.start();
        let cluster: Option<Box<dyn Cluster>> = match backend {
            "zookeeper" => Some(Box::new(ZooKeeper::of_parent(place, &runtime))),
            "etcd" => Some(Box::new(Etcd::of_parent(place, &runtime))),
            _ => None,
        };
        if let Some(cluster) = cluster {
            let store = Store::Cluster(cluster);
            return Self {
                runtime,
                kind: *kind,
                store,
            };
        }
        if let Some(way) = Way::of(backend) {
            let store = Store::Sql(Sql::of_parent(way, place, &runtime));
            return Self {
                runtime,
                kind: *kind,
                store,
            };
        }
        unreachable!("of {backend} no child is told")
    }

    async fn backend(&self, cx: &Cx, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        match &self.store {
            Store::Memory(store, _) => Ok(store.connect()),
            Store::Sqlite { hooks, .. } => hooks.open_on(runtime).await,
            Store::Redis { place, .. } => self.redis_at(&place.url(Some(cx)), runtime).await,
            Store::PlainRedis { address, .. } => {
                let address = cx.addr(0).and_then(|a| a.tcp()).unwrap_or(*address);
                self.redis_at(&format!("redis://{address}"), runtime).await
            }
            Store::Redlock { addresses, .. } => {
                let address = |(n, at): (usize, &SocketAddr)| cx.addr(n).and_then(|a| a.tcp()).unwrap_or(*at);
                let addresses: Vec<_> = addresses.iter().enumerate().map(address).collect();
                redlock::quorum(&addresses, REDLOCK, runtime, true).await
            }
            Store::Cluster(store) => store.open(cx, runtime).await,
            Store::Sql(store) => store.open(cx, runtime).await,
        }
    }

    async fn redis_at(&self, url: &str, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        let config = redis::Config::from_url(url)?.timeout(TIMEOUT);
        if let Store::PlainRedis { .. } = self.store {
            return Ok(Arc::new(config.connect_plain(runtime).await?));
        }
        Ok(Arc::new(config.prefix(PREFIX).connect(runtime).await?))
    }

    fn client(&self, backend: Arc<dyn Lock>, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Subject>> {
        let mut builder = Client::builder(backend, runtime);
        match &self.store {
            Store::Memory(..) | Store::Sqlite { .. } => {}
            Store::Sql(store) => builder = builder.op_timeout(store.timeout()),
            _ => builder = builder.op_timeout(TIMEOUT),
        }
        Ok(Arc::new(EngineSubject::new(builder.build()?)))
    }
}

/// What a backend claims, opened there where its connection lives, and not on this thread, which is of no
/// runtime.
fn capabilities_of(
    runtime: &Arc<dyn Runtime>,
    opening: BoxFuture<'static, Result<Arc<dyn Lock>>>,
) -> Capabilities {
    let (tell, told) = oneshot::channel();
    runtime.spawn(
        async move {
            let opened = opening.await.expect("the server is there");
            let capabilities = spi::capabilities_of(&*opened);
            opened.close().await.expect("it can be closed again");
            drop(tell.send(capabilities));
        }
        .boxed(),
    );
    futures::executor::block_on(told).expect("it was opened")
}

/// Servers that are a quorum by themselves, and clients of them.
trait Cluster: Send + Sync {
    fn addresses(&self) -> &[SocketAddr];

    /// A client of its servers, by the proxies before them.
    fn open<'a>(&'a self, cx: &Cx, runtime: Arc<dyn Runtime>) -> BoxFuture<'a, Result<Arc<dyn Lock>>>;

    /// One of a server that is not there.
    fn open_nowhere(&self, runtime: Arc<dyn Runtime>) -> BoxFuture<'_, Result<Arc<dyn Lock>>>;

    /// One who has a password.
    fn connect_with(&self, secret: &str, runtime: Arc<dyn Runtime>) -> BoxFuture<'_, Result<Client>>;

    fn claims(&self) -> Claims;

    fn hooks(&self) -> Option<&dyn Hooks>;

    fn footprint(&self) -> Option<BoxFuture<'_, Result<u64>>>;

    /// What a child of this process has to know.
    fn handed_over(&self) -> String;
}

impl Harness for Subjects {
    fn claims(&self) -> Claims {
        if let Store::Sql(store) = &self.store {
            return store.claims().claim(Need::Reentrant).claim(Need::Events);
        }
        if let Store::Cluster(store) = &self.store {
            return store.claims().claim(Need::Reentrant).claim(Need::Events);
        }
        let (product, capabilities, slack) = match &self.store {
            Store::Memory(store, _) => ("dlock memory", spi::capabilities_of(&*store.connect()), 150),
            Store::Sqlite { capabilities, .. } => ("dlock SQLite", capabilities.clone(), 400),
            Store::Redis {
                place, capabilities, ..
            } => {
                let product = if place.is_cluster() {
                    "dlock Redis Cluster"
                } else {
                    "dlock Redis"
                };
                (product, capabilities.clone(), 250)
            }
            Store::PlainRedis { capabilities, .. } => {
                ("dlock Redis, plain recipe", capabilities.clone(), 250)
            }
            Store::Redlock { capabilities, .. } => ("dlock Redlock", capabilities.clone(), 250),
            Store::Cluster(_) | Store::Sql(_) => unreachable!("above"),
        };
        let claims = Claims::new(product, env!("CARGO_PKG_VERSION"), capabilities)
            .slack(Duration::from_millis(slack))
            .claim(Need::Reentrant)
            .claim(Need::Events);
        match &self.store {
            Store::Memory(..) => claims
                .survives(Restart::InOrder)
                .without(Need::Network)
                .without(Need::Processes),
            Store::Sqlite { .. } => claims.survives(Restart::Crash).without(Need::Network),
            Store::PlainRedis { .. } => claims
                .give_up(TIMEOUT * 2 + Duration::from_millis(500))
                // Waiters poll at least every tenth of a second, in each client.
                .wake_p99(Duration::from_millis(250))
                .starvation_factor(NO_QUEUE)
                .without(Need::BoundedWakes),
            Store::Redis { .. } => claims
                .survives(Restart::Crash)
                .give_up(TIMEOUT * 2 + Duration::from_millis(500)),
            Store::Redlock { .. } => claims
                .survives(Restart::InOrder)
                .quorum(redlock::MEMBERS)
                .give_up(TIMEOUT * 2 + Duration::from_millis(500))
                .wake_p99(Duration::from_millis(300))
                .starvation_factor(NO_QUEUE)
                .without(Need::BoundedWakes)
                // As above; two of a majority of three may have to be raised.
                .round_trips(3 * redlock::MEMBERS as u32),
            Store::Cluster(_) | Store::Sql(_) => claims,
        }
    }

    fn hooks(&self) -> Option<&dyn Hooks> {
        Some(match &self.store {
            Store::Memory(_, hooks) => hooks,
            Store::PlainRedis { .. } => return None,
            Store::Sqlite { hooks, .. } => hooks,
            Store::Redis { hooks, .. } => hooks.as_ref()?,
            Store::Redlock { hooks, .. } => hooks.as_ref()?,
            Store::Cluster(store) => store.hooks()?,
            Store::Sql(store) => store.hooks.as_ref()?,
        })
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    fn servers(&self) -> Vec<ServerAddress> {
        match &self.store {
            Store::Redis {
                place: RedisPlace::Server(address),
                ..
            }
            | Store::PlainRedis { address, .. } => vec![(*address).into()],
            Store::Redlock { addresses, .. } => addresses.iter().map(|at| (*at).into()).collect(),
            Store::Sql(store) => vec![store.address().into()],
            Store::Cluster(store) => store.addresses().iter().map(|at| (*at).into()).collect(),
            _ => Vec::new(),
        }
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move {
            let backend = self.backend(cx, self.runtime.clone()).await?;
            self.client(backend, self.runtime.clone())
        }
        .boxed()
    }

    fn connect_on<'a>(
        &'a self,
        cx: &'a Cx,
        runtime: Arc<dyn Runtime>,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let connecting = async move {
            let backend = self.backend(cx, runtime.clone()).await?;
            self.client(backend, runtime)
        };
        Some(connecting.boxed())
    }

    /// The memory store, Redis and ZooKeeper know passwords. To the others one comes where it does not
    /// belong: in a URL that names a file, or one of a scheme that nobody knows.
    fn connect_with_secret<'a>(
        &'a self,
        _: &'a Cx,
        secret: &'a str,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        let connecting = async move {
            let scheme = match &self.store {
                Store::Memory(store, _) => {
                    return self.client(store.connect_with(secret)?, self.runtime.clone());
                }
                Store::Sqlite { .. } => "sqlite",
                Store::PlainRedis { address, .. } => {
                    let url = format!("redis://app:{secret}@{address}?recipe=plain");
                    let client = dlock::connect(url).runtime(self.runtime.clone()).await?;
                    return Ok(Arc::new(EngineSubject::new(client)));
                }
                Store::Redis { place, .. } => {
                    let url = format!("{}://app:{secret}@{}", place.scheme(), place.hosts(None));
                    let client = dlock::connect(url).runtime(self.runtime.clone()).await?;
                    return Ok(Arc::new(EngineSubject::new(client)));
                }
                Store::Redlock { addresses, .. } => {
                    let urls = addresses.iter().map(|at| format!("redis://app:{secret}@{at}"));
                    let client = dlock::quorum(urls).runtime(self.runtime.clone()).await?;
                    return Ok(Arc::new(EngineSubject::new(client)));
                }
                Store::Sql(store) => {
                    let client = store.connect_with(secret, self.runtime.clone()).await?;
                    return Ok(Arc::new(EngineSubject::new(client)));
                }
                Store::Cluster(store) => {
                    let client = store.connect_with(secret, self.runtime.clone()).await?;
                    return Ok(Arc::new(EngineSubject::new(client)));
                }
            };
            let url = format!("{scheme}://app:{secret}@localhost/locks");
            let client = dlock::connect(url).runtime(self.runtime.clone()).await?;
            Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
        };
        Some(connecting.boxed())
    }

    fn disk(&self) -> Option<PathBuf> {
        match &self.store {
            Store::Sqlite { directory, .. } => Some(directory.clone()),
            _ => None,
        }
    }

    fn footprint<'a>(&'a self, cx: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        let sizes = match &self.store {
            Store::Redis { hooks, .. } => return hooks.as_ref().map(RedisHooks::footprint),
            Store::PlainRedis { server, .. } => return server.clone().map(redis_hooks::keys),
            Store::Redlock { hooks, .. } => return hooks.as_ref().map(RedlockHooks::footprint),
            Store::Cluster(store) => return store.footprint(),
            Store::Sql(store) => {
                let hooks = store.hooks.as_ref();
                return hooks.map(|hooks| hooks.footprint(cx.namespace()));
            }
            Store::Memory(store, _) => store.sizes(),
            _ => return None,
        };
        let all = sizes.names + sizes.tombstones + sizes.queued + sizes.listeners + sizes.watchers;
        Some(futures::future::ready(Ok(all as u64)).boxed())
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        match &self.store {
            // Its store is a part of the process: while there is a client, there is the store.
            Store::Memory(..) => None,
            // A port on which nobody listens: nothing binds the discard port on this machine's own address.
            Store::Redis { .. } | Store::PlainRedis { .. } => {
                let connecting = async move {
                    let scheme = match &self.store {
                        Store::Redis { place, .. } => place.scheme(),
                        _ => "redis",
                    };
                    let nowhere = format!("{scheme}://127.0.0.1:9");
                    let backend = self.redis_at(&nowhere, self.runtime.clone()).await?;
                    self.client(backend, self.runtime.clone())
                };
                Some(connecting.boxed())
            }
            Store::Redlock { .. } => {
                let nowhere = [(Ipv4Addr::LOCALHOST, 9).into(); redlock::MEMBERS];
                let connecting = async move {
                    let backend = redlock::quorum(&nowhere, REDLOCK, self.runtime.clone(), false).await?;
                    self.client(backend, self.runtime.clone())
                };
                Some(connecting.boxed())
            }
            Store::Sql(store) => {
                let connecting = async move {
                    let backend = store.open_nowhere(self.runtime.clone()).await?;
                    self.client(backend, self.runtime.clone())
                };
                Some(connecting.boxed())
            }
            Store::Cluster(store) => {
                let connecting = async move {
                    let backend = store.open_nowhere(self.runtime.clone()).await?;
                    self.client(backend, self.runtime.clone())
                };
                Some(connecting.boxed())
            }
            Store::Sqlite { directory, .. } => {
                let nowhere = directory.join("there-is-no-such-directory/locks.sqlite");
                let connecting = async move {
                    let backend = sqlite::Config::new(nowhere).connect(self.runtime.clone()).await?;
                    self.client(Arc::new(backend), self.runtime.clone())
                };
                Some(connecting.boxed())
            }
        }
    }

    fn hand_over(&self) -> Option<String> {
        let runtime = self.kind.name();
        match &self.store {
            // A part of this process.
            Store::Memory(..) => None,
            Store::Sqlite { directory, .. } => Some(format!("{runtime} sqlite {}", directory.display())),
            Store::Redis { place, .. } => {
                let backend = if place.is_cluster() {
                    "redis-cluster"
                } else {
                    "redis"
                };
                Some(format!("{runtime} {backend} {}", place.hosts(None)))
            }
            Store::PlainRedis { address, .. } => Some(format!("{runtime} redis-plain {address}")),
            Store::Redlock { addresses, .. } => {
                let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
                Some(format!("{runtime} redlock {}", addresses.join(",")))
            }
            Store::Cluster(store) => Some(format!("{runtime} {}", store.handed_over())),
            Store::Sql(store) => Some(format!("{runtime} {}", store.handed_over())),
        }
    }
}
