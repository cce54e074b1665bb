//! The reference backend, in real time on tokio.

use std::sync::Arc;

use dlock_conformance::{Claims, Cx, EngineSubject, Harness, Subject};
use dlock_core::{Client, Memory, Result, Runtime, runtime};
use futures::FutureExt;
use futures::future::BoxFuture;

struct MemoryOnTokio {
    // Kept: its tasks end with it.
    _tokio: tokio::runtime::Runtime,
    runtime: Arc<dyn Runtime>,
    store: Memory,
}

impl MemoryOnTokio {
    fn new() -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .expect("threads can be started");
        let runtime = runtime::Tokio::from_handle(tokio.handle().clone()).expect("it has timers");
        let store = Memory::new(Arc::clone(&runtime));
        Self {
            _tokio: tokio,
            runtime,
            store,
        }
    }
}

impl Harness for MemoryOnTokio {
    fn claims(&self) -> Claims {
        let capabilities = self.store.connect().capabilities().clone();
        Claims::new("dlock memory", env!("CARGO_PKG_VERSION"), capabilities).reentrant()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move {
            let client = Client::builder(self.store.connect(), Arc::clone(&self.runtime)).build()?;
            Ok(Arc::new(EngineSubject::new(client)) as Arc<dyn Subject>)
        }
        .boxed()
    }
}

dlock_conformance::main!(MemoryOnTokio::new());
