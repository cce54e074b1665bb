//! Opening an ensemble.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};

use crate::acl::Rights;
use crate::address::{Address, check_path, invalid};
use crate::connection::{Connection, Settings};
use crate::lock::ZkLock;
use crate::paths::Paths;

/// Where everything is unless something else is set.
const ROOT: &str = "/dlock";

/// For how long a session is asked for unless something else is set: six ticks of a server as it is delivered, see [`life`](crate::life).
const SESSION: Duration = Duration::from_secs(12);

const SHORTEST_SESSION: Duration = Duration::from_millis(500);
const LONGEST_SESSION: Duration = Duration::from_secs(3600);

/// What is longer was not meant: an operation ends by its own limit.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// How ZooKeeper is opened: see [`ZkLock::builder`].
#[derive(Clone)]
pub struct Builder {
    root: Option<Arc<str>>,
    session_timeout: Duration,
    timeout: Duration,
    layout: Layout,
    access: Access,
    unfair: bool,
    priorities: bool,
    plain: bool,
    login: Option<(String, String)>,
    #[cfg(feature = "sasl")]
    sasl: Option<(String, String)>,
    #[cfg(feature = "tls")]
    certificates: Certificates,
}

/// In PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
struct Certificates {
    root: Option<String>,
    client: Option<(String, String)>,
}

/// How the nodes of a lock are laid out.
///
/// All who use a lock must have it the same way: locks of one name in different layouts do not exclude one another, and nobody notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Dlock's own: all modes.
    #[default]
    Own,
    /// That of Apache Curator's `InterProcessMutex`, so that both exclude one another while a service is moved from one to the other: the lock
    /// `orders` below the root `/locks` is Curator's mutex of the path `/locks/orders`. Exclusive locks alone; every other mode is
    /// `Unsupported`. What is in a name beside letters, digits, `.`, `-`, `_` and `~` is percent-encoded in the path.
    Curator,
}

/// Who may see and change the nodes that are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Anybody may do anything, as ZooKeeper has it where nothing is said.
    #[default]
    Anyone,
    /// Whoever is known to the server as the same user: all clients of these locks then have the same
    /// [login](Builder::login) or SASL user.
    Creator,
    /// A list as `zkCli` has it: `scheme:id:permissions`, set apart by commas, with permissions out of `cdrwa`. For example
    /// `digest:app:kHqYpPMQpGtpUVhbJIRh3VeIHCg=:cdrwa,world:anyone:r`. All clients of these locks need `cdrw`.
    List(String),
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            root: None,
            session_timeout: SESSION,
            timeout: Duration::from_secs(5),
            layout: Layout::Own,
            access: Access::Anyone,
            unfair: false,
            priorities: false,
            plain: false,
            login: None,
            #[cfg(feature = "sasl")]
            sasl: None,
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
        }
    }
}

impl Builder {
    /// Below which path all nodes are, `/dlock` unless set; `/` in the layout of Curator. It is itself below the path that the address names, and
    /// is made where it is missing. Clients of different roots do not exclude one another.
    #[must_use]
    pub fn root(mut self, path: &str) -> Self {
        self.root = Some(path.into());
        self
    }

    /// For how long the server keeps the locks of a client that it does not hear of, 500 ms to 1 h; 12 s unless set. The server has bounds of its own,
    /// 2 and 20 of its ticks unless it was set up otherwise; what it grants is
    /// [`min_ttl`](dlock_core::Capabilities::min_ttl), the least ttl that a lock may ask for, and the most that a crash costs the others.
    ///
    /// Of that, a client that hears nothing believes in its locks for two thirds: see `docs/zookeeper.md` for what the rest is for, and why it
    /// should be six ticks of the server at the least.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long it may take to be connected, more than nothing and an hour at most; 5 s unless set. How long an operation may take is
    /// the client's `op_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How nodes are laid out: dlock's own unless set.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Who may see and change the nodes that are made: anybody unless set. Nodes that are there already keep what they have.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// One node for each lock, and no line: a lock costs two requests instead of three, and whoever is quickest has it next. Exclusive locks alone, and
    /// all who use a lock must have it the same way: fair and unfair locks of one name do not exclude one another, and nobody notices.
    #[must_use]
    pub fn unfair(mut self) -> Self {
        self.unfair = true;
        self
    }

    /// Of those who wait for a lock the one with the highest priority is next, and of equals the one who came first. Exclusive locks alone, which are not watched. Uncontended they cost four requests in
    /// three round trips.
    ///
    /// All who use a lock must have it the same way: who uses it with priorities while somebody uses it without, or the other way round, is told so by `InvalidInput`.
    #[must_use]
    pub fn priorities(mut self) -> Self {
        self.priorities = true;
        self
    }

    /// Makes the lines of locks of plain nodes, for servers that know no containers and do not say so in order. Where a container is refused as unknown, that is done by itself.
    ///
    /// Who leaves a line then removes it, which is a request more for each release; lines of clients that died are looked for once a minute, by one client for all.
    #[must_use]
    pub fn without_containers(mut self) -> Self {
        self.plain = true;
        self
    }

    /// As whom the server is asked, by the scheme `digest`. It stands in the address as well: `zk://user:password@host`.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// As whom the server is asked, by SASL with DIGEST-MD5. Where it is set, the login of the address is not used.
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn sasl_login(mut self, user: &str, password: &str) -> Self {
        self.sasl = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// The certificates, in PEM, of whom it trusts to vouch for servers. Without them nobody is trusted.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificate(mut self, pem: &str) -> Self {
        self.certificates.root = Some(pem.to_owned());
        self
    }

    /// The certificate by which this client says who it is, and its key, both in PEM.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn client_certificate(mut self, pem: &str, key: &str) -> Self {
        self.certificates.client = Some((pem.to_owned(), key.to_owned()));
        self
    }

    /// Opens the ensemble at that address: `host[:port],.../path`, or the same as a URL:
    ///
    /// | URL | what | feature |
    /// |---|---|---|
    /// | `zk://[user:password@]host[:port],.../path` | the servers of an ensemble, and below which path everything is | |
    /// | `zks://...` | the same by TLS | `tls` |
    ///
    /// Without a port it is 2181. What is not plain text in a user, a password or the path is percent-encoded. User and password are for the
    /// scheme `digest`.
    ///
    /// # Cancel safety
    /// Dropped before it is done, nothing is left but a session that is closed when it is made.
    ///
    /// # Errors
    /// `InvalidInput` if an option or the address is wrong; `Unavailable` if no server of it answers; `PermissionDenied` if the user or the password is refused;
    /// `Unsupported` if the server is too old, or for a form whose feature is not enabled.
    pub async fn open(self, address: &str, runtime: Arc<dyn Runtime>) -> Result<ZkLock> {
        let settings = self.read(address)?;
        #[cfg(feature = "tls")]
        if settings.tls.is_some() {
            choose_provider();
        }
        let connection = Connection::open(settings, runtime).await?;
        Ok(ZkLock::new(connection))
    }

    /// Checks the options and the address, without a connection.
    ///
    /// # Errors
    /// `InvalidInput` if one of them is wrong, `Unsupported` if the address is of a form whose feature is not enabled.
    pub fn check_address(&self, address: &str) -> Result<()> {
        self.read(address).map(drop)
    }

    fn read(&self, address: &str) -> Result<Settings> {
        let address = Address::parse(address)?;
        if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&self.session_timeout) {
            return Err(invalid(format!(
                "a session timeout is {SHORTEST_SESSION:?} to {LONGEST_SESSION:?} long"
            )));
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(invalid(format!(
                "a timeout is longer than nothing, and {LONGEST_TIMEOUT:?} at most"
            )));
        }
        if self.unfair && self.layout == Layout::Curator {
            let message = "Curator's mutex has a line: it cannot be unfair";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        if self.priorities && (self.unfair || self.layout == Layout::Curator) {
            return Err(invalid(
                "priorities need a line of dlock's own: no unfair locks, and not the layout of Curator",
            ));
        }
        let root = match (&self.root, self.layout) {
            (Some(root), _) => root.trim_end_matches('/'),
            (None, Layout::Own) => ROOT,
            (None, Layout::Curator) => "",
        };
        check_path(root, "a root is a path")?;
        Ok(Settings {
            paths: Paths::new(&address.chroot, root, self.layout, self.unfair)
                .with_priorities(self.priorities),
            rights: Rights::of(&self.access)?,
            plain: self.plain && !self.unfair,
            at: address.to_string().into(),
            servers: address.servers(),
            session_timeout: self.session_timeout,
            timeout: self.timeout,
            #[cfg(feature = "tls")]
            tls: address.tls.then(|| self.certificates.of_driver()).transpose()?,
            #[cfg(feature = "sasl")]
            sasl: self.sasl.clone(),
            login: self.login.clone().or(address.login),
        })
    }
}

/// Where a program has not chosen a provider, and its crates bring several, rustls would panic.
#[cfg(feature = "tls")]
fn choose_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Where somebody else was faster, it is chosen as well.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

#[cfg(feature = "tls")]
impl Certificates {
    fn of_driver(&self) -> Result<zookeeper_client::TlsOptions> {
        let wrong = |what: &'static str| {
            // The cause may have a key in it.
            move |_| invalid(format!("the {what} cannot be read as PEM"))
        };
        let mut options = zookeeper_client::TlsOptions::new();
        if let Some(root) = &self.root {
            options = options.with_pem_ca(root).map_err(wrong("root certificate"))?;
        }
        if let Some((cert, key)) = &self.client {
            options = options
                .with_pem_identity(cert, key)
                .map_err(wrong("client certificate or its key"))?;
        }
        Ok(options)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("root", &self.root)
            .field("session_timeout", &self.session_timeout)
            .field("timeout", &self.timeout)
            .field("layout", &self.layout)
            .field("access", &self.access)
            .field("unfair", &self.unfair)
            .field("priorities", &self.priorities)
            .field("plain", &self.plain)
            .field("login", &self.login.as_ref().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}
