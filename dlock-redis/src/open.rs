//! Opening servers.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use redis::{Client, ProtocolVersion, RedisError};

#[cfg(feature = "cluster")]
use crate::address::Node;
use crate::address::{Address, Form};
use crate::apart::Apart;
#[cfg(feature = "cluster")]
use crate::cluster::{At, Cluster};
use crate::connection::Connection;
use crate::failure::nothing_done;
use crate::link::{Failed, Link};
use crate::listening::Listening;
use crate::lock::{RedisLock, invalid};
use crate::pushes::Pushes;
use crate::rejoin::Rejoin;
use crate::replicas::Replicas;
use crate::scripts::{Script, Scripts};
#[cfg(feature = "sentinel")]
use crate::sentinels::Sentinels;
use crate::server::Demands;
#[cfg(feature = "cluster")]
use crate::single::Role;
use crate::single::Source;
use crate::tending::Tending;
use crate::way::Way;

/// With what all keys begin unless something else is set.
const PREFIX: &str = "dlock";

/// How long who is told has to answer unless something else is set.
const WINDOW: Duration = Duration::from_secs(1);

/// What is longer was not meant: an operation ends by its own limit.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// Of a quorum, whose members this is for.
const SHORTEST_TTL: Duration = Duration::from_millis(50);

/// How Redis is opened: see [`RedisLock::builder`].
#[derive(Clone)]
pub struct Builder {
    pub(crate) prefix: Option<Arc<str>>,
    pub(crate) window: Option<Duration>,
    pub(crate) timeout: Duration,
    allow_eviction: bool,
    pub(crate) replicas: u32,
    pub(crate) rejoin: Option<Rejoin>,
    apart: Option<Apart>,
    lazily: bool,
    #[cfg(feature = "tls")]
    certificates: Certificates,
    #[cfg(feature = "sentinel")]
    sentinel_login: Option<(Option<String>, String)>,
}

/// In PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
struct Certificates {
    root: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            prefix: None,
            window: None,
            timeout: Duration::from_secs(2),
            allow_eviction: false,
            replicas: 0,
            rejoin: None,
            apart: None,
            lazily: false,
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
            #[cfg(feature = "sentinel")]
            sentinel_login: None,
        }
    }
}

impl Builder {
    /// With what all keys and channels begin: letters, digits, `_`, `-` and `.`, 64 at most; `dlock` unless set. Clients of different
    /// prefixes do not exclude one another.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// How long a waiter that comes to its turn has to say that it is there, 50 ms to 60 s; 1 s unless set. A waiter that was stopped or cut
    /// off in the queue costs the others that much when its turn comes; one whose process died costs nothing.
    #[must_use]
    pub fn claim_window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// How long a connection may take to be made, and how long a server may be silent before its connection is given up; 2 s unless set, more than
    /// nothing and an hour at most.
    /// How long an operation may take is the client's `op_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens a server although it throws keys away when its memory is full. Such a server can forget a lock that is held, and then gives it
    /// to a second holder with a larger token: only where every write is fenced is that no accident.
    #[must_use]
    pub fn allow_eviction(mut self) -> Self {
        self.allow_eviction = true;
        self
    }

    /// How many replicas have to acknowledge a grant, a renewal or a conversion before it counts; none unless set. What they have is not
    /// forgotten when one of them takes over: so set it to as many as there are.
    ///
    /// * *A grant* that fewer acknowledge within half of the [`timeout`](Self::timeout) is given back. The engine tries again until its `op_timeout` is
    ///   over, which is best not below the `timeout`; then the caller gets `Unavailable`, which says how many answered.
    /// * *A renewal* that fewer acknowledge fails, and leaves the deadline where it was. It is tried again, as any that fails.
    /// * *A conversion* that fewer acknowledge is `Unknown`: the guard has the weaker of both modes, and asking again settles it.
    /// * *A release* waits for nobody: one that is forgotten costs others what is left of the ttl, and gives nobody a lock.
    ///
    /// It costs a second connection, and beside each grant a share in a script, a `WAIT` and an `INFO` on that: those that come
    /// at the same time share them, and wait for the slowest replica. A waiter whose turn comes asks for its grant, instead of taking it from
    /// the push: one more command for each hand-over.
    ///
    /// *It is no consensus.* The replicas acknowledge what is in their memory, not on their disks; a replica that did not acknowledge may take over,
    /// if there are more of them than these; a master that is cut off grants no more, but does not know that it is not the master. Whatever
    /// can be wrong is in `docs/redis.md`, and fencing tokens are as strong as without it.
    #[must_use]
    pub fn replicas(mut self, needed: u32) -> Self {
        self.replicas = needed;
        self
    }

    /// Refuses the server, with `Unavailable`, while it has been up for less than that; at each connection, and so after each restart. Without
    /// it, a server may be used as soon as it is there.
    ///
    /// For a member of a [`Quorum`](dlock_core::combinators::Quorum) that does not keep its leases over a restart: it stays out until those that it
    /// forgot have run out, and so nobody is granted what somebody still holds (*delayed restart*). The longest ttl of all who use that
    /// server, and the drift margin on top, is what it takes: 40 s are good for locks of 30 s. Longer ones are refused here, by
    /// [`max_ttl`](dlock_core::Capabilities::max_ttl).
    ///
    /// It is a server's own word, by its wall clock: not covered are `FLUSHALL` and other ways to delete keys, a clock that is set *forward* after the
    /// server was started, and a machine that was put back to a snapshot. The server says it in `INFO`, which the user must be allowed. It says
    /// whole seconds: a server stays out for up to a second longer.
    ///
    /// For the form `redis://` alone, with or without TLS: of several servers behind one URL, one may be up for long and know nothing.
    #[must_use]
    pub fn rejoin_after(mut self, uptime: Duration) -> Self {
        self.rejoin = Some(Rejoin::new(uptime));
        self
    }

    /// Refuses the server, with `InvalidInput`, where another one that is opened with the same [`Apart`] has connected to it before: by the run id that it
    /// says, at each connection. For the members of a [`Quorum`](dlock_core::combinators::Quorum), of which each has one vote: two addresses may lead to one
    /// server, which is away when they are opened.
    ///
    /// Nothing is compared where the user may not ask for `INFO`, and of a cluster.
    #[must_use]
    pub fn apart(mut self, all: &Apart) -> Self {
        self.apart = Some(all.clone());
        self
    }

    /// Opens it without asking the server, which may be away: what is wrong with it is said to whoever asks for a lock, or by
    /// [`RedisLock::ready`]. For a member of a quorum: that can begin while a minority is away. Not for a cluster.
    #[must_use]
    pub fn lazily(mut self) -> Self {
        self.lazily = true;
        self
    }

    /// The certificates, in PEM, of whom it trusts to vouch for servers, instead of those of the system.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root = Some(pem.into());
        self
    }

    /// The certificate by which this client says who it is, and its key, both in PEM.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client = Some((pem.into(), key.into()));
        self
    }

    /// As whom the sentinels are asked; those in the URL are for the master. Without it they are asked as nobody.
    #[cfg(feature = "sentinel")]
    #[must_use]
    pub fn sentinel_login(mut self, user: Option<&str>, password: &str) -> Self {
        self.sentinel_login = Some((user.map(str::to_owned), password.to_owned()));
        self
    }

    /// Opens the server, or the servers, of that URL:
    ///
    /// | URL | what | feature |
    /// |---|---|---|
    /// | `redis://[[user]:password@]host[:port][/database]` | a server | |
    /// | `redis+unix://[[user]:password@]/path` | the same, by its socket | |
    /// | `redis+sentinel://[[user]:password@]host[:port],.../master[/database]` | the server that these sentinels call the master of that name | `sentinel` |
    /// | `redis+cluster://[[user]:password@]host[:port],...` | the cluster that some of its nodes tell of | `cluster` |
    /// | `rediss://`, `rediss+sentinel://`, `rediss+cluster://` | the same by TLS | `tls` |
    ///
    /// Without a port it is 6379, and 26379 of a sentinel. What is not plain text in a user or a password is percent-encoded.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left but a connection that is closed when it is made.
    ///
    /// # Errors
    /// `InvalidInput` if an option or the URL is wrong; `Unavailable` if the server is not there, is a replica, or has fewer replicas than
    /// [`replicas`](Self::replicas) asks for; `PermissionDenied` if it
    /// refuses the user or the password; `Unsupported` if it is too old, of another kind than the URL says, or evicts keys, for a form whose
    /// feature is not enabled, and for a cluster with [`replicas`](Self::replicas).
    pub async fn open(self, url: &str, runtime: Arc<dyn Runtime>) -> Result<RedisLock> {
        let address = self.read(url)?;
        let at: Arc<str> = address.to_string().into();
        #[cfg(feature = "tls")]
        if address.tls {
            choose_provider();
        }
        if self.replicas > 0 && address.is_cluster() {
            let message = "of a cluster no replicas can be asked to acknowledge grants: leave `replicas` out, or give the locks a master of their own";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let pushes = Pushes::new(self.replicas > 0 || address.is_cluster());
        let scripts = Arc::new(Scripts::new(address.is_cluster()));
        let way = self.way(address.is_cluster(), &runtime, scripts.all(), &pushes);
        let link = self.link(&address, &at, &way)?;
        let second = (self.replicas > 0)
            .then(|| self.source(&address, &at))
            .transpose()?;
        let replicas = second.map(|source| self.acknowledging(source, &way, &at, &scripts));
        self.finish((link, replicas), at, scripts, pushes, runtime).await
    }

    /// The servers of that address.
    pub(crate) fn link(&self, address: &Address, at: &Arc<str>, way: &Way) -> Result<Link> {
        #[cfg(feature = "cluster")]
        if address.is_cluster() {
            return self.cluster(address, at, way).map(Link::Cluster);
        }
        Ok(Link::Single(way.line(self.source(address, at)?)))
    }

    fn source(&self, address: &Address, at: &str) -> Result<Source> {
        match &address.form {
            #[cfg(feature = "sentinel")]
            Form::Sentinel { master } => self.sentinels(address, master, at),
            _ => {
                let info = address.nodes().next();
                let info = info.unwrap_or_else(|| Err(invalid("the URL names no host".to_owned())))?;
                Ok(Source::Server(Box::new(self.client(info, at)?)))
            }
        }
    }

    /// The replicas of the master there.
    fn acknowledging(
        &self,
        source: Source,
        way: &Way,
        at: &Arc<str>,
        scripts: &Arc<Scripts>,
    ) -> Arc<Replicas> {
        let nobody_waits = Pushes::new(false);
        Arc::new(Replicas {
            needed: self.replicas,
            // Who waited for the `WAIT` before has the same time again.
            limit: self.timeout / 2,
            line: Way {
                pushes: nobody_waits,
                ..way.clone()
            }
            .line(source),
            scripts: scripts.clone(),
            runtime: way.runtime.clone(),
            at: at.clone(),
            prefix: self.prefix.clone().unwrap_or_else(|| PREFIX.into()),
            queue: Mutex::default(),
        })
    }

    /// Checks the options and the URL, without a connection.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is wrong, `Unsupported` if the URL is of a form whose feature is not enabled.
    pub fn check_url(&self, url: &str) -> Result<()> {
        self.read(url).map(drop)
    }

    fn read(&self, url: &str) -> Result<Address> {
        self.check()?;
        let address = Address::parse(url)?;
        if self.rejoin.is_some() && address.form != Form::Server {
            return Err(invalid(
                "`rejoin_after` is for a single server: of several, one may be up for long that knows nothing of the locks"
                    .to_owned(),
            ));
        }
        #[cfg(feature = "cluster")]
        if self.lazily && address.form == Form::Cluster {
            return Err(invalid("a cluster is connected to when it is opened".to_owned()));
        }
        Ok(address)
    }

    /// Opens the server of a client that is there already, with its credentials and its certificates. A connection of its own is made, or two
    /// with [`replicas`](Self::replicas).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_client(self, client: Client, runtime: Arc<dyn Runtime>) -> Result<RedisLock> {
        self.check()?;
        let (client, at) = own(client)?;
        let pushes = Pushes::new(self.replicas > 0);
        let scripts = Arc::new(Scripts::new(false));
        let way = self.way(false, &runtime, scripts.all(), &pushes);
        let source = || Source::Server(Box::new(client.clone()));
        let link = Link::Single(way.line(source()));
        let replicas = (self.replicas > 0).then(|| self.acknowledging(source(), &way, &at, &scripts));
        self.finish((link, replicas), at, scripts, pushes, runtime).await
    }

    /// How its servers are reached, and what is wanted of them.
    pub(crate) fn way<'s>(
        &self,
        is_cluster: bool,
        runtime: &Arc<dyn Runtime>,
        scripts: impl IntoIterator<Item = &'s Script>,
        pushes: &Arc<Pushes>,
    ) -> Way {
        let demands = Demands {
            is_cluster,
            allow_eviction: self.allow_eviction,
            rejoin: self.rejoin,
            apart: self.apart.as_ref().map(Apart::member),
        };
        Way {
            demands,
            timeout: self.timeout,
            runtime: runtime.clone(),
            scripts: scripts.into_iter().cloned().collect(),
            pushes: pushes.clone(),
        }
    }

    #[cfg(feature = "cluster")]
    fn cluster(&self, address: &Address, at: &Arc<str>, way: &Way) -> Result<Arc<Cluster>> {
        let seeds = address.nodes.iter().filter_map(|node| match node {
            Node::Host(host, port) => Some(At {
                host: host.clone(),
                port: *port,
            }),
            Node::Socket(_) => None,
        });
        // What is wrong with the settings is wrong with each node.
        for node in &address.nodes {
            self.client(address.info(node)?, at)?;
        }
        let (builder, of, place) = (self.clone(), address.clone(), Arc::clone(at));
        let way_there = way.clone();
        let connect = move |at: &At, role: Role| {
            let info = of.info(&Node::Host(at.host.clone(), at.port))?;
            let source = Source::Server(Box::new(builder.client(info, &place)?));
            Ok(way_there.line_for(source, role))
        };
        let (runtime, pushes) = (way.runtime.clone(), way.pushes.clone());
        Ok(Cluster::new(
            seeds.collect(),
            Box::new(connect),
            way.timeout,
            runtime,
            pushes,
        ))
    }

    #[cfg(feature = "sentinel")]
    fn sentinels(&self, address: &Address, master: &str, at: &str) -> Result<Source> {
        let each = address
            .nodes()
            .map(|node| self.sentinel(address, &node?, master, at));
        Ok(Source::Sentinel(Sentinels::new(
            each.collect::<Result<Vec<_>>>()?,
        )))
    }

    /// One of them.
    #[cfg(feature = "sentinel")]
    fn sentinel(
        &self,
        address: &Address,
        node: &redis::ConnectionInfo,
        master: &str,
        at: &str,
    ) -> Result<redis::sentinel::SentinelClient> {
        use redis::sentinel::{SentinelClientBuilder, SentinelServerType};

        let addr = [node.addr().clone()];
        let mut builder = SentinelClientBuilder::new(addr, master, SentinelServerType::Master)
            .map_err(|e| unsent(e, at))?
            .set_client_to_redis_protocol(ProtocolVersion::RESP3)
            .set_client_to_redis_db(address.database)
            .set_client_to_redis_tcp_settings(node.tcp_settings().clone());
        if let Some(user) = &address.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &address.password {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some((user, password)) = &self.sentinel_login {
            builder = builder.set_client_to_sentinel_password(password);
            if let Some(user) = user {
                builder = builder.set_client_to_sentinel_username(user);
            }
        }
        #[cfg(feature = "tls")]
        if address.tls {
            builder = builder
                .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
                .set_client_to_redis_certificates(self.certificates.of_driver())
                .set_client_to_sentinel_tls_mode(redis::TlsMode::Secure)
                .set_client_to_sentinel_certificates(self.certificates.of_driver());
        }
        builder.build().map_err(|e| unsent(e, at))
    }

    #[cfg(feature = "tls")]
    fn client(&self, info: redis::ConnectionInfo, at: &str) -> Result<Client> {
        let client = match matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            true => Client::build_with_tls(info, self.certificates.of_driver()),
            false => Client::open(info),
        };
        client.map_err(|e| unsent(e, at))
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "as with TLS")]
    fn client(&self, info: redis::ConnectionInfo, at: &str) -> Result<Client> {
        Client::open(info).map_err(|e| unsent(e, at))
    }

    async fn finish(
        self,
        (link, replicas): (Link, Option<Arc<Replicas>>),
        at: Arc<str>,
        scripts: Arc<Scripts>,
        pushes: Arc<Pushes>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<RedisLock> {
        if !self.lazily {
            link.ready().await.map_err(|e| nothing_done(e, &at))?;
            if let Some(replicas) = &replicas {
                replicas.check().await?;
            }
        }
        let mut random = [0; 16];
        runtime.fill_random(&mut random);
        let longest_ttl = self.rejoin.map(Rejoin::longest_ttl);
        let connection = Connection {
            link,
            scripts,
            at,
            prefix: self.prefix.unwrap_or_else(|| PREFIX.into()),
            window: self.window.unwrap_or(WINDOW),
            runtime,
            pushes,
            listening: Listening::default(),
            tending: Tending::default(),
            replicas,
            client: u128::from_ne_bytes(random),
            channels: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        Ok(RedisLock::new(connection, longest_ttl))
    }

    pub(crate) fn check_timeout(&self) -> Result<()> {
        match self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            true => Err(invalid(format!(
                "a timeout is longer than nothing, and {LONGEST_TIMEOUT:?} at most"
            ))),
            false => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        let (prefix, window) = (
            self.prefix.as_deref().unwrap_or(PREFIX),
            self.window.unwrap_or(WINDOW),
        );
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if prefix.is_empty() || prefix.len() > 64 || !prefix.bytes().all(fits) {
            return Err(invalid(
                "a prefix is made of letters, digits, `_`, `-` and `.`, 1 to 64 of them".to_owned(),
            ));
        }
        if !(Duration::from_millis(50)..=Duration::from_secs(60)).contains(&window) {
            return Err(invalid("a claim window is 50 ms to 60 s long".to_owned()));
        }
        self.check_timeout()?;
        if self
            .rejoin
            .is_some_and(|rejoin| rejoin.longest_ttl() < SHORTEST_TTL)
        {
            return Err(invalid(format!(
                "after a `rejoin_after` that short no lease has run out: it takes {SHORTEST_TTL:?} and the drift margin at the least"
            )));
        }
        Ok(())
    }
}

#[cfg(feature = "tls")]
impl Certificates {
    fn of_driver(&self) -> redis::TlsCertificates {
        redis::TlsCertificates {
            client_tls: self
                .client
                .clone()
                .map(|(client_cert, client_key)| redis::ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
            root_cert: self.root.clone(),
        }
    }
}

/// A client for connections of our own, as a program's own client has it, and where it leads.
pub(crate) fn own(client: Client) -> Result<(Client, Arc<str>)> {
    let info = client.get_connection_info().clone();
    let at: Arc<str> = info.addr().to_string().into();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(settings)).map_err(|e| unsent(e, &at))?;
    Ok((client, at))
}

fn unsent(e: RedisError, at: &str) -> Error {
    nothing_done(Failed::unsent(e), at)
}

/// Where a program has not chosen a provider, and its crates bring several, rustls would panic.
#[cfg(feature = "tls")]
pub(crate) fn choose_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Where somebody else was faster, it is chosen as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

impl RedisLock {
    /// Opens the server of that URL as it is usually done.
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::builder().open(url, runtime).await
    }

    /// Opens Redis in another way.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("prefix", &self.prefix)
            .field("window", &self.window)
            .field("timeout", &self.timeout)
            .field("allow_eviction", &self.allow_eviction)
            .field("replicas", &self.replicas)
            .field("rejoin_after", &self.rejoin)
            .field("lazily", &self.lazily)
            .finish()
    }
}
