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

/// A client of one backend. It creates handles to named locks and keeps the locks that they acquire alive.
///
/// Cloning is cheap, and all clones are the same client. Locks are held by guards, not by clients: two guards
/// of one client exclude one another exactly as guards of two clients do.
///
/// Dropping the last clone ends nothing. Guards keep the engine alive, and a guard that is dropped later is
/// still released. Only [`close`](Self::close) ends what the client holds.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let guard = client.lock("stock/42")?.acquire().await?;
/// assert!(client.lock("stock/42")?.try_acquire().await?.is_none());
/// guard.release().await?;
/// client.close().await?;
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
    defaults: Arc<Terms>,
}

impl Client {
    /// Starts to configure a client of `backend` that runs on `runtime`.
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

    /// Returns a handle to the exclusive lock `name`. Sends nothing.
    ///
    /// `name` is text, bytes or a [`LockName`], owned or borrowed.
    ///
    /// # Errors
    /// `InvalidInput` if the name is empty or longer than [`Capabilities::max_name_len`].
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

    /// Returns a handle to the read-write lock `name`. Sends nothing.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and `Unsupported` if the backend does not claim [`Capability::Shared`].
    pub fn rwlock(&self, name: impl TryInto<LockName, Error: Into<Error>>) -> Result<RwLock> {
        Ok(RwLock::new(self.handle(name, Mode::READER)?))
    }

    /// Returns a handle to the semaphore `name` with `n` permits. Sends nothing.
    ///
    /// All users of the name must agree on `n`: see [`Semaphore`].
    ///
    /// # Errors
    /// As [`lock`](Self::lock). `InvalidInput` if `n` is 0; `Unsupported` if the backend does not claim
    /// [`Capability::Permits`].
    pub fn semaphore(&self, name: impl TryInto<LockName, Error: Into<Error>>, n: u32) -> Result<Semaphore> {
        let n = std::num::NonZeroU32::new(n)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a semaphore needs at least one permit"))?;
        self.handle(name, Mode::permit(n))
    }

    /// Returns a handle to the election `name`: at most one of its candidates leads at a time, and anybody
    /// can see which. Sends nothing.
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

    /// Returns what the backend claims.
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.caps
    }

    /// Returns the runtime on which the client runs.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.engine.runtime
    }

    /// Returns the backend, for features that only this backend has. The client does not renew or release
    /// what is acquired by calling the backend directly.
    pub fn backend(&self) -> &Arc<dyn spi::Lock> {
        &self.engine.backend
    }

    /// Creates an owner for re-entrant locks: see [`Lock::reentrant`].
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

    /// Watches the lock `name`. The stream starts with a snapshot, followed by each change in grant order. A
    /// later snapshot with `skipped: true` means that changes before it may be missing. Watching takes no
    /// lock and delays no holder.
    ///
    /// A backend that polls for changes sends such a snapshot for what happened between two polls. On SQLite
    /// this affects a holder that came and went through another client within about 50 ms. The latest state
    /// is always reported.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind. The stream may be dropped at any time.
    ///
    /// # Errors
    /// `Unsupported` if the backend does not claim [`Capability::Watch`]; `InvalidInput`, `Unavailable`,
    /// `PermissionDenied`, `Closed`.
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

    /// Reads who holds the lock `name` now, with tokens and remaining times, and how many requests wait.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// `Unsupported` if the backend does not claim [`Capability::Inspect`]; `InvalidInput`, `Unavailable`,
    /// `PermissionDenied`, `Closed`.
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

    /// Ends every hold of the lock `name`, whoever holds it, lets the next waiters in, and returns how many
    /// holds were ended.
    ///
    /// For operators. A former holder learns of it at its next renewal. Until then only the fence gate keeps
    /// its writes out.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropped before it completes, it may or may not have taken effect.
    ///
    /// # Errors
    /// `Unsupported` if the backend does not claim [`Capability::ForceRelease`]; `InvalidInput`,
    /// `Unavailable`, `Unknown`, `PermissionDenied`, `Closed`.
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

    /// Lists the names that start with `prefix` and are held or waited for, each once and in any order. An
    /// empty prefix lists all names. The stream reads one page at a time, when it is polled.
    ///
    /// A name that is in use from the call to the end of the stream is listed. A name that is acquired or
    /// released meanwhile may be. Redis may omit a name that changes between exclusive and shared mode
    /// meanwhile; Redis Cluster may omit names in slots that are being moved. The stream remembers the names
    /// that it returned, and ends after the first error.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads, and sends nothing before the stream is polled. The stream may be dropped
    /// at any time.
    ///
    /// # Errors
    /// `Unsupported` if the backend does not claim [`Capability::List`]. The stream fails with `Unavailable`,
    /// `PermissionDenied` or `Closed`.
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

    /// Checks the store and its settings, and returns findings in words for an operator. Sends a few
    /// requests, all of which only read. Returns nothing if the backend has no checks.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// `Unavailable`, `PermissionDenied`, `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// for finding in client.diagnose().await? {
    ///     println!("{:?}: {}", finding.severity, finding.text);
    /// }
    /// # Ok(()) });
    /// ```
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

    /// Returns the fence gate in the backend's own store.
    ///
    /// Each call of the gate fails with `Unknown` after the client's
    /// [`op_timeout`](ClientBuilder::op_timeout), and with `Closed` if the client is closed meanwhile.
    ///
    /// # Errors
    /// `Unsupported` if the backend does not claim [`Capability::Gate`]; `Closed`.
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

    /// Closes the client. Its holds are lost with reason `Closed` and released, its waiting acquires fail
    /// with `Closed`, and its connection is closed, also for other clients that were built on the same
    /// backend object. Later calls fail with `Closed`. Closing again does nothing.
    ///
    /// # Cancel safety
    /// Once polled, closing continues in the background, even if the future is dropped.
    ///
    /// # Errors
    /// None at present. A hold that cannot be released any more expires with its ttl.
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

    /// Stops the client at once: nothing is renewed, released or withdrawn any more, and its holds expire in
    /// the store with their ttl.
    ///
    /// The connection is closed when the last handle, guard and future of the client is dropped. A session
    /// store may keep the holds until then. To release everything instead, use [`close`](Self::close).
    pub fn abort(&self) {
        self.engine.abort();
    }

    /// Returns the same client for threads that block instead of awaiting.
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
        format!(
            "the backend {} claims a {part} but has none: report this to the authors of the backend",
            caps.backend
        ),
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

/// Configures a [`Client`]. From [`Client::builder`].
#[must_use]
pub struct ClientBuilder {
    backend: Arc<dyn spi::Lock>,
    runtime: Arc<dyn Runtime>,
    defaults: Terms,
    op_timeout: Duration,
}

impl ClientBuilder {
    /// Sets the options that handles start with. [`Lock::options`] overrides them for one handle. A further
    /// call overrides what earlier calls set, and keeps the rest.
    pub fn defaults(mut self, options: LockOptions) -> Self {
        self.defaults = self.defaults.with(options);
        self
    }

    /// Sets how long one request to the store may take, and how long failing requests are retried before the
    /// caller gets an error. Must be more than zero; 5 s by default.
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.op_timeout = limit;
        self
    }

    /// Starts the client and its keeper.
    ///
    /// # Errors
    /// `InvalidInput` for an `op_timeout` of zero. `InvalidInput` or `Unsupported` for defaults that the
    /// backend cannot honour. `Unsupported` for a backend that claims a capability and lacks the part for it.
    pub fn build(self) -> Result<Client> {
        spi::check_parts(&*self.backend)?;
        self.defaults.check(&spi::capabilities_of(&*self.backend))?;
        if self.op_timeout.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "`op_timeout` must be more than zero",
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
