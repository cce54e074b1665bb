//! What can be set, and how it becomes a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::Url;
use dlock_core::{Result, Runtime};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnectOptions, MySqlPool};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::dialect::{Database, Server, Settings};
use super::failure::{invalid, shut_down, unavailable, unsupported};
use super::lock::SessionLock;
#[cfg(feature = "postgres")]
use super::postgres::TransactionLocks;

/// The longest ttl. Linux gives up a connection whose other end is silent after a quarter of an hour. With it
/// goes the session, while a client that is cut off believes in it for the ttl.
const LONGEST_TTL: Duration = Duration::from_secs(600);

/// Settings of session locks, and the server that they are on.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn f(runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
/// use std::time::Duration;
/// use dlock_sql::session::Config;
///
/// let config = Config::from_url("postgres://shop:secret@db.example/shop")?;
/// let backend = config.session_ttl(Duration::from_secs(10)).connect(runtime).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    database: Arc<dyn Database>,
    ttl: Duration,
    prefix: String,
    schema: Option<String>,
    most_waiting: usize,
    timeout: Duration,
    /// The ttl unless something else is set.
    restart_grace: Option<Duration>,
}

impl Config {
    fn new(database: Arc<dyn Database>) -> Self {
        Self {
            database,
            ttl: Duration::from_secs(30),
            prefix: "dlock_".to_owned(),
            schema: None,
            most_waiting: 16,
            timeout: Duration::from_secs(5),
            restart_grace: None,
        }
    }

    /// The database of that URL, as sqlx takes it: `postgres://user:password@host:5432/database`, or
    /// `mysql://user:password@host:3306/database`, which is MariaDB as well.
    ///
    /// # Errors
    /// `InvalidInput` if it is not such a URL; `Unsupported` if the build has no driver for it.
    pub fn from_url(url: &str) -> Result<Self> {
        // No error quotes the URL: there may be a password in it.
        let database: Option<Arc<dyn Database>> = match url.split_once(':').map_or("", |(scheme, _)| scheme) {
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => url.parse::<PgConnectOptions>().ok().map(|o| Arc::new(o) as _),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => url.parse::<MySqlConnectOptions>().ok().map(|o| Arc::new(o) as _),
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => return Err(no_driver("postgres")),
            #[cfg(not(feature = "mysql"))]
            "mysql" | "mariadb" => return Err(no_driver("mysql")),
            _ => None,
        };
        let no_url = "this is no URL of a database server; it looks like \
                      postgres://user:password@host:5432/database, or mysql://user:password@host/database";
        database.map(Self::new).ok_or_else(|| invalid(no_url))
    }

    /// The database of that pool, on connections of the lock's own. They are made with the pool's options,
    /// and are not counted among the pool's. The pool's hooks are not run.
    #[cfg(feature = "postgres")]
    pub fn from_postgres_pool(pool: &PgPool) -> Self {
        Self::new(pool.connect_options())
    }

    /// As [`from_postgres_pool`](Self::from_postgres_pool), of MySQL or MariaDB. The options must name a
    /// database.
    #[cfg(feature = "mysql")]
    pub fn from_mysql_pool(pool: &MySqlPool) -> Self {
        Self::new(pool.connect_options())
    }

    /// Sets what the query of that URL sets: `session_ttl`, `most_waiting`, `timeout`, `restart_grace`.
    ///
    /// # Errors
    /// `InvalidInput` for a value that cannot be read.
    pub fn read(mut self, url: &mut Url) -> Result<Self> {
        self.ttl = url.take("session_ttl")?.unwrap_or(self.ttl);
        self.timeout = url.take("timeout")?.unwrap_or(self.timeout);
        self.restart_grace = url.take("restart_grace")?.or(self.restart_grace);
        if let Some(connections) = url.take::<u32>("most_waiting")? {
            self.most_waiting = connections as usize;
        }
        Ok(self)
    }

    /// After how long without a request the server ends a session, and gives its locks away. So long a lock
    /// stays taken at most when its client has vanished; it is the smallest ttl of a lock.
    ///
    /// 30 seconds unless set; ten minutes at most. At least 300 ms, rounded up to milliseconds, with
    /// PostgreSQL; at least 3 seconds, rounded up to seconds, with MySQL and MariaDB.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Draws tokens from the sequence or table `<prefix>session_token`. `dlock_` unless set; lower-case
    /// letters, digits and underscores. Two prefixes are two sets of locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The schema of that sequence in PostgreSQL; the first one of the search path unless set. Two schemas
    /// are two sets of locks. MySQL has none: there it is the database that is connected to.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// How many connections may wait for a lock, or hold one that was waited for, beside the shared one. 16
    /// unless set. A waiter that finds none asks once a second.
    pub fn most_waiting(mut self, connections: usize) -> Self {
        self.most_waiting = connections;
        self
    }

    /// How long a connection may take to be made, and an answer that no lock depends on. 5 seconds unless
    /// set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// For how long after its start a server grants no lock. A client that has not heard of the restart may
    /// believe in a lock of before for its session ttl.
    ///
    /// The session ttl unless set; ten minutes at most. Where clients of one prefix have different session
    /// ttls, set the longest for all: with less, a client that is stopped or cut off during a restart may
    /// believe in a lock that was granted to somebody else.
    pub fn restart_grace(mut self, grace: Duration) -> Self {
        self.restart_grace = Some(grace);
        self
    }

    /// Whether this could be connected with, as far as that is known without a server.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub fn check(&self) -> Result<()> {
        self.checked().map(drop)
    }

    /// Connects.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the sequence or table of the tokens.
    ///
    /// # Errors
    /// `InvalidInput` for a bad setting, or options without a database (MySQL); `Unsupported` for a server
    /// that is too old, or behind a pooler that shares sessions; `BackendData` if the tokens are not as dlock
    /// keeps them; `PermissionDenied`; `Unavailable`, also on a standby.
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<SessionLock> {
        let settings = self.checked()?;
        let server = self.open(&settings, &runtime).await?;
        SessionLock::connect(server, runtime, settings).await
    }

    /// Locks that live as long as a transaction of yours, under the same names: see [`TransactionLocks`]. Of
    /// the settings only the prefix, the schema, and the session ttl or [grace](Self::restart_grace) count.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `Unsupported` if the database is not PostgreSQL.
    #[cfg(feature = "postgres")]
    pub async fn transaction_locks(self, runtime: Arc<dyn Runtime>) -> Result<TransactionLocks> {
        let settings = self.checked()?;
        if !settings.limits.is_postgres {
            return Err(unsupported(
                "MySQL and MariaDB have no locks that end with a transaction",
            ));
        }
        let server = self.open(&settings, &runtime).await?;
        Ok(TransactionLocks::new(server.site()))
    }

    /// With a time limit, in a task of the given runtime: the driver connects on the one that is current.
    async fn open(&self, settings: &Settings, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Server>> {
        let (limit, database, settings) = (self.timeout, self.database.clone(), settings.clone());
        let (mut send, receive) = oneshot::channel();
        let opening = async move {
            // Whoever is not waited for any more does not go on.
            let opened = match select(database.open(settings), send.cancellation()).await {
                Either::Left((opened, _)) => opened,
                Either::Right(_) => return,
            };
            let _ = send.send(opened);
        };
        runtime.spawn(opening.boxed());
        match select(receive, runtime.sleep(limit)).await {
            Either::Left((opened, _)) => opened.unwrap_or_else(|_| Err(shut_down())),
            Either::Right(_) => Err(unavailable(format!(
                "the database was not opened within {limit:?}"
            ))),
        }
    }

    /// With the ttl rounded up to what the server counts in.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub(super) fn checked(&self) -> Result<Settings> {
        let limits = self.database.limits();
        let (ttl, shortest) = (self.ttl, limits.shortest_ttl);
        if ttl < shortest || ttl > LONGEST_TTL {
            return Err(invalid(format!(
                "a session ttl of {ttl:?} is not between {shortest:?} and {LONGEST_TTL:?}"
            )));
        }
        if let Some(grace) = self.restart_grace.filter(|grace| *grace > LONGEST_TTL) {
            return Err(invalid(format!(
                "a grace of {grace:?} after a restart is longer than {LONGEST_TTL:?}, the longest session ttl"
            )));
        }
        if self.timeout.is_zero() {
            return Err(invalid("the time limit of a request must be longer than nothing"));
        }
        let is_first = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_other = |c: char| is_first(c) || c.is_ascii_digit();
        // Lower case: what is folded by one server and not by another would be two sequences.
        let is_good = self.prefix.starts_with(is_first) && self.prefix.chars().all(is_other);
        if !is_good || self.prefix.len() > 40 {
            return Err(invalid(format!(
                "the prefix `{}` is not a lower-case letter or underscore, then such and digits, 40 in all",
                self.prefix.escape_default()
            )));
        }
        if self.schema.is_some() && !limits.is_postgres {
            return Err(invalid(
                "MySQL and MariaDB have no `schema`: session locks are of the database that is connected to",
            ));
        }
        let unit = limits.granularity.as_millis();
        let in_units = |units: u128| Duration::from_millis(u64::try_from(units * unit).unwrap_or(u64::MAX));
        let rounded = in_units(ttl.as_nanos().div_ceil(unit * 1_000_000));
        Ok(Settings {
            limits,
            ttl: rounded,
            turn: in_units((rounded.as_millis() / 3 / unit).max(1)),
            timeout: self.timeout,
            grace: self.restart_grace.unwrap_or(rounded),
            #[cfg(feature = "postgres")]
            schema: self.schema.clone(),
            sequence: format!("{}session_token", self.prefix),
            most_waiting: self.most_waiting,
        })
    }
}

#[cfg(not(all(feature = "postgres", feature = "mysql")))]
fn no_driver(feature: &str) -> dlock_core::Error {
    unsupported(format!(
        "this build has no driver for that database: enable the feature `{feature}`"
    ))
}

/// Without the options of the driver, which show the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("database", &self.database.limits().name)
            .field("prefix", &self.prefix)
            .field("session_ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
