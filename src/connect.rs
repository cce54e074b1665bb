use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::Namespaced;
use dlock_core::{Client, LockOptions, Result, Runtime, blocking, runtime, spi};

use crate::address::Address;
use crate::backends;

/// Connects to the store of that URL. Await it, or set more first: see [`Connect`].
///
/// ```
/// # #[cfg(all(feature = "sqlite", feature = "tokio"))]
/// # async fn doc() -> dlock::Result<()> {
/// let client = dlock::connect("sqlite::memory:?namespace=shop&ttl=20s").await?;
/// let guard = client.lock("stock/42")?.acquire().await?;
/// # guard.release().await }
/// ```
pub fn connect(url: impl Into<String>) -> Connect {
    Connect {
        url: url.into(),
        runtime: None,
        defaults: LockOptions::new(),
        op_timeout: None,
    }
}

/// A connection to be made. Await it to get the [`Client`].
///
/// # The URL
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory://` | a fresh store in this process, of this client alone | always there |
/// | `sqlite:///absolute/path` | a SQLite file, made if it is missing | `sqlite` |
/// | `sqlite://path/to/file` | the same, relative to the working directory of this process | `sqlite` |
/// | `sqlite::memory:` | a fresh SQLite database in this process, of this client alone | `sqlite` |
///
/// Every store takes these keys in its query, each at most once:
///
/// | key | meaning |
/// |---|---|
/// | `namespace` | all names live in this namespace: see [`Namespaced`] |
/// | `ttl` | the ttl of this client's locks, as `30s` or `500ms`, but for handles whose [`options`](dlock_core::Lock::options) set one |
/// | `op_timeout` | how long one exchange with the store may take |
///
/// `sqlite` takes two more:
///
/// | key | meaning |
/// |---|---|
/// | `table_prefix` | what the names of its tables begin with, `dlock_` unless given |
/// | `busy_budget` | how long to wait for another process's write transaction, `2s` unless given |
///
/// What is not plain text is percent-encoded. Two processes with different working directories open two files by one relative
/// path, and do not exclude one another. A `sqlite` URL with a user, a password, a host or a port is refused.
///
/// Nothing is shared by name inside a process: two clients of `memory://` have
/// two stores. To share one, make a [`Memory`](dlock_core::memory::Memory) and give each client a link to it.
///
/// # Cancel safety
///
/// Dropping the future closes what was opened; no lock is involved yet.
///
/// # Errors
///
/// `InvalidInput` for a URL that is malformed, has an unknown scheme or key, a key twice, or a value that does not fit;
/// `Unsupported` if the feature of the scheme is not enabled, or no runtime; otherwise what the store answers. No message
/// repeats the URL, which may hold a password. The path of a SQLite file is no secret: messages and `Debug` show it.
#[must_use = "nothing is connected before this is awaited"]
pub struct Connect {
    url: String,
    runtime: Option<Arc<dyn Runtime>>,
    defaults: LockOptions,
    op_timeout: Option<Duration>,
}

impl Connect {
    /// Runs on that runtime, rather than on the one that [`runtime::detect`] finds when this is awaited.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// How this client's locks are asked for and held unless they say otherwise. A `ttl` in the URL goes before the
    /// ttl in here: the URL is what is changed in operation. Called again, it is laid over what it was called with before.
    pub fn defaults(mut self, defaults: LockOptions) -> Self {
        self.defaults = defaults.over(&self.defaults);
        self
    }

    /// How long one exchange with the store may take. An `op_timeout` in the URL goes before this.
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.op_timeout = Some(limit);
        self
    }

    /// Connects at once, for threads that block: see [`blocking`](crate::blocking). Without a runtime set, it runs on
    /// [`own_thread`](runtime::own_thread).
    ///
    /// # Errors
    ///
    /// As those of the future; `Unavailable` if the thread cannot be started.
    pub fn blocking(mut self) -> Result<blocking::Client> {
        if self.runtime.is_none() {
            self.runtime = Some(blocking_runtime()?);
        }
        blocking::block_on(self).map(|client| client.blocking())
    }

    async fn open(self) -> Result<Client> {
        let mut address = Address::parse(&self.url)?;
        let namespace: Option<String> = address.take("namespace")?;
        let ttl: Option<Duration> = address.take("ttl")?;
        let op_timeout: Option<Duration> = address.take("op_timeout")?.or(self.op_timeout);
        // Checked to the last key before a runtime is looked for or a file touched.
        let opener = backends::opener(address)?;
        let runtime = match self.runtime {
            Some(runtime) => runtime,
            None => runtime::detect()?,
        };
        let mut backend: Arc<dyn spi::Lock> = opener.open(runtime.clone()).await?;
        if let Some(namespace) = namespace {
            backend = Arc::new(Namespaced::new(backend, namespace)?);
        }
        let mut defaults = self.defaults;
        if let Some(ttl) = ttl {
            defaults = defaults.ttl(ttl);
        }
        let mut client = Client::builder(backend, runtime).defaults(defaults);
        if let Some(limit) = op_timeout {
            client = client.op_timeout(limit);
        }
        client.build()
    }
}

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
fn blocking_runtime() -> Result<Arc<dyn Runtime>> {
    runtime::own_thread()
}

/// Says what to enable.
#[cfg(not(any(feature = "tokio", feature = "smol", feature = "async-std")))]
fn blocking_runtime() -> Result<Arc<dyn Runtime>> {
    runtime::detect()
}

impl IntoFuture for Connect {
    type Output = Result<Client>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Client>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// Does not show the URL, which may hold a password.
impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("runtime", &self.runtime)
            .field("defaults", &self.defaults)
            .field("op_timeout", &self.op_timeout)
            .finish_non_exhaustive()
    }
}
