//! The options of a cluster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Host, Url, whereabouts};
use dlock_core::{Result, Runtime};
use etcd_client::ConnectOptions;

use crate::channel::Member;
use crate::connect::Settings;
use crate::connection::Connection;
use crate::failure::invalid;
use crate::keys::Keys;
use crate::lock::EtcdLock;
#[cfg(feature = "tls")]
use crate::tls::{Certificates, Pem};

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
                let message = "`etcds://` needs the feature `etcd-tls` of dlock-rs, or `tls` of dlock-etcd";
                return Err(crate::failure::unsupported(message));
            }
            _ => return Err(invalid("the scheme of the URL must be `etcd` or `etcds`")),
        }
        let servers = url.servers(PORT)?;
        let hosts: Vec<_> = servers.hosts.iter().map(Host::to_string).collect();
        config.members = hosts.join(",");
        config.login = Url::both(("user:", servers.user), (":password@", servers.password))?;
        if !servers.path.is_empty() {
            config.prefix = servers.path;
        }
        config.session_timeout = url.take("session_timeout")?.unwrap_or(config.session_timeout);
        config.timeout = url.take("timeout")?.unwrap_or(config.timeout);
        #[cfg(feature = "tls")]
        Certificates::take(&mut config.tls, &mut url)?;
        url.finish()?;
        config.check()?;
        Ok(config)
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
        self.tls.get_or_insert_default().root = Some(Pem::new("the root certificate", pem));
        self
    }

    /// Connects over TLS and authenticates with this certificate and its key, both in PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, pem: &str, key: &str) -> Self {
        let pem = Pem::new("the client certificate", pem);
        let key = Pem::new("the key of the client certificate", key);
        self.tls.get_or_insert_default().client = Some((pem, key));
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
            let message = "members must be `host[:port],...`: login and prefix have methods of their own";
            return Err(invalid(message));
        }
        if self.login.as_ref().is_some_and(|(user, _)| user.is_empty()) {
            return Err(invalid("the user must not be empty"));
        }
        if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&self.session_timeout)
            || self.session_timeout.subsec_nanos() != 0
        {
            let (least, most) = (SHORTEST_SESSION, LONGEST_SESSION);
            let message = format!("the session timeout must be whole seconds, from {least:?} to {most:?}");
            return Err(invalid(message));
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            let message = format!("the timeout must be above zero, and {LONGEST_TIMEOUT:?} at most");
            return Err(invalid(message));
        }
        let prefix = self.prefix.trim_end_matches('/');
        if prefix.len() > 512 || prefix.chars().any(char::is_control) || prefix.ends_with('!') {
            let message = "the prefix must have 512 bytes at most, no control character, no `!` at its end";
            return Err(invalid(message));
        }
        let member = |host: &Host| {
            #[cfg(feature = "tls")]
            let tls = self.tls.as_ref().map(|tls| tls.to(host)).transpose()?;
            #[cfg(not(feature = "tls"))]
            let tls = None;
            Member::new(host, tls)
        };
        let shown: Vec<_> = servers.hosts.iter().map(Host::to_string).collect();
        Ok(Settings {
            keys: Keys::new(prefix),
            at: shown.join(",").into(),
            members: servers.hosts.iter().map(member).collect::<Result<_>>()?,
            options: self.options(),
            ttl: self.session_timeout,
            timeout: self.timeout,
            whereabouts: whereabouts().into(),
        })
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
