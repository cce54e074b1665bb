//! The options of a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Host, Url};
use dlock_core::{Result, Runtime};
use etcd_client::ConnectOptions;
use tonic::transport::Endpoint;

use crate::connect::Settings;
use crate::connection::Connection;
use crate::failure::invalid;
use crate::keys::Keys;
use crate::lock::EtcdLock;

const PORT: u16 = 2379;

/// The prefix of all keys unless set.
const PREFIX: &str = "dlock";

const SESSION: Duration = Duration::from_secs(10);

const SHORTEST_SESSION: Duration = Duration::from_secs(1);
const LONGEST_SESSION: Duration = Duration::from_secs(3600);

/// A longer one is a mistake: operations have a limit of their own.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// How to reach an etcd cluster and keep locks in it. Built by code or [from a URL](Self::from_url).
///
/// ```no_run
/// # async fn example() -> dlock_core::Result<()> {
/// use std::time::Duration;
/// use dlock_etcd::Config;
///
/// let config = Config::new("etcd-a,etcd-b,etcd-c").session_timeout(Duration::from_secs(5)); let lock =
/// config.connect(dlock_core::runtime::detect()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    members: String,
    prefix: String,
    session_timeout: Duration,
    timeout: Duration,
    login: Option<(String, String)>,
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
    /// Names the members of the cluster as `host[:port],...`. The port is 2379 unless given.
    pub fn new(members: &str) -> Self {
        Self {
            members: members.to_owned(),
            prefix: PREFIX.to_owned(),
            session_timeout: SESSION,
            timeout: Duration::from_secs(5),
            login: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Reads a URL: `etcd://[user:password@]host[:port],.../prefix`, or `etcds` for TLS. The prefix is
    /// optional. The query takes these keys:
    ///
    /// | key | sets |
    /// |---|---|
    /// | `session_timeout`, `timeout` | the option of that name, as in `10s` |
    /// | `ca` | a file in PEM with the certificates to trust (feature `tls`) |
    /// | `cert`, `key` | files in PEM with this client's certificate and its key (feature `tls`) |
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
        let mut config = Self::new("");
        match url.scheme() {
            "etcd" => {}
            #[cfg(feature = "tls")]
            "etcds" => config = config.tls(),
            #[cfg(not(feature = "tls"))]
            "etcds" => {
                return Err(crate::failure::unsupported(
                    "`etcds://` needs the feature `etcd-tls` of dlock-rs, or `tls` of dlock-etcd",
                ));
            }
            _ => {
                return Err(invalid(
                    "the scheme of the URL is not known; known are: etcd, etcds",
                ));
            }
        }
        let servers = url.servers(PORT)?;
        let hosts: Vec<_> = servers.hosts.iter().map(Host::to_string).collect();
        config.members = hosts.join(",");
        config.login = match (servers.user, servers.password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => {
                return Err(invalid(
                    "the login in the URL must be `user:password`, before the `@`",
                ));
            }
        };
        if !servers.path.is_empty() {
            config.prefix = servers.path;
        }
        config.session_timeout = url.take("session_timeout")?.unwrap_or(config.session_timeout);
        config.timeout = url.take("timeout")?.unwrap_or(config.timeout);
        #[cfg(feature = "tls")]
        config.take_certificates(&mut url)?;
        url.finish()?;
        config.check()?;
        Ok(config)
    }

    #[cfg(feature = "tls")]
    fn take_certificates(&mut self, url: &mut Url) -> Result<()> {
        // Before the files are read: a missing key is the clearer error.
        let mut given = url.clone();
        let (cert, key) = (given.take::<String>("cert")?, given.take("key")?);
        Url::both(("cert", cert), ("key", key))?;
        let mut pem = |key: &'static str, section| -> Result<Option<String>> {
            let Some((path, bytes)) = url.take_file(key)? else {
                return Ok(None);
            };
            let what = format!("the file {} of the URL's `{key}`", path.display());
            let pem = String::from_utf8(bytes).unwrap_or_default();
            check_pem(&what, &pem, section).map(|()| Some(pem))
        };
        let (root, cert) = (pem("ca", CERTIFICATE)?, pem("cert", CERTIFICATE)?);
        let key = pem("key", PRIVATE_KEY)?;
        let client = Url::both(("cert", cert), ("key", key))?;
        if root.is_some() || client.is_some() {
            let tls = self.tls.as_mut();
            *tls.ok_or_else(|| invalid("certificates need TLS: use `etcds://`"))? =
                Certificates { root, client };
        }
        Ok(())
    }

    /// Sets the prefix of all keys; `dlock` unless set. At most 512 bytes, no control characters, no `!` at
    /// the end. The lock `orders` is then what `etcdctl lock dlock/orders` locks. Clients with different
    /// prefixes do not exclude one another.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Sets how long the cluster keeps the locks of a client that it does not hear from: 1 s to 1 h in whole
    /// seconds, 10 s unless set.
    ///
    /// The cluster has a minimum of its own, one and a half election timeouts: 2 s by default. The timeout
    /// that it grants is [`min_ttl`](dlock_core::Capabilities::min_ttl), the minimum ttl of a lock. After a
    /// crash others wait that long at most, and another second if etcd is late.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Sets how long connecting to a member may take: above zero, an hour at most, 5 s unless set. The time
    /// limit of an operation is the client's `op_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the user and the password.
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// Connects over TLS and trusts the certificates of the system.
    #[cfg(feature = "tls")]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Connects over TLS and trusts only these certificates, in PEM.
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

    /// Connects to the cluster.
    ///
    /// # Cancel safety
    /// If the future is dropped, at most a lease is left that nobody renews.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong; `Unavailable` if no member answers; `PermissionDenied` if the
    /// user or the password is rejected; `Unsupported` if the server is too old.
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<EtcdLock> {
        let settings = self.settings()?;
        let connection = Connection::open(settings, runtime).await?;
        Ok(EtcdLock::new(connection))
    }

    /// Checks everything that needs no connection.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong.
    pub fn check(&self) -> Result<()> {
        self.settings().map(drop)
    }

    fn settings(&self) -> Result<Settings> {
        let url = Url::parse(&format!("etcd://{}", self.members))?;
        let servers = url.servers(PORT)?;
        url.finish()?;
        if servers.user.is_some() || servers.password.is_some() || !servers.path.is_empty() {
            return Err(invalid(
                "members must be `host[:port],...`: the login and the prefix have methods of their own",
            ));
        }
        if self.login.as_ref().is_some_and(|(user, _)| user.is_empty()) {
            return Err(invalid("the user must not be empty"));
        }
        if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&self.session_timeout)
            || self.session_timeout.subsec_nanos() != 0
        {
            return Err(invalid(format!(
                "the session timeout must be whole seconds, from {SHORTEST_SESSION:?} to {LONGEST_SESSION:?}"
            )));
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(invalid(format!(
                "the timeout must be above zero, and {LONGEST_TIMEOUT:?} at most"
            )));
        }
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.tls {
            certificates.check()?;
        }
        let prefix = self.prefix.trim_end_matches('/');
        if prefix.len() > 512 || prefix.chars().any(char::is_control) || prefix.ends_with('!') {
            return Err(invalid(
                "the prefix must have 512 bytes at most, no control characters, and no `!` at its end",
            ));
        }
        let shown: Vec<_> = servers.hosts.iter().map(Host::to_string).collect();
        let member = |host: &String| match self.endpoint(host) {
            Ok(endpoint) => Ok((endpoint.connect_timeout(self.timeout), host.as_str().into())),
            Err(e) => Err(invalid(format!(
                "the driver rejects the member {host}, or the certificates for it"
            ))
            .with_source(e)),
        };
        Ok(Settings {
            keys: Keys::new(prefix),
            at: shown.join(",").into(),
            members: shown.iter().map(member).collect::<Result<_>>()?,
            options: self.options(),
            ttl: self.session_timeout,
            timeout: self.timeout,
            whereabouts: host_and_process().into(),
        })
    }

    /// How that member is reached.
    fn endpoint(&self, host: &str) -> Result<Endpoint, tonic::transport::Error> {
        #[cfg(feature = "tls")]
        if let Some(certificates) = &self.tls {
            return Endpoint::from_shared(format!("https://{host}"))?.tls_config(certificates.for_driver());
        }
        Endpoint::from_shared(format!("http://{host}"))
    }

    fn options(&self) -> ConnectOptions {
        // A member without a leader answers with an error instead of letting requests wait.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        match &self.login {
            Some((user, password)) => options.with_user(user, password),
            None => options,
        }
    }
}

/// What begins a section of PEM ends with this.
#[cfg(feature = "tls")]
const CERTIFICATE: &str = "CERTIFICATE-----";
#[cfg(feature = "tls")]
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// Refuses text without such a section, and says which: the driver does not.
#[cfg(feature = "tls")]
fn check_pem(what: &str, pem: &str, section: &str) -> Result<()> {
    let begins = |line: &str| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(section);
    if pem.lines().any(begins) {
        return Ok(());
    }
    let section = section.trim_end_matches('-').to_lowercase();
    Err(invalid(format!("{what} has no {section} in PEM")))
}

#[cfg(feature = "tls")]
impl Certificates {
    fn check(&self) -> Result<()> {
        if let Some(pem) = &self.root {
            check_pem("the root certificate", pem, CERTIFICATE)?;
        }
        if let Some((pem, key)) = &self.client {
            check_pem("the client certificate", pem, CERTIFICATE)?;
            check_pem("the key of the client certificate", key, PRIVATE_KEY)?;
        }
        Ok(())
    }

    fn for_driver(&self) -> etcd_client::TlsOptions {
        use etcd_client::{Certificate, Identity, TlsOptions};
        let tls = match &self.root {
            Some(pem) => TlsOptions::new().ca_certificate(Certificate::from_pem(pem)),
            None => TlsOptions::new().with_native_roots(),
        };
        match &self.client {
            Some((pem, key)) => tls.identity(Identity::from_pem(pem, key)),
            None => tls,
        }
    }
}

/// This machine and process, for operators: one word each.
fn host_and_process() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_plain = |c: &char| c.is_ascii_graphic() && *c != '=';
    let host: String = host.chars().filter(is_plain).take(64).collect();
    format!("host={host} pid={}", std::process::id())
}

/// Shows no login and no certificates.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("members", &self.members)
            .field("prefix", &self.prefix)
            .field("session_timeout", &self.session_timeout)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
