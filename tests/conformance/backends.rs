//! The backends and the runtimes, and how a client of one on the other is made.

use std::sync::Arc;
use std::time::Duration;

use dlock::runtime::{AsyncStd, Smol, Tokio};
use dlock::spi::Lock;
use dlock::sqlite::SqliteLock;
use dlock::{Client, Memory, Result, Runtime, Timestamp};
use dlock_conformance::{Claims, Cx, EngineSubject, Harness, Subject};
use futures::FutureExt;
use futures::future::BoxFuture;

use self::RuntimeKind::{AsyncStdGlobal, SmolGlobal, TokioCurrentThread, TokioMultiThread};

/// Every rule runs on the first runtime of each.
pub(crate) const BACKENDS: [(&str, [RuntimeKind; 4]); 2] = [
    (
        "memory",
        [TokioMultiThread, TokioCurrentThread, AsyncStdGlobal, SmolGlobal],
    ),
    (
        "sqlite",
        [TokioMultiThread, TokioCurrentThread, AsyncStdGlobal, SmolGlobal],
    ),
];

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
    store: Store,
}

enum Store {
    Memory(Memory),
    /// Each client opens the file by itself, as another process would.
    Sqlite {
        directory: tempfile::TempDir,
        claims: Arc<dyn Lock>,
    },
}

impl Subjects {
    pub(crate) fn new(backend: &str, runtime: RuntimeKind) -> Self {
        let runtime = runtime.start();
        let store = match backend {
            "memory" => Store::Memory(Memory::new(runtime.clone())),
            _ => {
                let directory = tempfile::tempdir().expect("a directory can be made");
                let opened = SqliteLock::open(directory.path().join("locks.sqlite"), runtime.clone());
                let claims = futures::executor::block_on(opened).expect("a new file can be opened");
                Store::Sqlite {
                    directory,
                    claims: Arc::new(claims),
                }
            }
        };
        Self { runtime, store }
    }

    async fn backend(&self) -> Result<Arc<dyn Lock>> {
        match &self.store {
            Store::Memory(store) => Ok(store.connect()),
            Store::Sqlite { directory, .. } => {
                let file = directory.path().join("locks.sqlite");
                Ok(Arc::new(SqliteLock::open(file, self.runtime.clone()).await?))
            }
        }
    }
}

impl Harness for Subjects {
    fn claims(&self) -> Claims {
        let (product, capabilities, slack) = match &self.store {
            Store::Memory(store) => ("dlock memory", store.connect().capabilities().clone(), 150),
            Store::Sqlite { claims, .. } => ("dlock SQLite", claims.capabilities().clone(), 400),
        };
        Claims::new(product, env!("CARGO_PKG_VERSION"), capabilities)
            .slack(Duration::from_millis(slack))
            .reentrant()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move {
            let client = Client::builder(self.backend().await?, self.runtime.clone()).build()?;
            Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
        }
        .boxed()
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        match &self.store {
            // Its store is a part of the process: while there is a client, there is the store.
            Store::Memory(_) => None,
            Store::Sqlite { directory, .. } => {
                let nowhere = directory.path().join("there-is-no-such-directory/locks.sqlite");
                let connecting = async move {
                    let backend = SqliteLock::open(nowhere, self.runtime.clone()).await?;
                    let client = Client::builder(Arc::new(backend), self.runtime.clone()).build()?;
                    Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
                };
                Some(connecting.boxed())
            }
        }
    }
}
