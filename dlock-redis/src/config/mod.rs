//! How Redis is reached and used: by code, or by a URL.

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

/// What all keys begin with unless something else is set.
const PREFIX: &str = "dlock";

/// How long a waiter whose turn has come has to answer unless something else is set.
const WINDOW: Duration = Duration::from_secs(1);

/// How Redis is reached and used.
///
/// ```no_run
/// # async fn doc(runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
/// use std::time::Duration;
/// use dlock_redis::Config;
///
/// let config = Config::from_url("redis://:password@locks.internal/0?prefix=shop")?;
/// let lock = config.timeout(Duration::from_secs(1)).connect(runtime).await?;
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

    /// One server, without a password and with database 0. All else is said by a [URL](Self::from_url).
    pub fn new(host: &str, port: u16) -> Self {
        Self::at(Address::new(Form::Server, vec![Host::new(host, port)]))
    }

    /// The server of a program's own client, with its credentials and its certificates. Connections of our
    /// own are made to it: one, or two with [`replicas`](Self::replicas).
    pub fn from_client(client: redis::Client) -> Self {
        Self::at(Address::new(Form::Client(Box::new(client)), Vec::new()))
    }

    /// The server, or the servers, of that URL:
    ///
    /// | URL | what | feature |
    /// |---|---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | a server | |
    /// | `redis+unix://[[user]:password@]/path` | the same, by its socket | |
    /// | `redis+sentinel://...host[:port],.../master[/database]` | these sentinels' master | `sentinel` |
    /// | `redis+cluster://...host[:port],...` | the cluster of these nodes and others | `cluster` |
    /// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same by TLS | `tls` |
    ///
    /// `valkey` and `valkeys` are other words for `redis` and `rediss`. Without a port it is 6379, and 26379
    /// of a sentinel. What is not plain text in a user or a password is percent-encoded.
    ///
    /// | key of the query | sets |
    /// |---|---|
    /// | `prefix`, `claim_window`, `timeout`, `replicas`, `rejoin_after` | what is so named; times as `9ms` |
    /// | `allow_eviction=true` | what has that name here |
    /// | `recipe=plain` | that these are [`PlainLock`]s |
    /// | `ca`, and `cert` with `key` | files in PEM, for `root_certificate` and `client_certificate` |
    /// | `sentinel_password`, `sentinel_user` | `sentinel_login` |
    /// | `protocol=resp3` | nothing: it is spoken anyway. `resp2` is refused, which has no pushes |
    /// | `db`, `user`, `pass` | of a socket, as the driver's own URLs have them |
    ///
    /// # Errors
    /// `InvalidInput` if the URL or an option is wrong, and names a key that is not known. Of what stands
    /// behind a key or in the URL nothing is repeated. `Unsupported` for a form whose feature is not enabled.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(Url::parse(url)?)
    }

    /// The same, of a URL from which somebody has taken their own keys.
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

    /// Whether the URL asks for [`PlainLock`]s: then [`connect_plain`](Self::connect_plain) connects.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// What all keys and channels begin with: letters, digits, `_`, `-` and `.`, 64 at most; `dlock` unless
    /// set. Clients of different prefixes do not exclude one another. That of plain locks is empty unless
    /// set, and may be any text without blanks.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// The prefix that was set.
    pub fn prefix_set(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// How long a waiter whose turn has come has to say that it is there, 50 ms to 60 s; 1 s unless set. A
    /// waiter that was stopped or cut off in the queue costs the others that much when its turn comes; one
    /// whose process died costs nothing.
    pub fn claim_window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// How long a connection may take to be made, and how long a server may be silent before its connection
    /// is given up; 2 s unless set, an hour at most. How long an operation may take is the client's
    /// `op_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Accepts a server that throws keys away when its memory is full. It can forget a lock that is held, and
    /// give it to a second holder with a larger token: that is safe only where every write is fenced.
    pub fn allow_eviction(mut self) -> Self {
        self.allow_eviction = true;
        self
    }

    /// How many replicas have to acknowledge a grant, a renewal or a conversion before it counts; none unless
    /// set. What they have is not forgotten when one of them takes over: so set it to as many as there are.
    ///
    /// * *A grant* that fewer acknowledge within half of the [`timeout`](Self::timeout) is given back. The
    ///   engine tries again until its `op_timeout` is over, which is best not below the `timeout`; then the
    ///   caller gets `Unavailable`, which says how many answered.
    /// * *A renewal* that fewer acknowledge fails, and leaves the deadline where it was. It is tried again.
    /// * *A conversion* that fewer acknowledge is `Unknown`: the guard has the weaker of both modes, and
    ///   asking again settles it.
    /// * *A release* waits for nobody: one that is forgotten costs others what is left of the ttl.
    ///
    /// It is no consensus: `docs/redis.md` says what it does not cover, and what it costs. Fencing tokens are
    /// as strong as without it.
    pub fn replicas(mut self, needed: u32) -> Self {
        self.replicas = needed;
        self
    }

    /// Refuses the server, with `Unavailable`, while it has been up for less than that; at each connection,
    /// and so after each restart.
    ///
    /// For a member of a [`Quorum`](dlock_core::combinators::Quorum) that does not keep its leases over a
    /// restart: it stays out until those that it forgot have run out, and so nobody is granted what somebody
    /// still holds (*delayed restart*). It takes the longest ttl of all who use that server, and the drift
    /// margin on top: 40 s are good for locks of 30 s. Longer ones are refused here, by
    /// [`max_ttl`](dlock_core::Capabilities::max_ttl).
    ///
    /// It is a server's own word, by its wall clock: `docs/redis.md` says what that does not cover. The
    /// server says it in `INFO`, which the user must be allowed, and in whole seconds: it stays out for up to
    /// a second longer. For the form `redis://` alone, with or without TLS.
    pub fn rejoin_after(mut self, uptime: Duration) -> Self {
        self.rejoin = Some(Rejoin::new(uptime));
        self
    }

    /// Refuses the server, with `InvalidInput`, where another one that is opened with the same [`Members`]
    /// has connected to it before, by its run id. For the members of a
    /// [`Quorum`](dlock_core::combinators::Quorum), of which each has one vote: two addresses may lead to
    /// one server. Nothing is compared where the user may not ask for `INFO`, and of a cluster.
    pub fn member_of(mut self, all: &Members) -> Self {
        self.members = Some(all.clone());
        self
    }

    /// Does not ask the server when it is opened, so that it may be away: what is wrong with it is said to
    /// whoever asks for a lock, or by [`RedisLock::ready`]. For a member of a quorum. Not for a cluster.
    pub fn lazily(mut self) -> Self {
        self.lazily = true;
        self
    }

    /// The certificates, in PEM, of whom it trusts to vouch for servers, instead of those of the system.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root_cert = Some(pem.into());
        self
    }

    /// The certificate by which this client says who it is, and its key, both in PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client_tls = Some(redis::ClientTlsConfig {
            client_cert: pem.into(),
            client_key: key.into(),
        });
        self
    }

    /// As whom the sentinels are asked; those in the URL are for the master. Without it they are asked as
    /// nobody.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_login = Some((user.map(str::to_owned), password.to_owned()));
        self
    }

    /// Where the single server is, without user, password and database: two that are written alike are one
    /// server.
    ///
    /// # Errors
    /// `InvalidInput` for a cluster and for sentinels.
    pub fn single_server(&self) -> Result<String> {
        match self.address.is_single() {
            true => Ok(self.address.to_string()),
            false => Err(invalid(
                "the member must be a single server, not a cluster or one with sentinels: a server that takes \
                 over may know nothing of a lock",
            )),
        }
    }

    /// Connects to the servers.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left but a connection that is closed when it is made.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong; `Unavailable` if the server is not there, is a replica, or has
    /// fewer replicas than [`replicas`](Self::replicas) asks for; `PermissionDenied` if it refuses the user
    /// or the password; `Unsupported` if it is too old, of another kind than the URL says, or evicts keys,
    /// and for a cluster with [`replicas`](Self::replicas).
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<RedisLock> {
        if self.plain {
            return Err(invalid("the URL says `recipe=plain`: use `connect_plain`"));
        }
        self.check()?;
        let is_cluster = self.address.is_cluster();
        if self.replicas > 0 && is_cluster {
            let message = "of a cluster no replicas can be asked to acknowledge grants: leave `replicas` \
                out, or give the locks a master of their own";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let scripts = Arc::new(Scripts::new(is_cluster));
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
                // Who waited for the `WAIT` before has the same time again.
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

    /// Connects to the servers for [`PlainLock`]s, which other clients of Redis know.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left but a connection that is closed when it is made.
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

    /// The servers, none of them connected to.
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

    /// How its servers are connected to, and what is wanted of them.
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

/// Without whatever is secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("at", &self.address.to_string())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
