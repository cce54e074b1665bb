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

/// Of a client for which none is set.
const OP_TIMEOUT: Duration = Duration::from_secs(5);

/// A member of a quorum that does not answer is waited for, for that part of it.
const PATIENCE: u32 = 5;

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
    Connect::to(Place::One(url.into()))
}

/// Connects to a majority of several stores: a [`Quorum`](dlock_core::combinators::Quorum), one lock that is
/// held by whoever most of them say, with a minority of them away or forgetful. This is Redlock where they
/// are Redis servers, and fenced, which Redlock is not.
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
/// Each URL is that of one store, as [`Connect`] has it: single Redis servers, SQLite files on different
/// disks, or both. Three at least, an odd number best. Every process must give the same ones in the same
/// order. `namespace`, `ttl` and `op_timeout` are of the whole: they are the same in all of the URLs. A
/// member that does not answer is waited for, for a fifth of the `op_timeout`.
///
/// It can be opened while a minority is away. The members need a thought before: see `docs/redis.md` on
/// persistence and `rejoin_after`.
///
/// # Errors
///
/// Beside those of [`Connect`]: `InvalidInput` if there are fewer than three, if two lead to one store (by
/// their URLs, or by what a server says of itself), if they differ in what must be the same (`prefix` and
/// `table_prefix` too), or if one is a cluster, a group with sentinels, or a store in memory. `Unavailable`
/// if fewer than a majority can be used now. Any other error of one member, a wrong password for instance.
pub fn quorum<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Connect {
    Connect::to(Place::Quorum(urls.into_iter().map(Into::into).collect()))
}

/// Where the locks are.
enum Place {
    One(String),
    Quorum(Vec<String>),
}

/// What a URL says of the whole client.
#[derive(PartialEq)]
struct Whole {
    namespace: Option<String>,
    ttl: Option<Duration>,
    op_timeout: Option<Duration>,
}

/// Checked to the last key before a runtime is looked for or a file touched.
fn read(url: &str) -> Result<(Whole, Opener)> {
    let mut url = Url::parse(url)?;
    let whole = Whole {
        namespace: url.take("namespace")?,
        ttl: url.take("ttl")?,
        op_timeout: url.take("op_timeout")?,
    };
    Ok((whole, backends::opener(url)?))
}

/// All URLs of a quorum, which say the same of the whole.
fn read_all(urls: &[String]) -> Result<(Whole, Vec<Opener>)> {
    let (wholes, members): (Vec<_>, Vec<_>) = urls
        .iter()
        .map(|url| read(url))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .unzip();
    crate::quorum::check(&members)?;
    let mut wholes = wholes.into_iter();
    let first = wholes.next();
    let first = first.ok_or_else(|| invalid("a quorum has members"))?;
    if wholes.any(|other| other != first) {
        return Err(invalid(
            "the members' URLs differ in `namespace`, `ttl` or `op_timeout`, which are of the whole quorum",
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
/// | `memory://` | a fresh store in this process, of this client alone | always there |
/// | `sqlite:///absolute/path` | a SQLite file, made if it is missing | `sqlite` |
/// | `sqlite://path/to/file` | the same, relative to the working directory of this process | `sqlite` |
/// | `sqlite::memory:` | a fresh SQLite database in this process, of this client alone | `sqlite` |
/// | `redis://[[user]:password@]host[:port][/database]` | a Redis server, and so all below | `redis` |
/// | `valkey://...`, `valkeys://...` | the same as `redis` and `rediss`, in all forms | `redis` |
/// | `redis+unix:///path`, `unix://...` | a Redis server on this machine, by its socket | `redis` |
/// | `redis+sentinel://host[:port],.../master[/database]` | the server that these sentinels call the master of that name | `redis-sentinel` |
/// | `redis+cluster://host[:port],...` | the Redis Cluster that some of its nodes tell of | `redis-cluster` |
/// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same by TLS | `redis-tls` |
/// | `zk://[user:password@]host[:port],.../path`, `zookeeper://...` | a ZooKeeper ensemble, all of whose servers are given, and the path below which everything is | `zookeeper` |
/// | `zks://...` | the same by TLS | `zookeeper-tls` |
/// | `etcd://[user:password@]host[:port],.../prefix` | an etcd cluster, all of whose members are given, and what all keys begin with | `etcd` |
/// | `etcds://...` | the same by TLS | `etcd-tls` |
/// | `postgres://[user[:password]@]host[:port]/database`, `postgresql://...` | a PostgreSQL database | `postgres` |
/// | `mysql://[user[:password]@]host[:port]/database`, `mariadb://...` | a MySQL or MariaDB database | `mysql` |
///
/// Every store takes these keys in its query, each at most once:
///
/// | key | meaning |
/// |---|---|
/// | `namespace` | all names live in this namespace: see [`Namespaced`] |
/// | `ttl` | the ttl of this client's locks, as `30s` or `500ms`, but for handles whose [`options`](dlock_core::Lock::options) set one |
/// | `op_timeout` | how long one exchange with the store may take, and to open it; `5s` unless given |
///
/// Databases that are servers take one more: `strategy=lease`, as it is unless given, has locks in rows that
/// end by the server's clock; `strategy=session` has the server's own locks, which end with a connection.
/// Which one when is in [`docs/sql.md`](https://github.com/dlock-rs/dlock/blob/main/docs/sql.md). The rest is
/// what the settings of the store read in a URL, and is told there:
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
/// What is not plain text is percent-encoded. Two processes with different working directories open two files
/// by one relative path, and do not exclude one another. A `sqlite` URL with a user, a password, a host or a
/// port is refused.
///
/// Nothing is shared by name inside a process: two clients of `memory://` have two stores. To share one, make
/// a [`Memory`](dlock_core::memory::Memory) and give each client a connection to it.
///
/// # Cancel safety
///
/// Dropping the future closes what was opened; no lock is involved yet.
///
/// # Errors
///
/// `InvalidInput` for a URL that is malformed, has an unknown scheme or key, a key twice, or a value that
/// does not fit; `Unsupported` if the feature of the scheme is not enabled, or no runtime; otherwise what the
/// store answers. No message repeats the URL, which may hold a password. The path of a SQLite file is no
/// secret: messages and `Debug` show it.
#[must_use = "nothing is connected before this is awaited"]
pub struct Connect {
    place: Place,
    runtime: Option<Arc<dyn Runtime>>,
    /// Each is laid over those before it.
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

    /// Runs on that runtime, rather than on the one that [`runtime::detect`] finds when this is awaited.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// How this client's locks are asked for and held unless they say otherwise. A `ttl` in the URL goes
    /// before the ttl in here: the URL is what is changed in operation. Called again, it is laid over what it
    /// was called with before.
    pub fn defaults(mut self, defaults: LockOptions) -> Self {
        self.defaults.push(defaults);
        self
    }

    /// How long one exchange with the store may take, and how long it may take to open it; 5 s unless set. An
    /// `op_timeout` in the URL goes before this.
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.op_timeout = Some(limit);
        self
    }

    /// Connects at once, for threads that block: see [`blocking`](crate::blocking). Without a runtime set, it
    /// runs on [`own_thread`](runtime::own_thread).
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
        let (whole, opener) = match &self.place {
            Place::One(url) => read(url)?,
            Place::Quorum(urls) => {
                let (whole, members) = read_all(urls)?;
                let limit = whole.op_timeout.or(self.op_timeout).unwrap_or(OP_TIMEOUT);
                (whole, Opener::Quorum(members, limit / PATIENCE))
            }
        };
        let Whole { namespace, ttl, .. } = whole;
        let op_timeout = whole.op_timeout.or(self.op_timeout).unwrap_or(OP_TIMEOUT);
        let runtime = match self.runtime {
            Some(runtime) => runtime,
            None => runtime::detect()?,
        };
        // Whatever listens there: a server of another kind may wait for us to speak, as we for it.
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
        let of_the_url = ttl.map(|ttl| LockOptions::new().ttl(ttl));
        let defaults = self.defaults.into_iter().chain(of_the_url);
        let client = defaults.fold(Client::builder(backend, runtime), ClientBuilder::defaults);
        client.op_timeout(op_timeout).build()
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
