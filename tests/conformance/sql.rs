//! Database servers as subjects: PostgreSQL and MariaDB, by leases in rows and by locks of sessions; and
//! leases in PostgreSQL behind a pooler.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dlock::lease::Config;
use dlock::spi::Lock;
use dlock::{Capabilities, Client, Result, Runtime, session};
use dlock_conformance::hooks::Restart;
use dlock_conformance::{Claims, Cx, Need};
use futures::FutureExt;

use super::TIMEOUT;
use super::capabilities_of;
use super::sql_hooks::SqlHooks;

/// How long a client may be silent until its session is ended. The shortest ttl, and so what most rules wait
/// for: MariaDB counts in seconds, and a third of it is how long a turn of waiting takes.
const SESSION: Duration = Duration::from_secs(3);
const SESSION_OF_POSTGRES: Duration = Duration::from_secs(2);

/// How long an answer of a session may take where no lock depends on it, and the opening of a client, which
/// makes two connections. A machine that has much else to do takes a second for that.
const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// Servers that this process started, or its parent: then without hooks.
pub(crate) struct Sql {
    way: Way,
    place: Place,
    capabilities: Capabilities,
    pub(crate) hooks: Option<SqlHooks>,
}

/// In which way its locks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Postgres,
    /// Behind PgBouncer in transaction mode.
    PostgresPooler,
    PostgresSession,
    MariaDb,
    MariaDbSession,
}

/// A URL with a hole where the address is.
#[derive(Clone, Debug)]
struct Place {
    before: String,
    address: SocketAddr,
    after: String,
}

impl Place {
    fn read(url: &str) -> Self {
        let (before, rest) = url.rsplit_once('@').expect("there is a user");
        let (address, after) = rest.split_once('/').expect("there is a database");
        Self {
            before: format!("{before}@"),
            address: address.parse().expect("there is an address"),
            after: format!("/{after}"),
        }
    }

    fn at(&self, address: SocketAddr) -> String {
        format!("{}{address}{}", self.before, self.after)
    }

    fn url(&self) -> String {
        self.at(self.address)
    }
}

impl Way {
    const ALL: [(&'static str, Self); 5] = [
        ("postgres", Self::Postgres),
        ("postgres-pooler", Self::PostgresPooler),
        ("postgres-session", Self::PostgresSession),
        ("mariadb", Self::MariaDb),
        ("mariadb-session", Self::MariaDbSession),
    ];

    pub(crate) fn of(backend: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == backend);
        found.map(|(_, way)| *way)
    }

    fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, way)| *way == self);
        found.map(|(name, _)| *name).expect("all are listed")
    }

    pub(crate) fn is_session(self) -> bool {
        matches!(self, Self::PostgresSession | Self::MariaDbSession)
    }

    async fn open(self, url: String, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        Ok(match self {
            Self::Postgres | Self::MariaDb => Config::from_url(&url)?.connect(runtime).await?,
            Self::PostgresPooler => {
                let config = Config::from_url(&url)?.behind_pooler();
                config.connect(runtime).await?
            }
            Self::PostgresSession => {
                let config = session::Config::from_url(&url)?.session_ttl(SESSION_OF_POSTGRES);
                Arc::new(config.timeout(SESSION_TIMEOUT).connect(runtime).await?)
            }
            Self::MariaDbSession => {
                let config = session::Config::from_url(&url)?.session_ttl(SESSION);
                Arc::new(config.timeout(SESSION_TIMEOUT).connect(runtime).await?)
            }
        })
    }

    /// What a URL of the facade says beside the place.
    fn keys(self) -> &'static str {
        match self {
            Self::Postgres | Self::MariaDb => "",
            Self::PostgresPooler => "?pooler=true",
            Self::PostgresSession => "?strategy=session&session_ttl=2s",
            Self::MariaDbSession => "?strategy=session&session_ttl=3s",
        }
    }
}

impl Sql {
    pub(crate) fn start(way: Way, runtime: &Arc<dyn Runtime>) -> Self {
        let hooks = SqlHooks::start(way).expect("database servers can be started");
        let url = hooks.url();
        Self::new(way, &url, Some(hooks), runtime)
    }

    /// Those of the parent of this process, by what it [handed over](Self::handed_over).
    pub(crate) fn of_parent(way: Way, url: &str, runtime: &Arc<dyn Runtime>) -> Self {
        Self::new(way, url, None, runtime)
    }

    fn new(way: Way, url: &str, hooks: Option<SqlHooks>, runtime: &Arc<dyn Runtime>) -> Self {
        let opening = way.open(url.to_owned(), runtime.clone());
        Self {
            way,
            place: Place::read(url),
            capabilities: capabilities_of(runtime, opening.boxed()),
            hooks,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// A client of its servers, by the proxy before them.
    pub(crate) async fn open(&self, cx: &Cx, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        let address = cx.addr(0).and_then(|a| a.tcp()).unwrap_or(self.place.address);
        self.way.open(self.place.at(address), runtime).await
    }

    /// One of a server that is not there.
    pub(crate) async fn open_nowhere(&self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        self.way.open(self.place.at(nobody), runtime).await
    }

    /// One with another password.
    pub(crate) async fn connect_with(&self, secret: &str, runtime: Arc<dyn Runtime>) -> Result<Client> {
        let (scheme, _) = self.place.before.split_once("://").expect("it is a URL");
        let (at, after) = (self.place.address, &self.place.after);
        let url = format!("{scheme}://app:{secret}@{at}{after}{}", self.way.keys());
        dlock::connect(url).runtime(runtime).await
    }

    pub(crate) fn claims(&self) -> Claims {
        let product = match self.way {
            Way::Postgres => "dlock PostgreSQL",
            Way::PostgresPooler => "dlock PostgreSQL (behind a pooler)",
            Way::PostgresSession => "dlock PostgreSQL (sessions)",
            Way::MariaDb => "dlock MariaDB",
            Way::MariaDbSession => "dlock MariaDB (sessions)",
        };
        let timeout = self.timeout();
        let claims = Claims::new(product, env!("CARGO_PKG_VERSION"), self.capabilities.clone())
            .slack(match self.way {
                // What is waited for comes in turns of a third of the ttl, and the server sees that a client
                // is silent a little later.
                Way::PostgresSession => SESSION_OF_POSTGRES,
                Way::MariaDbSession => SESSION + Duration::from_secs(1),
                _ => Duration::from_millis(400),
            })
            .give_up(timeout * 2 + Duration::from_millis(500))
            .survives(Restart::Crash);
        match self.way {
            // Waiters poll.
            Way::MariaDb | Way::PostgresPooler => claims
                .wake_p99(Duration::from_millis(300))
                .without(Need::BoundedWakes),
            Way::PostgresSession | Way::MariaDbSession => claims
                .without(Need::OutlivesConnection)
                // A waiter holds its lock on the connection that it waited on: each of those polls
                // separately.
                .without(Need::BoundedWakes),
            Way::Postgres => claims,
        }
    }

    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        match self.way.is_session() {
            true => SESSION_TIMEOUT,
            false => TIMEOUT,
        }
    }

    /// What a child of this process has to know.
    pub(crate) fn handed_over(&self) -> String {
        format!("{} {}", self.way.name(), self.place.url())
    }
}
