//! The options of Redis, set by code or by a URL.

mod driver;
mod options;
mod url;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::spi::{Host, Unanswered, Url};
use dlock_core::{Capabilities, Error, ErrorKind, Result, Runtime};

use self::url::{Address, Form};
use crate::backend::{Backend, Store};
use crate::connection::check::Demands;
use crate::connection::members::Members;
use crate::connection::rejoin::Rejoin;
use crate::connection::server::Setup;
use crate::failure::{invalid, nothing_done};
use crate::lock::{self, RedisLock};
use crate::plain::{self, PlainLock};
use crate::replicas::Replicas;
use crate::scripts::{Script, Scripts};
use crate::wait::Pushes;

/// The prefix of all keys unless set.
const PREFIX: &str = "dlock";

/// The claim window unless set.
const WINDOW: Duration = Duration::from_secs(1);

/// How to reach Redis and keep locks in it. Built by code or [from a URL](Self::from_url).
///
/// ```no_run
/// # async fn doc(runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
/// use std::time::Duration;
/// use dlock_redis::Config;
///
/// let config = Config::from_url("redis://:password@locks.internal/0?prefix=shop")?; let lock =
/// config.timeout(Duration::from_secs(1)).connect(runtime).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    address: Address,
    plain: bool,
    prefix: Option<Arc<str>>,
    window: Option<Duration>,
    timeout: Duration,
    allow_eviction: bool,
    replicas: u32,
    rejoin: Option<Rejoin>,
    members: Option<Members>,
    lazily: bool,
    #[cfg(feature = "tls")]
    certificates: redis::TlsCertificates,
    #[cfg(feature = "sentinel")]
    sentinel_login: Option<(Option<String>, String)>,
}

impl Config {
    fn at(address: Address) -> Self {
        Self {
            address,
            plain: false,
            prefix: None,
            window: None,
            timeout: Duration::from_secs(2),
            allow_eviction: false,
            replicas: 0,
            rejoin: None,
            members: None,
            lazily: false,
            #[cfg(feature = "tls")]
            certificates: redis::TlsCertificates {
                client_tls: None,
                root_cert: None,
            },
            #[cfg(feature = "sentinel")]
            sentinel_login: None,
        }
    }

    /// Names one server, without a password and with database 0. For anything else use a
    /// [URL](Self::from_url).
    pub fn new(host: &str, port: u16) -> Self {
        Self::at(Address::new(Form::Server, vec![Host::new(host, port)]))
    }

    /// Uses the server, the credentials and the certificates of an existing client. The lock opens its own
    /// connections: one, or two with [`replicas`](Self::replicas).
    pub fn from_client(client: redis::Client) -> Self {
        Self::at(Address::new(Form::Client(Box::new(client)), Vec::new()))
    }

    /// Reads a URL:
    ///
    /// | URL | what | feature |
    /// |---|---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | one server | |
    /// | `redis+unix://[[user]:password@]/path` | one server, by its socket | |
    /// | `redis+sentinel://...host[:port],.../master[/database]` | the master that these sentinels name | `sentinel` |
    /// | `redis+cluster://...host[:port],...` | the cluster that these nodes belong to | `cluster` |
    /// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same over TLS | `tls` |
    ///
    /// `valkey` and `valkeys` mean the same as `redis` and `rediss`. The default port is 6379, and 26379 for
    /// sentinels. Percent-encode what is not plain text in a user or a password.
    ///
    /// | key of the query | sets |
    /// |---|---|
    /// | `prefix`, `claim_window`, `timeout`, `replicas`, `rejoin_after` | the option of that name; times as in `9ms` |
    /// | `allow_eviction=true` | [`allow_eviction`](Self::allow_eviction) |
    /// | `recipe=plain` | [`PlainLock`]s |
    /// | `ca`, and `cert` with `key` | files in PEM, for `root_certificate` and `client_certificate` |
    /// | `sentinel_password`, `sentinel_user` | `sentinel_login` |
    /// | `protocol=resp3` | nothing: it is always used. `resp2`, which has no pushes, is refused |
    /// | `db`, `user`, `pass` | database, user and password for a socket, as in the driver's own URLs |
    ///
    /// # Errors
    /// `InvalidInput` if the URL or an option is wrong; it names an unknown key, and never shows a value.
    /// `Unsupported` for a form whose feature is not enabled.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(Url::parse(url)?)
    }

    /// Reads a URL that is already parsed: see [`from_url`](Self::from_url).
    ///
    /// # Errors
    /// As [`from_url`](Self::from_url).
    pub fn read(mut url: Url) -> Result<Self> {
        let mut config = Self::at(Address::of(&url)?);
        config.take_all(&mut url)?;
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    /// Whether the URL asks for [`PlainLock`]s. Then connect with [`connect_plain`](Self::connect_plain).
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Sets the prefix of all keys and channels; `dlock` unless set. 1 to 64 letters, digits, `_`, `-` and
    /// `.`. Clients with different prefixes do not exclude one another. The prefix of plain locks is empty
    /// unless set, and may be any text without blanks.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// The prefix, if one was set.
    pub fn prefix_set(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// Sets how long a waiter has to claim a lock that was handed to it: 50 ms to 60 s, 1 s unless set. A
    /// waiter that was paused or cut off delays the others by that much when its turn comes; one whose
    /// process died does not.
    pub fn claim_window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets how long connecting may take, and after how long a silent server's connection is given up: an
    /// hour at most, 2 s unless set. The time limit of an operation is the client's `op_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Accepts a server that evicts keys when its memory is full. It can forget a held lock and grant it to a
    /// second holder, with a larger token: this is safe only where every write is fenced.
    pub fn allow_eviction(mut self) -> Self {
        self.allow_eviction = true;
        self
    }

    /// Sets how many replicas must acknowledge a grant, a renewal or a conversion before it counts; none
    /// unless set. A replica that acknowledged a grant still has it when it takes over, so name them all.
    ///
    /// * *A grant* that fewer acknowledge within half of the [`timeout`](Self::timeout) is given back. The
    ///   engine tries again until its `op_timeout` is over, which is best not below the `timeout`; then the
    ///   caller gets `Unavailable`, which says how many answered.
    /// * *A renewal* that fewer acknowledge fails, and leaves the deadline where it was. It is tried again.
    /// * *A conversion* that fewer acknowledge is `Unknown`: the guard has the weaker of both modes, and
    ///   asking again settles it.
    /// * *A release* does not wait: if it is forgotten, others wait for the rest of the ttl.
    ///
    /// This is not consensus: `docs/redis.md` says what it does not cover, and what it costs. Fencing tokens
    /// are as strong as without it.
    pub fn replicas(mut self, needed: u32) -> Self {
        self.replicas = needed;
        self
    }

    /// Refuses the server, with `Unavailable`, until it has been up for this long. Checked at each
    /// connection, and so after each restart.
    ///
    /// For a member of a [`Quorum`](dlock_core::combinators::Quorum) that loses its leases in a restart: it
    /// stays out until the leases that it forgot have run out, so that no lock is granted twice (*delayed
    /// restart*). Set the longest ttl of all clients of that server plus the drift margin: 40 s suffice for
    /// ttls of 30 s. Longer ttls are refused, by [`max_ttl`](dlock_core::Capabilities::max_ttl).
    ///
    /// The uptime is the server's own, by its wall clock: `docs/redis.md` says what that does not cover. It
    /// comes from `INFO`, which the user must be allowed to run, in whole seconds: the server may stay out a
    /// second longer. For single servers only.
    pub fn rejoin_after(mut self, uptime: Duration) -> Self {
        self.rejoin = Some(Rejoin::new(uptime));
        self
    }

    /// Refuses the server, with `InvalidInput`, if another config with the same [`Members`] has connected to
    /// it before. Servers are told apart by their run ids.
    ///
    /// For the members of a [`Quorum`](dlock_core::combinators::Quorum), each of which has one vote: two
    /// addresses may lead to one server. Nothing is compared if the user may not run `INFO`, or for a
    /// cluster.
    pub fn member_of(mut self, all: &Members) -> Self {
        self.members = Some(all.clone());
        self
    }

    /// Does not contact the server when connecting, so that it may be away. Errors appear with the first
    /// request for a lock, or from [`RedisLock::ready`]. For a member of a quorum; not for a cluster.
    pub fn lazily(mut self) -> Self {
        self.lazily = true;
        self
    }

    /// Trusts only these certificates, in PEM, instead of those of the system.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(pem.into());
        self
    }

    /// Authenticates with this certificate and its key, both in PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client_tls = Some(redis::ClientTlsConfig {
            client_cert: pem.into(),
            client_key: key.into(),
        });
        self
    }

    /// Sets the login for the sentinels; the login in the URL is for the master. Without it the sentinels are
    /// asked without a login.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_login = Some((user.map(str::to_owned), password.to_owned()));
        self
    }

    /// The address of the single server, without user, password and database. Equal addresses are one server.
    ///
    /// # Errors
    /// `InvalidInput` for a cluster or sentinels.
    pub fn single_server(&self) -> Result<String> {
        match self.address.is_single() {
            true => Ok(self.address.to_string()),
            false => Err(invalid(
                "the member must be a single server, not a cluster or one with sentinels: a server that \
                 takes over may know nothing of a lock",
            )),
        }
    }

    /// Connects to the servers.
    ///
    /// # Cancel safety
    /// If the future is dropped, a connection that was being made is closed.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong; `Unavailable` if the server is away, is a replica, or has fewer
    /// replicas than [`replicas`](Self::replicas); `PermissionDenied` if the user or the password is
    /// rejected; `Unsupported` if the server is too old, of another kind than the URL says, or evicts keys,
    /// and for a cluster with [`replicas`](Self::replicas).
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<RedisLock> {
        if self.plain {
            return Err(invalid("the URL says `recipe=plain`: use `connect_plain`"));
        }
        self.check()?;
        let is_cluster = self.address.is_cluster();
        if self.replicas > 0 && is_cluster {
            let message = "a cluster cannot wait for replicas: leave `replicas` out, or give the locks a \
                master of their own";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let scripts = Scripts::get(is_cluster);
        let pushes = Pushes::new(self.replicas > 0 || is_cluster);
        let setup = self.setup(&runtime, scripts.all(), pushes);
        let capabilities = lock::capabilities(self.rejoin.map(Rejoin::longest_ttl));
        let store = self.store(&setup, PREFIX, capabilities)?;
        let mut replicas = None;
        if self.replicas > 0 {
            let pushes = Pushes::new(false);
            let server = self.server(&store.at, &Setup { pushes, ..setup })?;
            replicas = Some(Arc::new(Replicas {
                needed: self.replicas,
                // A request that waited for the `WAIT` before its own has the same time again.
                limit: self.timeout / 2,
                server,
                scripts: scripts.clone(),
                store: store.clone(),
                queue: Mutex::default(),
            }));
        }
        let window = self.window.unwrap_or(WINDOW);
        let backend = Arc::new(Backend::new(store, window, scripts, replicas));
        let lock = RedisLock { backend };
        if !self.lazily {
            lock.ready().await?;
            if let Some(replicas) = &lock.backend.replicas {
                replicas.check().await?;
            }
        }
        Ok(lock)
    }

    /// Connects to the servers for [`PlainLock`]s, which exclude other clients of Redis too.
    ///
    /// # Cancel safety
    /// If the future is dropped, a connection that was being made is closed.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `InvalidInput` also for a claim window, replicas or `rejoin_after`,
    /// which plain locks do not have.
    pub async fn connect_plain(mut self, runtime: Arc<dyn Runtime>) -> Result<PlainLock> {
        self.plain = true;
        self.check()?;
        let scripts = plain::Scripts::new();
        let setup = self.setup(&runtime, scripts.all(), Pushes::new(false));
        let store = self.store(&setup, "", plain::capabilities())?;
        let ready = store.connection.ready().await;
        ready.map_err(|e| nothing_done(e, &store.at))?;
        Ok(PlainLock::new(store, scripts))
    }

    /// The servers, not connected yet.
    fn store(&self, setup: &Setup, prefix: &str, capabilities: Capabilities) -> Result<Arc<Store>> {
        let at: Arc<str> = self.address.to_string().into();
        Ok(Arc::new(Store {
            connection: self.connection(&at, setup)?,
            at,
            prefix: self.prefix.clone().unwrap_or_else(|| prefix.into()),
            runtime: setup.runtime.clone(),
            pushes: setup.pushes.clone(),
            unanswered: Unanswered::default(),
            capabilities,
            closed: AtomicBool::new(false),
        }))
    }

    /// How to connect to the servers, and what they must be.
    fn setup<'s>(
        &self,
        runtime: &Arc<dyn Runtime>,
        scripts: impl IntoIterator<Item = &'s Script>,
        pushes: Arc<Pushes>,
    ) -> Setup {
        #[cfg(feature = "tls")]
        if self.address.tls {
            driver::choose_provider();
        }
        let demands = Demands {
            is_cluster: self.address.is_cluster(),
            allow_eviction: self.allow_eviction,
            rejoin: self.rejoin,
            member: self.members.as_ref().map(Members::member),
        };
        Setup {
            demands,
            timeout: self.timeout,
            runtime: runtime.clone(),
            scripts: scripts.into_iter().cloned().collect(),
            pushes,
        }
    }
}

/// Shows no secrets.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("at", &self.address.to_string())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
