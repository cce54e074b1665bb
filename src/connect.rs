use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::Namespaced;
use dlock_core::spi::Url;
use dlock_core::{Client, ClientBuilder, Error, ErrorKind, LockOptions, Result, Runtime, blocking, runtime};
use futures::future::{Either, select};

use crate::backends::{self, Opener};
use crate::invalid;

/// The default.
const OP_TIMEOUT: Duration = Duration::from_secs(5);

/// A member of a quorum that does not answer is waited for, for this part of the `op_timeout`.
const PATIENCE: u32 = 5;

/// Connects to the store at `url`. Await the result, or set more first: see [`Connect`], which lists the
/// URLs.
///
/// # Examples
/// ```
/// # #[cfg(all(feature = "sqlite", feature = "tokio"))] #[tokio::main]
/// # async fn main() -> dlock::Result<()> {
/// let client = dlock::connect("sqlite::memory:?namespace=shop&ttl=20s").await?;
/// let guard = client.lock("stock/42")?.acquire().await?;
/// guard.release().await
/// # }
/// # #[cfg(not(all(feature = "sqlite", feature = "tokio")))] fn main() {}
/// ```
pub fn connect(url: impl Into<String>) -> Connect {
    Connect::to(Place::One(url.into()))
}

/// Connects to several stores as one: a [`Quorum`](dlock_core::combinators::Quorum), whose locks are held if
/// a majority of the stores grants them, even while a minority is away. With Redis servers this is Redlock,
/// but with fencing tokens, which Redlock lacks.
///
/// ```no_run
/// # #[cfg(all(feature = "redis", feature = "tokio"))]
/// # async fn doc() -> dlock::Result<()> {
/// let servers = ["redis://lock-a", "redis://lock-b", "redis://lock-c", "redis://lock-d", "redis://lock-e"];
/// let client = dlock::quorum(servers.map(|url| format!("{url}?rejoin_after=40s&ttl=30s"))).await?;
/// let guard = client.lock("stock/42")?.acquire().await?;
/// # guard.release().await }
/// ```
///
/// Each URL is that of one store, as in [`Connect`]: single Redis servers, SQLite files on different disks,
/// or both. At least three are needed; an odd number is best. All processes must list the same URLs in the
/// same order. `namespace`, `ttl` and `op_timeout` apply to the whole quorum, and must be the same in all
/// URLs. A member that does not answer is waited for, for a fifth of the `op_timeout`.
///
/// A quorum can be opened while a minority is away. The members must be configured for it: see
/// `docs/redis.md` on persistence and `rejoin_after`.
///
/// # Errors
///
/// As [`Connect`]. Also `InvalidInput` if there are fewer than three URLs, if two lead to the same store (by
/// their URLs, or by what the servers report), if they differ in options that must be the same (also `prefix`
/// and `table_prefix`), or if one is a cluster, a group with sentinels, or a store in memory; `Unavailable`
/// if fewer than a majority can be used now. An error of one member that does not pass, such as a wrong
/// password, is returned.
pub fn quorum<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Connect {
    Connect::to(Place::Quorum(urls.into_iter().map(Into::into).collect()))
}

/// The store or stores to connect to.
enum Place {
    One(String),
    Quorum(Vec<String>),
}

/// The options in a URL that apply to the client, not to its store.
#[derive(PartialEq)]
struct ClientOptions {
    namespace: Option<String>,
    ttl: Option<Duration>,
    op_timeout: Option<Duration>,
}

/// Parses and checks a URL completely, before a runtime is chosen or a file is touched.
fn read(url: &str) -> Result<(ClientOptions, Opener)> {
    let mut url = Url::parse(url)?;
    let options = ClientOptions {
        namespace: url.take("namespace")?,
        ttl: url.take("ttl")?,
        op_timeout: url.take("op_timeout")?,
    };
    Ok((options, backends::opener(url)?))
}

/// Parses all URLs of a quorum, which must agree on the options of the client.
fn read_all(urls: &[String]) -> Result<(ClientOptions, Vec<Opener>)> {
    let (all_options, members): (Vec<_>, Vec<_>) = urls
        .iter()
        .map(|url| read(url))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .unzip();
    crate::quorum::check(&members)?;
    let mut all_options = all_options.into_iter();
    let first = all_options.next();
    let first = first.ok_or_else(|| invalid("a quorum needs at least three members"))?;
    if all_options.any(|other| other != first) {
        return Err(invalid(
            "the members' URLs must not differ in `namespace`, `ttl` or `op_timeout`, which apply to the \
                whole quorum",
        ));
    }
    Ok((first, members))
}

/// A connection to be made. Await it to get the [`Client`].
///
/// # The URL
///
/// | URL | store | feature |
/// |---|---|---|
/// | `memory://` | a new store in this process, for this client only | always |
/// | `sqlite:///absolute/path` | a SQLite file, created if it is missing | `sqlite` |
/// | `sqlite://path/to/file` | the same, relative to the working directory of this process | `sqlite` |
/// | `sqlite::memory:` | a new SQLite database in this process, for this client only | `sqlite` |
/// | `redis://[[user]:password@]host[:port][/database]` | a Redis server; also for the next rows | `redis` |
/// | `valkey://...`, `valkeys://...` | the same as `redis` and `rediss`, in all forms | `redis` |
/// | `redis+unix:///path`, `unix://...` | a Redis server on this machine, by its socket | `redis` |
/// | `redis+sentinel://host[:port],.../master[/database]` | the master of that name, according to these sentinels | `redis-sentinel` |
/// | `redis+cluster://host[:port],...` | a Redis Cluster, found through some of its nodes | `redis-cluster` |
/// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same over TLS | `redis-tls` |
/// | `zk://[user:password@]host[:port],.../path`, `zookeeper://...` | a ZooKeeper ensemble: all its servers, and the path under which everything is stored | `zookeeper` |
/// | `zks://...` | the same over TLS | `zookeeper-tls` |
/// | `etcd://[user:password@]host[:port],.../prefix` | an etcd cluster: all its members, and the prefix of all keys | `etcd` |
/// | `etcds://...` | the same over TLS | `etcd-tls` |
/// | `postgres://[user[:password]@]host[:port]/database`, `postgresql://...` | a PostgreSQL database | `postgres` |
/// | `mysql://[user[:password]@]host[:port]/database`, `mariadb://...` | a MySQL or MariaDB database | `mysql` |
///
/// Every store takes these keys in the query, each at most once:
///
/// | key | meaning |
/// |---|---|
/// | `namespace` | puts all names into this namespace: see [`Namespaced`] |
/// | `ttl` | the ttl of this client's locks, as `30s` or `500ms`, unless the [`options`](dlock_core::Lock::options) of a handle set one |
/// | `op_timeout` | how long one request to the store may take, and opening it; `5s` by default |
///
/// Database servers take one more key. With `strategy=lease`, the default, locks are rows that expire by the
/// server's clock. With `strategy=session` they are the server's own locks, which end with a connection.
/// [`docs/sql.md`](https://github.com/dlock-rs/dlock/blob/main/docs/sql.md) says which to choose. The other
/// keys are documented with the configuration of each store:
///
#[cfg_attr(
    feature = "sqlite",
    doc = "* `sqlite`: [`sqlite::Config`](crate::sqlite::Config::read)"
)]
#[cfg_attr(
    feature = "redis",
    doc = "* `redis` in all its forms: [`redis::Config`](crate::redis::Config::from_url)"
)]
#[cfg_attr(
    feature = "zookeeper",
    doc = "* `zk`, `zookeeper` and `zks`: [`zookeeper::Config`](crate::zookeeper::Config::from_url)"
)]
#[cfg_attr(
    feature = "etcd",
    doc = "* `etcd` and `etcds`: [`etcd::Config`](crate::etcd::Config::from_url)"
)]
#[cfg_attr(
    any(feature = "postgres", feature = "mysql"),
    doc = "* `postgres`, `mysql` and their other names: [`lease::Config`](crate::lease::Config::read), or \
           [`session::Config`](crate::session::Config::read), and of both [the driver](dlock_sql::driver_url)"
)]
///
/// Percent-encode everything that is not plain text. Two processes with different working directories open
/// two files by the same relative path, and do not exclude one another. A `sqlite` URL with a user, a
/// password, a host or a port is refused.
///
/// Stores in memory are not shared by name: two clients of `memory://` have two stores. To share one, create
/// a [`Memory`](dlock_core::memory::Memory) and give each client a connection to it.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future closes what was opened. No lock is involved yet.
///
/// # Errors
///
/// `InvalidInput` for a URL that is malformed, has an unknown scheme or key, a key twice, or a value that
/// does not fit; `Unsupported` if the feature of the scheme, or every runtime, is disabled; otherwise the
/// error of the store. No message repeats the URL, which may contain a password. The path of a SQLite file is
/// no secret: messages and `Debug` show it.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "tokio")] #[tokio::main]
/// # async fn main() -> dlock::Result<()> {
/// use dlock::LockOptions;
/// use std::time::Duration;
/// let client = dlock::connect("memory://")
///     .defaults(LockOptions::new().wait_limit(Duration::from_secs(10)))
///     .op_timeout(Duration::from_secs(2))
///     .await?;
/// # client.close().await
/// # }
/// # #[cfg(not(feature = "tokio"))] fn main() {}
/// ```
#[must_use = "nothing is connected before this is awaited"]
pub struct Connect {
    place: Place,
    runtime: Option<Arc<dyn Runtime>>,
    /// Each overrides those before it.
    defaults: Vec<LockOptions>,
    op_timeout: Option<Duration>,
}

impl Connect {
    fn to(place: Place) -> Self {
        Self {
            place,
            runtime: None,
            defaults: Vec::new(),
            op_timeout: None,
        }
    }

    /// Sets the runtime to run on. By default it is the one that [`runtime::detect`] finds when this is
    /// awaited.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Sets the options that this client's locks start with. A further call overrides what earlier calls set,
    /// and keeps the rest.
    ///
    /// A `ttl` in the URL has precedence over one in `defaults`, so that it can be changed in operation.
    pub fn defaults(mut self, defaults: LockOptions) -> Self {
        self.defaults.push(defaults);
        self
    }

    /// Sets how long one request to the store may take, and how long opening the store may take; 5 s by
    /// default. An `op_timeout` in the URL has precedence.
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.op_timeout = Some(limit);
        self
    }

    /// Connects at once, for threads that block: see [`blocking`](crate::blocking). Unless a runtime was set,
    /// the client runs on [`own_thread`](runtime::own_thread).
    ///
    /// # Errors
    ///
    /// As for the future; `Unavailable` if the thread cannot be started.
    pub fn blocking(mut self) -> Result<blocking::Client> {
        if self.runtime.is_none() {
            self.runtime = Some(blocking_runtime()?);
        }
        blocking::block_on(self).map(|client| client.blocking())
    }

    async fn open(self) -> Result<Client> {
        let (options, opener) = match &self.place {
            Place::One(url) => read(url)?,
            Place::Quorum(urls) => {
                let (options, members) = read_all(urls)?;
                let limit = options.op_timeout.or(self.op_timeout).unwrap_or(OP_TIMEOUT);
                (options, Opener::Quorum(members, limit / PATIENCE))
            }
        };
        let ClientOptions { namespace, ttl, .. } = options;
        let op_timeout = options.op_timeout.or(self.op_timeout).unwrap_or(OP_TIMEOUT);
        let runtime = match self.runtime {
            Some(runtime) => runtime,
            None => runtime::detect()?,
        };
        // A server of another kind may wait for the client to speak first, while the client waits for the
        // server.
        let limit = runtime.sleep(op_timeout);
        let mut backend = match select(pin!(opener.open(runtime.clone())), limit).await {
            Either::Left((opened, _)) => opened?,
            Either::Right(_) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "the store could not be opened within {op_timeout:?}, the `op_timeout`; \
                         does a server of this kind listen there?"
                    ),
                ));
            }
        };
        if let Some(namespace) = namespace {
            backend = Arc::new(Namespaced::new(backend, namespace)?);
        }
        let from_url = ttl.map(|ttl| LockOptions::new().ttl(ttl));
        let defaults = self.defaults.into_iter().chain(from_url);
        let client = defaults.fold(Client::builder(backend, runtime), ClientBuilder::defaults);
        client.op_timeout(op_timeout).build()
    }
}

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
fn blocking_runtime() -> Result<Arc<dyn Runtime>> {
    runtime::own_thread()
}

/// Fails with a message that says what to enable.
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

/// Omits the URL, which may contain a password.
impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("runtime", &self.runtime)
            .field("defaults", &self.defaults)
            .field("op_timeout", &self.op_timeout)
            .finish_non_exhaustive()
    }
}
