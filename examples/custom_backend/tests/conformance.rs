//! The certificate: the kit's rules on this backend, in real time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use acme_file_lock::FileLock;
use dlock_conformance::{Claims, Cx, EngineSubject, Harness, Need, Subject, agent};
use dlock_core::spi::capabilities_of;
use dlock_core::{Client, Result, Runtime, runtime};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

struct Acme {
    directory: PathBuf,
    /// Removed in the end, by the process that made it.
    _made: Option<tempfile::TempDir>,
    tokio: tokio::runtime::Runtime,
}

impl Harness for Acme {
    fn claims(&self) -> Claims {
        let capabilities = capabilities_of(&FileLock::new(&self.directory));
        Claims::new("acme-file-lock", env!("CARGO_PKG_VERSION"), capabilities)
            .slack(Duration::from_millis(250))
            .claim(Need::Events)
            // It is a folder of this machine.
            .without(Need::Network)
            // Who may write to the directory has the locks: there is no password that could be told.
            .without(Need::Secrets)
            // A file tells nobody that it was let go of: each who waits looks for itself.
            .without(Need::BoundedWakes)
            // Nor is there a queue: some wait longer than others.
            .without(Need::BoundedWaits)
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        runtime::Tokio::from_handle(self.tokio.handle().clone()).expect("it has timers")
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        ready(self.client(&self.directory, self.runtime())).boxed()
    }

    fn hand_over(&self) -> Option<String> {
        self.directory.to_str().map(str::to_owned)
    }

    fn connect_on<'a>(
        &'a self,
        _: &'a Cx,
        runtime: Arc<dyn Runtime>,
    ) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        Some(ready(self.client(&self.directory, runtime)).boxed())
    }

    fn connect_nowhere<'a>(&'a self, _: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        Some(ready(self.client(&self.directory.join("absent"), self.runtime())).boxed())
    }
}

impl Acme {
    fn client(&self, directory: &Path, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Subject>> {
        let client = Client::builder(Arc::new(FileLock::new(directory)), runtime).build()?;
        Ok(Arc::new(EngineSubject::new(client)))
    }
}

impl Acme {
    fn new() -> Self {
        let handed_over = agent::handed_over().map(PathBuf::from);
        // In memory, where there is such a file system: the rules hold leases of a quarter of a second, and a
        // disk that others write to can take longer for one file. What a busy disk does to short leases is no
        // fault of the backend.
        let make = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let made = handed_over.is_none().then(|| make().expect("a directory can be made"));
        Self {
            directory: handed_over.or_else(|| Some(made.as_ref()?.path().into())).expect("there is one"),
            _made: made,
            tokio: tokio::runtime::Builder::new_multi_thread()
                .enable_time()
                .build()
                .expect("threads can be started"),
        }
    }
}

dlock_conformance::main!(Acme::new());
