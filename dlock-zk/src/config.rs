//! The options of an ensemble.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Host, Url};
use dlock_core::{Result, Runtime};

use crate::access::{Access, Rights};
use crate::connect::Settings;
use crate::connection::Connection;
use crate::failure::invalid;
use crate::keys::{Paths, check_path};
use crate::layout::Layout;
use crate::lock::ZkLock;

const PORT: u16 = 2181;

/// Where everything is unless something else is set.
const ROOT: &str = "/dlock";

/// Six ticks of a server as it is delivered, see [`deadline`](crate::deadline).
const SESSION: Duration = Duration::from_secs(12);

const SHORTEST_SESSION: Duration = Duration::from_millis(500);
const LONGEST_SESSION: Duration = Duration::from_secs(3600);

/// A longer one is a mistake: operations have a limit of their own.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// How often the driver asks for a connection, at least, before it makes its pauses twice as long.
const LOOKS: usize = 16;

/// How to reach a ZooKeeper ensemble and keep locks in it. Built by code or [from a URL](Self::from_url).
///
/// ```no_run
/// # async fn example() -> dlock_core::Result<()> {
/// use std::time::Duration;
/// use dlock_zk::Config;
///
/// let config = Config::new("zk-a,zk-b,zk-c/apps").session_timeout(Duration::from_secs(6)); let lock =
/// config.connect(dlock_core::runtime::detect()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    servers: String,
    root: Option<Arc<str>>,
    session_timeout: Duration,
    timeout: Duration,
    layout: Layout,
    access: Access,
    unfair: bool,
    login: Option<(String, String)>,
    #[cfg(feature = "sasl")]
    sasl: Option<(String, String)>,
    #[cfg(feature = "tls")]
    tls: Option<Certificates>,
}

/// Certificates in PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
struct Certificates {
    root: Option<String>,
    client: Option<(String, String)>,
}

impl Config {
    /// Names the servers of the ensemble as `host[:port],.../path`. The port is 2181 unless given. All nodes
    /// are below the path, which is optional.
    pub fn new(servers: &str) -> Self {
        Self {
            servers: servers.to_owned(),
            root: None,
            session_timeout: SESSION,
            timeout: Duration::from_secs(5),
            layout: Layout::Own,
            access: Access::Anyone,
            unfair: false,
            login: None,
            #[cfg(feature = "sasl")]
            sasl: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Reads a URL: `zk://[user:password@]host[:port],.../path`, also with the scheme `zookeeper`, or `zks`
    /// for TLS. The user and the password are for the scheme `digest`. The query takes these keys:
    ///
    /// | key | sets |
    /// |---|---|
    /// | `root`, `session_timeout`, `timeout` | the option of that name; times as in `12s` |
    /// | `layout` | `curator`: [`Layout::Curator`] |
    /// | `unfair` | `true`: [`unfair`](Self::unfair) |
    /// | `access` | `anyone`, `creator`, or a list: [`Access`] |
    /// | `ca` | a file in PEM with the certificates to trust (feature `tls`) |
    /// | `cert`, `key` | files in PEM with this client's certificate and its key (feature `tls`) |
    /// | `sasl_user`, `sasl_password` | a login by SASL (feature `sasl`) |
    ///
    /// Percent-encode all characters that are not plain text.
    ///
    /// # Errors
    /// `InvalidInput` if a part of the URL is wrong, or a file cannot be read; `Unsupported` if it needs a
    /// feature that this build does not have.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(Url::parse(url)?)
    }

    /// Reads a URL that is already parsed: see [`from_url`](Self::from_url).
    ///
    /// # Errors
    /// As [`from_url`](Self::from_url).
    pub fn read(mut url: Url) -> Result<Self> {
        let place = url.raw_place();
        let mut config = Self::new(place.rsplit_once('@').map_or(place, |(_, servers)| servers));
        match url.scheme() {
            "zk" | "zookeeper" => {}
            #[cfg(feature = "tls")]
            "zks" => config = config.tls(),
            #[cfg(not(feature = "tls"))]
            "zks" => {
                let message = "`zks://` needs the feature `zookeeper-tls` of dlock-rs, or `tls` of dlock-zk";
                return Err(dlock_core::Error::new(
                    dlock_core::ErrorKind::Unsupported,
                    message,
                ));
            }
            _ => {
                return Err(invalid(
                    "the scheme of the URL is not known; known are: zk, zookeeper, zks",
                ));
            }
        }
        let servers = url.servers(PORT)?;
        config.login = Url::both(("user:", servers.user), (":password@", servers.password))?;
        config.take_options(&mut url)?;
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    fn take_options(&mut self, url: &mut Url) -> Result<()> {
        self.root = url.take::<String>("root")?.map(Into::into);
        self.session_timeout = url.take("session_timeout")?.unwrap_or(self.session_timeout);
        self.timeout = url.take("timeout")?.unwrap_or(self.timeout);
        self.layout = match url.take::<String>("layout")?.as_deref() {
            None => Layout::Own,
            Some("curator") => Layout::Curator,
            Some(_) => return Err(invalid("the URL's `layout` must be `curator`, or be left out")),
        };
        self.unfair = url.take("unfair")?.unwrap_or(false);
        if let Some(access) = url.take::<String>("access")? {
            self.access = match &*access {
                "anyone" => Access::Anyone,
                "creator" => Access::Creator,
                _ => Access::List(access),
            };
        }
        #[cfg(feature = "tls")]
        {
            // Before the files are read: a missing key is the clearer error.
            let mut given = url.clone();
            let (cert, key) = (given.take::<String>("cert")?, given.take("key")?);
            Url::both(("cert", cert), ("key", key))?;
            let mut pem = |key: &'static str| -> Result<Option<String>> {
                let not_pem = |_| invalid(format!("the file of the URL's `{key}` is not PEM"));
                let file = url.take_file(key)?;
                file.map(|(_, bytes)| String::from_utf8(bytes).map_err(not_pem))
                    .transpose()
            };
            let (root, cert, key) = (pem("ca")?, pem("cert")?, pem("key")?);
            let client = Url::both(("cert", cert), ("key", key))?;
            if root.is_some() || client.is_some() {
                let tls = self.tls.as_mut();
                let certificates = tls.ok_or_else(|| invalid("certificates need TLS: use `zks://`"))?;
                *certificates = Certificates { root, client };
            }
        }
        #[cfg(feature = "sasl")]
        {
            let (user, password) = (url.take("sasl_user")?, url.take("sasl_password")?);
            self.sasl = Url::both(("sasl_user", user), ("sasl_password", password))?;
        }
        Ok(())
    }

    /// Replaces the servers: see [`new`](Self::new).
    pub fn servers(mut self, servers: &str) -> Self {
        servers.clone_into(&mut self.servers);
        self
    }

    /// Sets the path of the node below which all others are; `/dlock` unless set, `/` in the layout of
    /// Curator. It is below the path behind the servers, and is created where it is missing. Clients with
    /// different roots do not exclude one another.
    pub fn root(mut self, path: &str) -> Self {
        self.root = Some(path.into());
        self
    }

    /// Sets how long the ensemble keeps the locks of a client that it does not hear from: 500 ms to 1 h, 12 s
    /// unless set.
    ///
    /// The ensemble has bounds of its own, 2 and 20 ticks by default. The timeout that it grants is
    /// [`min_ttl`](dlock_core::Capabilities::min_ttl), the minimum ttl of a lock. After a crash others wait
    /// that long at most.
    ///
    /// A client that hears nothing keeps its locks for two thirds of it: `docs/zookeeper.md` says what the
    /// rest is for. Set at least six ticks of the servers.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Sets how long connecting may take: above zero, an hour at most, 5 s unless set. The time limit of an
    /// operation is the client's `op_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how nodes are laid out; dlock's own layout unless set.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets who may read and change the nodes that this client creates; anyone unless set. Existing nodes
    /// keep their access lists.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Uses one node for each lock and no queue. A lock costs two requests instead of three, and the fastest
    /// waiter gets it next. Exclusive locks only.
    ///
    /// All clients of a lock must agree on this: a fair and an unfair lock of one name do not exclude one
    /// another, and no error says so.
    pub fn unfair(mut self) -> Self {
        self.unfair = true;
        self
    }

    /// Sets the user and the password for the scheme `digest`.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Sets the user and the password for SASL with DIGEST-MD5. Replaces [`login`](Self::login).
    #[cfg(feature = "sasl")]
    pub fn sasl_login(mut self, user: &str, password: &str) -> Self {
        self.sasl = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Connects over TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Connects over TLS and trusts these certificates, in PEM. Without them no server is trusted.
    #[cfg(feature = "tls")]
    pub fn root_certificate(mut self, pem: &str) -> Self {
        self.tls.get_or_insert_default().root = Some(pem.to_owned());
        self
    }

    /// Connects over TLS and authenticates with this certificate and its key, both in PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, pem: &str, key: &str) -> Self {
        self.tls.get_or_insert_default().client = Some((pem.to_owned(), key.to_owned()));
        self
    }

    /// Connects to the ensemble.
    ///
    /// # Cancel safety
    /// If the future is dropped, a session that was being made is closed.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong; `Unavailable` if no server answers; `PermissionDenied` if the
    /// user or the password is rejected; `Unsupported` if the server is too old.
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<ZkLock> {
        let settings = self.settings()?;
        #[cfg(feature = "tls")]
        if settings.tls.is_some() {
            choose_provider();
        }
        let connection = Connection::open(settings, runtime).await?;
        Ok(ZkLock::new(connection))
    }

    /// Checks everything that needs no connection.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong.
    pub fn check(&self) -> Result<()> {
        self.settings().map(drop)
    }

    fn settings(&self) -> Result<Settings> {
        let url = Url::parse(&format!("zk://{}", self.servers))?;
        let servers = url.servers(PORT)?;
        url.finish()?;
        if servers.user.is_some() || servers.password.is_some() {
            return Err(invalid(
                "servers must be `host[:port],.../path`: the login has a method of its own",
            ));
        }
        let hosts = &servers.hosts;
        #[cfg(feature = "tls")]
        if self.tls.is_some() && !hosts.iter().all(|host| is_in_certificates(&host.name)) {
            return Err(invalid(
                "TLS needs server names in ASCII, as in their certificates, or IP addresses without a zone",
            ));
        }
        let chroot = match servers.path.trim_end_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        check_path(&chroot, "the path behind the hosts")?;
        if (self.login.as_ref()).is_some_and(|(user, _)| user.is_empty() || user.contains(':')) {
            return Err(invalid("the user must not be empty, nor have a `:` in it"));
        }
        if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&self.session_timeout) {
            return Err(invalid(format!(
                "the session timeout must be from {SHORTEST_SESSION:?} to {LONGEST_SESSION:?}"
            )));
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(invalid(format!(
                "the timeout must be above zero, and {LONGEST_TIMEOUT:?} at most"
            )));
        }
        if self.unfair && self.layout == Layout::Curator {
            return Err(invalid(
                "`unfair` does not go with the layout of Curator, whose lock is fair",
            ));
        }
        let root = match (&self.root, self.layout) {
            (Some(root), _) => root.trim_end_matches('/'),
            (None, Layout::Own) => ROOT,
            (None, Layout::Curator) => "",
        };
        check_path(root, "the root")?;
        let shown: Vec<_> = hosts.iter().map(Host::to_string).collect();
        Ok(Settings {
            paths: Paths::new(&chroot, root, self.layout, self.unfair),
            rights: Rights::of(&self.access)?,
            at: format!("{}{chroot}", shown.join(",")).into(),
            servers: self.for_driver(hosts),
            session_timeout: self.session_timeout,
            timeout: self.timeout,
            #[cfg(feature = "tls")]
            tls: self.tls.as_ref().map(Certificates::for_driver).transpose()?,
            #[cfg(feature = "sasl")]
            sasl: self.sasl.clone(),
            login: self.login.clone(),
        })
    }

    /// As the driver takes it: without the path, which is in front of every path of ours already.
    ///
    /// Each server is named several times. When a connection broke, the driver goes through what is named,
    /// first without a pause, and then again and again, with pauses that grow with each round. Three servers
    /// named once were not tried between 1.4 and 2.6 s: a fault of 1.6 s took all locks of a session of 4
    /// seconds, of which 2.7 are believed in (rule 5.11). Eighteen names are tried at 0, and from 1 to 9 s
    /// with 0.1 to 0.9 s between two. The price: what ends within the first second is seen after that second.
    fn for_driver(&self, hosts: &[Host]) -> String {
        #[cfg(feature = "tls")]
        let tls = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let tls = false;
        let scheme = if tls { "tcp+tls://" } else { "tcp://" };
        let times = LOOKS.div_ceil(hosts.len());
        let named = std::iter::repeat_n(hosts, times).flatten();
        let named: Vec<_> = named.map(|host| format!("{scheme}{host}")).collect();
        named.join(",")
    }
}

/// Whether a certificate can name that host. The driver panics where it cannot.
#[cfg(feature = "tls")]
fn is_in_certificates(host: &str) -> bool {
    rustls::pki_types::ServerName::try_from(host).is_ok()
}

/// Where a program has not chosen a provider, and its crates bring several, rustls would panic.
#[cfg(feature = "tls")]
fn choose_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If another thread was faster, one is chosen as well.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

#[cfg(feature = "tls")]
impl Certificates {
    fn for_driver(&self) -> Result<zookeeper_client::TlsOptions> {
        // The cause may have a key in it.
        let wrong = |what: &'static str| move |_| invalid(format!("the {what} cannot be read as PEM"));
        let mut options = zookeeper_client::TlsOptions::new();
        if let Some(root) = &self.root {
            options = options.with_pem_ca(root).map_err(wrong("root certificate"))?;
        }
        if let Some((cert, key)) = &self.client {
            let with = options.with_pem_identity(cert, key);
            options = with.map_err(wrong("client certificate or its key"))?;
        }
        Ok(options)
    }
}

/// Without passwords.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("root", &self.root)
            .field("session_timeout", &self.session_timeout)
            .field("timeout", &self.timeout)
            .field("layout", &self.layout)
            .field("access", &self.access)
            .field("unfair", &self.unfair)
            .field("login", &self.login.as_ref().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
