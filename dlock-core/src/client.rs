//! A client of one backend.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};

use crate::capabilities::{Capabilities, Capability};
use crate::diagnosis::Finding;
use crate::election::Election;
use crate::engine::{Ask, Engine, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::gate::Gate;
use crate::inspection::{Change, Inspection};
use crate::lock::{Lock, Semaphore};
use crate::mode::Mode;
use crate::name::{LockName, name_of};
use crate::options::{LockOptions, Terms};
use crate::reentrant::Owner;
use crate::runtime::Runtime;
use crate::rwlock::RwLock;
use crate::spi;

/// A client of one backend: gives handles to named locks, and keeps what they hold alive.
///
/// Cloning is cheap, and clones are the same client. Two handles of one client exclude one another exactly
/// like two clients: what holds is the guard.
///
/// Dropping the last clone ends nothing: guards keep the engine alive, and a guard that is dropped is still
/// released. Only [`close`](Self::close) ends what is held.
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
    defaults: Arc<Terms>,
}

impl Client {
    /// Begins to set up a client of that backend on that runtime.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|_| async {
    /// # use dlock_core as dlock;
    /// use dlock::{Client, LockOptions, Memory, runtime};
    /// use std::time::Duration;
    /// let runtime = runtime::own_thread()?;
    /// let store = Memory::new(runtime.clone());
    /// let client = Client::builder(store.connect(), runtime)
    ///     .defaults(LockOptions::new().ttl(Duration::from_secs(20)))
    ///     .build()?;
    /// # client.close().await?;
    /// # Ok(()) });
    /// ```
    pub fn builder(backend: Arc<dyn spi::Lock>, runtime: Arc<dyn Runtime>) -> ClientBuilder {
        ClientBuilder {
            backend,
            runtime,
            defaults: Terms::DEFAULT,
            op_timeout: Duration::from_secs(5),
        }
    }

    /// The exclusive lock of that name: text, bytes, or a [`LockName`], owned or borrowed.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is empty or too long.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use dlock::LockName;
    /// let name = LockName::new("stock/42")?;
    /// assert!(client.lock(&name)?.name() == client.lock(name)?.name());
    /// client.lock("stock/42")?.acquire().await?.release().await?;
    /// client.lock(format!("stock/{}", 43))?.acquire().await?.release().await?;
    /// # Ok(()) });
    /// ```
    pub fn lock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Lock> {
        self.handle(name, Mode::Exclusive)
    }

    /// The read-write lock of that name.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `Unsupported` where the backend has no shared mode.
    pub fn rwlock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<RwLock> {
        Ok(RwLock::new(self.handle(name, Mode::READER)?))
    }

    /// The semaphore of that name, with `n` permits. Everybody who uses the name at the same time gives the
    /// same `n`.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `InvalidInput` for no permits; `Unsupported` where the backend has none.
    pub fn semaphore(&self, name: impl TryInto<LockName, Error: Into<Error>>, n: u32) -> Result<Semaphore> {
        let n = std::num::NonZeroU32::new(n)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a semaphore needs at least one permit"))?;
        self.handle(name, Mode::permit(n))
    }

    /// The election of that name: one of those who campaign leads at a time, and those who look see who.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn election(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Election> {
        Ok(Election::new(self.clone(), self.lock(name)?))
    }

    fn handle<C>(&self, name: impl TryInto<LockName, Error: Into<Error>>, mode: Mode) -> Result<Lock<C>> {
        let name = name_of(name)?;
        self.engine.caps.check_name(&name)?;
        self.engine.caps.check_mode(mode)?;
        Ok(Lock::new(
            self.engine.clone(),
            Ask {
                name,
                mode,
                options: self.defaults.clone(),
            },
        ))
    }

    /// What the backend claims.
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.caps
    }

    /// The runtime that the client was set up with.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.engine.runtime
    }

    /// The backend itself, for what only it offers. Requests made there by hand are not looked after by this
    /// client.
    pub fn backend(&self) -> &Arc<dyn spi::Lock> {
        &self.engine.backend
    }

    /// A new owner, for re-entrant use: see [`Lock::reentrant`].
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let owner = client.owner();
    /// let ledger = client.lock("ledger")?.reentrant(&owner)?;
    /// let outer = ledger.acquire().await?;
    /// let inner = ledger.acquire().await?;
    /// assert_eq!(outer.token(), inner.token());
    /// # Ok(()) });
    /// ```
    pub fn owner(&self) -> Owner {
        Owner::new(&self.engine)
    }

    /// The changes of that name, as a stream: first a snapshot, then each change in grant order; a further
    /// snapshot with `skipped: true` where changes may be missing. Needs no lock and slows none.
    ///
    /// A backend that has to look for changes tells of what lies between two looks by such a snapshot: on
    /// SQLite, of a holder who came and went through another client within about 50 ms. The last state is
    /// always told.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind. The stream may be dropped at any time.
    ///
    /// # Errors
    /// `Unsupported` where the backend cannot watch; `InvalidInput`, `Unavailable`, `PermissionDenied`,
    /// `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use dlock::Change;
    /// use futures::StreamExt;
    /// let mut changes = client.watch("leader").await?;
    /// let Some(Change::Snapshot { now, .. }) = changes.next().await.transpose()? else { panic!() };
    /// assert!(now.holders.is_empty());
    /// let guard = client.lock("leader")?.acquire().await?;
    /// let Some(Change::Granted(leader)) = changes.next().await.transpose()? else { panic!() };
    /// assert_eq!(leader.token, guard.token());
    /// # Ok(()) });
    /// ```
    pub async fn watch(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
    ) -> Result<BoxStream<'static, Result<Change>>> {
        let (name, part) = self.watch_part(name, Capability::Watch, "watching")?;
        self.engine.request(&name, part.watch(&name)).await
    }

    /// Who holds that name now, with which tokens and for how long yet, and how many wait.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// `Unsupported` where the backend cannot; `InvalidInput`, `Unavailable`, `PermissionDenied`, `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let guard = client.lock("report")?.acquire().await?;
    /// let report = client.inspect("report").await?;
    /// assert_eq!(report.holders[0].id, guard.id());
    /// # Ok(()) });
    /// ```
    pub async fn inspect(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<Inspection> {
        let (name, part) = self.watch_part(name, Capability::Inspect, "inspecting")?;
        self.engine.request(&name, part.inspect(&name)).await
    }

    /// Ends every hold of that name, whoever has it, and lets in who is next; returns how many were ended.
    /// For operators: a former holder learns it at its next renewal, and until then only the fence keeps its
    /// writes out.
    ///
    /// # Cancel safety
    /// Dropped before it completes, it has happened or not.
    ///
    /// # Errors
    /// `Unsupported` where the backend cannot; `InvalidInput`, `Unavailable`, `Unknown`, `PermissionDenied`,
    /// `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let stuck = client.lock("import")?.acquire().await?;
    /// assert_eq!(client.force_release("import").await?, 1);
    /// assert!(client.lock("import")?.try_acquire().await?.is_some());
    /// # drop(stuck);
    /// # Ok(()) });
    /// ```
    pub async fn force_release(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<u32> {
        let (name, part) = self.watch_part(name, Capability::ForceRelease, "a forced release")?;
        self.engine.request(&name, part.force_release(&name)).await
    }

    /// The names that begin with that prefix and are held or waited for, in any order, each once; an empty
    /// prefix is that of all names. They are read a page at a time, as the stream is read.
    ///
    /// A name that is in use from the call to the end of the stream is among them; one that is taken or let
    /// go meanwhile may be. Redis may leave out a name that goes from exclusive to shared meanwhile, or back,
    /// and a Redis Cluster names of slots that it moves. The stream keeps the names that it has told, and
    /// ends behind the first error.
    ///
    /// # Cancel safety
    /// Nothing is asked before the stream is polled, and it only reads. It may be dropped at any time.
    ///
    /// # Errors
    /// `Unsupported` where the backend cannot list. Those of the stream: `Unavailable`, `PermissionDenied`,
    /// `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// use futures::TryStreamExt;
    /// let guard = client.lock("jobs/nightly")?.acquire().await?;
    /// let jobs: Vec<_> = client.list("jobs/")?.try_collect().await?;
    /// assert_eq!(jobs, [guard.name().clone()]);
    /// # Ok(()) });
    /// ```
    pub fn list(&self, prefix: impl AsRef<[u8]>) -> Result<BoxStream<'static, Result<LockName>>> {
        self.engine.caps.need(Capability::List, "listing")?;
        let prefix: Arc<[u8]> = prefix.as_ref().into();
        let engine = self.engine.clone();
        // `Some(from)` while there is a page.
        let pages = stream::try_unfold(Some(None), move |from: Option<Option<_>>| {
            let (engine, prefix) = (engine.clone(), prefix.clone());
            async move {
                let Some(from): Option<Option<Vec<u8>>> = from else {
                    return Ok(None);
                };
                engine.check_open()?;
                let part = engine.backend.watch();
                let part = part.ok_or_else(|| no_part(&engine.caps, "Watch"))?;
                let page = engine.ask(engine.op_timeout, part.list(&prefix, from.as_deref()));
                let page = page.await?;
                Ok::<_, Error>(Some((page.names, page.next.map(Some))))
            }
        });
        let mut told = HashSet::new();
        let names = pages.map_ok(move |mut names| {
            names.retain(|name| told.insert(name.clone()));
            stream::iter(names.into_iter().map(Ok))
        });
        Ok(names.try_flatten().boxed())
    }

    /// What the store is, and whether its settings suit locks, in words for an operator. A handful of
    /// requests that read. Empty where the backend has nothing to say.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, `Closed`.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.engine.check_open()?;
        let diagnosis = self.engine.backend.diagnose();
        self.engine.ask(self.engine.op_timeout, diagnosis).await
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn watch_part(
        &self,
        name: impl TryInto<LockName, Error: Into<Error>>,
        capability: Capability,
        what: &str,
    ) -> Result<(LockName, &dyn spi::Watch)> {
        self.engine.check_open()?;
        let name = name_of(name)?;
        self.engine.caps.check_name(&name)?;
        self.engine.caps.need(capability, what)?;
        let part = self.engine.backend.watch();
        part.map(|part| (name, part))
            .ok_or_else(|| no_part(&self.engine.caps, "Watch"))
    }

    /// The fence gate in the backend's own store. Each of its calls has the client's time limit for an
    /// operation and then answers `Unknown`, and `Closed` when the client is closed meanwhile.
    ///
    /// # Errors
    /// `Unsupported` where the backend has none; `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let guard = client.lock("report")?.acquire().await?;
    /// let token = guard.token().expect("this backend fences");
    /// assert!(client.gate()?.write("report.json", token, b"{}").await?.is_admitted());
    /// # Ok(()) });
    /// ```
    pub fn gate(&self) -> Result<Gate<'_>> {
        self.engine.check_open()?;
        self.engine.caps.need(Capability::Gate, "a fence gate")?;
        match self.engine.backend.fencing().and_then(spi::Fencing::gate) {
            Some(_) => Ok(Gate::new(&***self.engine)),
            None => Err(no_part(&self.engine.caps, "fence gate")),
        }
    }

    /// Ends the client: holds are lost with reason `Closed` and released, waits end with `Closed`, the
    /// connection is closed, also for other clients that were built on the same backend object. Closing again
    /// does nothing. Later calls answer `Closed`.
    ///
    /// # Cancel safety
    /// Once polled, closing goes on in the background, whether or not this is awaited to its end.
    ///
    /// # Errors
    /// None at present: what the store cannot be told any more lapses with its ttl.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// let guard = client.lock("job")?.acquire().await?;
    /// client.close().await?;
    /// assert_eq!(guard.loss(), Some(dlock::LossReason::Closed));
    /// # Ok(()) });
    /// ```
    pub async fn close(&self) -> Result<()> {
        self.engine.close().await
    }

    /// Stops the client where it is: nothing is renewed, released or withdrawn any more, and what it holds
    /// lapses in the store when its ttl is over. Its connection is closed when the last handle, guard and
    /// future of it is dropped; a store of sessions may keep what it holds until then. Returns at once. To
    /// let go of everything, use [`close`](Self::close).
    pub fn abort(&self) {
        self.engine.abort();
    }

    /// The same client for threads that block instead of awaiting.
    ///
    /// # Examples
    /// ```
    /// # let client = dlock_core::doc_client();
    /// let client = client.blocking();
    /// let guard = client.lock("stock/42")?.acquire()?;
    /// guard.release()?;
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn blocking(&self) -> crate::blocking::Client {
        crate::blocking::Client::new(self.clone())
    }
}

fn no_part(caps: &Capabilities, part: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("{} claims a {part} and does not have it", caps.backend),
    )
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("backend", &self.engine.caps.backend)
            .field("runtime", &self.engine.runtime.name())
            .finish_non_exhaustive()
    }
}

/// Sets up a [`Client`].
#[must_use]
pub struct ClientBuilder {
    backend: Arc<dyn spi::Lock>,
    runtime: Arc<dyn Runtime>,
    defaults: Terms,
    op_timeout: Duration,
}

impl ClientBuilder {
    /// What handles start with; [`Lock::options`] is laid over it for one handle. Called again, it is laid
    /// over what it was called with before.
    pub fn defaults(mut self, options: LockOptions) -> Self {
        self.defaults = self.defaults.with(options);
        self
    }

    /// How long one request to the store may take, and for how long failing requests are repeated before the
    /// caller is told. More than zero; 5 s unless set.
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.op_timeout = limit;
        self
    }

    /// Starts the client and its keeper.
    ///
    /// # Errors
    /// `InvalidInput` or `Unsupported` for defaults that the backend cannot keep; `Unsupported` for a backend
    /// that claims what it has no part for.
    pub fn build(self) -> Result<Client> {
        spi::check_parts(&*self.backend)?;
        self.defaults.check(&spi::capabilities_of(&*self.backend))?;
        if self.op_timeout.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "an operation timeout of zero would fail every request",
            ));
        }
        let Self {
            backend,
            runtime,
            op_timeout,
            defaults,
        } = self;
        let engine = Engine::start(Settings {
            backend,
            runtime,
            op_timeout,
        });
        Ok(Client {
            engine,
            defaults: Arc::new(defaults),
        })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("backend", &self.backend.capabilities().backend)
            .field("runtime", &self.runtime.name())
            .field("defaults", &self.defaults)
            .field("op_timeout", &self.op_timeout)
            .finish_non_exhaustive()
    }
}
