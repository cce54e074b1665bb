//! The backends and the runtimes, and how a client of one on the other is made.

#[path = "sqlite_hooks.rs"]
mod sqlite_hooks;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock::runtime::{AsyncStd, Smol, Tokio};
use dlock::spi::Lock;
use dlock::sqlite::SqliteLock;
use dlock::{Capabilities, Client, Memory, Result, Runtime, Timestamp};
use dlock_conformance::hooks::{Hooks, MemoryHooks, Restart};
use dlock_conformance::proxy::ServerAddress;
use dlock_conformance::remote::{RemoteLock, RemoteServer};
use dlock_conformance::{Claims, Cx, EngineSubject, Harness, Subject};
use futures::FutureExt;
use futures::future::BoxFuture;

use self::RuntimeKind::{AsyncStdGlobal, SmolGlobal, TokioCurrentThread, TokioMultiThread};
use self::sqlite_hooks::SqliteHooks;

const EVERY_RUNTIME: &[RuntimeKind] = &[TokioMultiThread, TokioCurrentThread, AsyncStdGlobal, SmolGlobal];

/// Every rule runs on the first runtime of each. The remote backend is the kit's: the memory store behind a socket, so that the rules
/// about networks are run as well.
pub(crate) const BACKENDS: [(&str, &[RuntimeKind]); 3] = [
    ("memory", EVERY_RUNTIME),
    ("sqlite", EVERY_RUNTIME),
    ("remote", &[TokioMultiThread]),
];

/// Whether there is a server that a proxy can be put before: for access P.
pub(crate) fn has_server(backend: &str) -> bool {
    backend == "remote"
}

/// Short, so that the rules that wait for it are.
const REMOTE_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// The server on a thread of its own, and clients over TCP.
    Remote(RemoteServer),
    /// The same in a child: the server is its parent's.
    RemoteOfParent {
        address: SocketAddr,
        capabilities: Capabilities,
    },
    /// Each client opens the file by itself, as another process would.
    Sqlite {
        directory: PathBuf,
        capabilities: Capabilities,
        hooks: SqliteHooks,
        /// Of the process that made it; a child of that only uses it.
        _owned: Option<tempfile::TempDir>,
    },
}

impl Subjects {
    pub(crate) fn new(backend: &str, kind: RuntimeKind) -> Self {
        let runtime = kind.start();
        let store = match backend {
            "memory" => {
                // Limits that no rule meets but the one about limits.
                let store = Memory::builder(runtime.clone());
                let store = store.max_held(Some(1_200)).max_waiters(Some(600)).build();
                Store::Memory(store.clone(), MemoryHooks::new(store))
            }
            "remote" => {
                let apart = dlock::runtime::own_thread().expect("a thread can be started");
                Store::Remote(RemoteServer::start(apart).expect("a port is free"))
            }
            _ => {
                let directory = tempfile::tempdir().expect("a directory can be made");
                return Self::sqlite(kind, directory.path().to_owned(), Some(directory));
            }
        };
        Self { runtime, kind, store }
    }

    fn sqlite(kind: RuntimeKind, directory: PathBuf, owned: Option<tempfile::TempDir>) -> Self {
        let runtime = kind.start();
        let hooks = SqliteHooks::new(directory.join("locks.sqlite"), runtime.clone());
        let opened = futures::executor::block_on(hooks.open()).expect("the file can be opened");
        let capabilities = opened.capabilities().clone();
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

    /// Of a SQLite file: the one by whose locks it is told who writes.
    #[allow(dead_code)] // the crash test asks
    pub(crate) fn shared_memory(&self) -> PathBuf {
        match &self.store {
            Store::Sqlite { directory, .. } => directory.join("locks.sqlite-shm"),
            _ => PathBuf::new(),
        }
    }

    /// In a child process: the same store on the same runtime, by what [`hand_over`](Harness::hand_over) told.
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
        let runtime = kind.start();
        // What the server claims: it keeps a store of this kind.
        let mut capabilities = Memory::new(runtime.clone()).connect().capabilities().clone();
        capabilities.clock_sensitive = true;
        let address = place.parse().expect("an address is told");
        Self {
            runtime,
            kind: *kind,
            store: Store::RemoteOfParent {
                address,
                capabilities,
            },
        }
    }

    async fn backend(&self, cx: &Cx, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        match &self.store {
            Store::Memory(store, _) => Ok(store.connect()),
            Store::Remote(server) => {
                let address = cx.addr(0).and_then(|a| a.tcp()).unwrap_or(server.address());
                Ok(self.remote(server.capabilities(), address, runtime))
            }
            Store::RemoteOfParent {
                address,
                capabilities,
            } => Ok(self.remote(capabilities.clone(), *address, runtime)),
            Store::Sqlite { hooks, .. } => hooks.open_on(runtime).await,
        }
    }

    fn remote(
        &self,
        capabilities: Capabilities,
        address: SocketAddr,
        runtime: Arc<dyn Runtime>,
    ) -> Arc<dyn Lock> {
        Arc::new(RemoteLock::new(address, capabilities, runtime))
    }

    fn client(&self, backend: Arc<dyn Lock>, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Subject>> {
        let mut builder = Client::builder(backend, runtime);
        if let Store::Remote(_) | Store::RemoteOfParent { .. } = self.store {
            builder = builder.op_timeout(REMOTE_TIMEOUT);
        }
        Ok(Arc::new(EngineSubject::new(builder.build()?)))
    }
}

impl Harness for Subjects {
    fn claims(&self) -> Claims {
        let (product, capabilities, slack) = match &self.store {
            Store::Memory(store, _) => ("dlock memory", store.connect().capabilities().clone(), 150),
            Store::Remote(server) => ("dlock memory (remote)", server.capabilities(), 200),
            Store::RemoteOfParent { capabilities, .. } => {
                ("dlock memory (remote)", capabilities.clone(), 200)
            }
            Store::Sqlite { capabilities, .. } => ("dlock SQLite", capabilities.clone(), 400),
        };
        let claims = Claims::new(product, env!("CARGO_PKG_VERSION"), capabilities)
            .slack(Duration::from_millis(slack))
            .reentrant()
            .traced();
        match &self.store {
            Store::Memory(..) => claims.survives(Restart::InOrder),
            Store::Remote(_) | Store::RemoteOfParent { .. } => claims
                .survives(Restart::InOrder)
                .give_up(REMOTE_TIMEOUT * 2 + Duration::from_millis(500)),
            Store::Sqlite { .. } => claims.survives(Restart::Crash),
        }
    }

    fn hooks(&self) -> Option<&dyn Hooks> {
        Some(match &self.store {
            Store::Memory(_, hooks) => hooks,
            Store::Remote(server) => server,
            Store::RemoteOfParent { .. } => return None,
            Store::Sqlite { hooks, .. } => hooks,
        })
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    fn servers(&self) -> Vec<ServerAddress> {
        match &self.store {
            Store::Remote(server) => vec![server.address().into()],
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

    /// Only the memory store knows passwords. To the others one comes where it does not belong: in a URL that names a file, or one of
    /// a scheme that nobody knows.
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
                Store::Remote(_) | Store::RemoteOfParent { .. } => "remote",
                Store::Sqlite { .. } => "sqlite",
            };
            let url = format!("{scheme}://app:{secret}@localhost/locks");
            let client = dlock::connect(url).runtime(self.runtime.clone()).await?;
            Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
        };
        Some(connecting.boxed())
    }

    fn footprint<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        let sizes = match &self.store {
            Store::Memory(store, _) => store.sizes(),
            Store::Remote(server) => server.sizes(),
            Store::RemoteOfParent { .. } | Store::Sqlite { .. } => return None,
        };
        let all = sizes.names + sizes.tombstones + sizes.queued + sizes.listeners + sizes.watchers;
        Some(futures::future::ready(Ok(all as u64)).boxed())
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        match &self.store {
            // Its store is a part of the process: while there is a client, there is the store.
            Store::Memory(..) => None,
            // A child runs no rules.
            Store::RemoteOfParent { .. } => None,
            // A port on which nobody listens: nothing binds the discard port on this machine's own address.
            Store::Remote(server) => {
                let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
                let nowhere = self.remote(server.capabilities(), nowhere, self.runtime.clone());
                Some(futures::future::ready(self.client(nowhere, self.runtime.clone())).boxed())
            }
            Store::Sqlite { directory, .. } => {
                let nowhere = directory.join("there-is-no-such-directory/locks.sqlite");
                let connecting = async move {
                    let backend = SqliteLock::open(nowhere, self.runtime.clone()).await?;
                    self.client(Arc::new(backend), self.runtime.clone())
                };
                Some(connecting.boxed())
            }
        }
    }

    fn hand_over(&self) -> Option<String> {
        let runtime = self.kind.name();
        match &self.store {
            // A part of this process, or reached by what is one already.
            Store::Memory(..) | Store::RemoteOfParent { .. } => None,
            Store::Remote(server) => Some(format!("{runtime} remote {}", server.address())),
            Store::Sqlite { directory, .. } => Some(format!("{runtime} sqlite {}", directory.display())),
        }
    }
}
