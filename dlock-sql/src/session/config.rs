//! What can be set, and what a server takes of it.

use std::fmt;
use std::time::Duration;

use dlock_core::Result;
use dlock_core::spi::Url;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlPool;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgPool;

use super::failure::invalid;
use super::keys::Key;
use crate::direct::is_small;
use crate::driver_url::Options;

/// The longest ttl. Linux gives up a connection whose other end is silent after a quarter of an hour. With it
/// goes the session, while a client that is cut off believes in it for the ttl.
const LONGEST_TTL: Duration = Duration::from_secs(600);

/// What a kind of server takes.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// What the backend is called.
    pub(super) name: &'static str,
    pub(super) shortest_ttl: Duration,
    /// What the server counts a ttl and a turn in.
    pub(super) granularity: Duration,
    /// The longest pause between two pings of a session that holds something, beside a third of the ttl.
    pub(super) ping: Duration,
    /// How much of a key it takes.
    pub(super) key_bytes: usize,
    /// It has schemas, and locks that end with a transaction.
    pub(super) is_postgres: bool,
}

impl Limits {
    fn of(database: &Options) -> Self {
        match database {
            #[cfg(feature = "postgres")]
            Options::Postgres(_) => Self {
                name: "postgres-session",
                // A third of it is a turn of waiting, and a ping.
                shortest_ttl: Duration::from_millis(300),
                granularity: Duration::from_millis(1),
                ping: Duration::MAX,
                key_bytes: Key::OF_POSTGRES,
                is_postgres: true,
            },
            #[cfg(feature = "mysql")]
            Options::Mysql(_) => Self {
                name: "mysql-session",
                // The servers count in seconds, and a third of it is a turn of waiting.
                shortest_ttl: Duration::from_secs(3),
                granularity: Duration::from_secs(1),
                // The end of a session is seen by a ping only.
                ping: Duration::from_secs(1),
                key_bytes: Key::OF_MYSQL,
                is_postgres: false,
            },
        }
    }
}

/// How to reach a database server and keep session locks in it.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn f(runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
/// use std::time::Duration;
/// use dlock_sql::session::Config;
///
/// let config = Config::from_url("postgres://shop:secret@db.example/shop")?; let backend =
/// config.session_ttl(Duration::from_secs(10)).connect(runtime).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    pub(super) database: Options,
    pub(super) limits: Limits,
    pub(super) ttl: Duration,
    prefix: String,
    pub(super) schema: Option<String>,
    pub(super) most_waiting: usize,
    pub(super) timeout: Duration,
    restart_grace: Option<Duration>,
}

impl Config {
    fn new(database: Options) -> Self {
        Self {
            limits: Limits::of(&database),
            database,
            ttl: Duration::from_secs(30),
            prefix: "dlock_".to_owned(),
            schema: None,
            most_waiting: 16,
            timeout: Duration::from_secs(5),
            restart_grace: None,
        }
    }

    /// Reads a URL: see [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(Url::parse(url)?)
    }

    /// Reads a parsed URL: `postgres://user:password@host:5432/database`, or
    /// `mysql://user:password@host:3306/database` for MySQL and MariaDB.
    ///
    /// The keys `session_ttl`, `schema`, `most_waiting`, `timeout` and `restart_grace` set the option of that
    /// name, and `table_prefix` sets [`prefix`](Self::prefix). Others are options of [the
    /// driver](crate::driver_url).
    ///
    /// # Errors
    /// `InvalidInput` if the URL is wrong or has an unknown key; `Unsupported` if the build has no driver for
    /// it.
    pub fn read(mut url: Url) -> Result<Self> {
        let mut config = Self::new(Options::read(&mut url)?);
        config.ttl = url.take("session_ttl")?.unwrap_or(config.ttl);
        config.prefix = url.take("table_prefix")?.unwrap_or(config.prefix);
        config.schema = url.take("schema")?;
        config.timeout = url.take("timeout")?.unwrap_or(config.timeout);
        config.restart_grace = url.take("restart_grace")?;
        let connections = url.take::<u32>("most_waiting")?;
        config.most_waiting = connections.map_or(config.most_waiting, |many| many as usize);
        url.finish()?;
        Ok(config)
    }

    /// Uses the database of a pool, on connections of its own. They are made with the pool's options, do not
    /// count among the pool's connections, and do not run the pool's hooks.
    #[cfg(feature = "postgres")]
    pub fn from_postgres_pool(pool: &PgPool) -> Self {
        Self::new(Options::Postgres(pool.connect_options()))
    }

    /// As [`from_postgres_pool`](Self::from_postgres_pool), for MySQL or MariaDB. The options must name a
    /// database.
    #[cfg(feature = "mysql")]
    pub fn from_mysql_pool(pool: &MySqlPool) -> Self {
        Self::new(Options::Mysql(pool.connect_options()))
    }

    /// Sets after how long without a request the server ends a session and releases its locks. It is the
    /// minimum ttl of a lock, and the longest time that others wait after a client vanished.
    ///
    /// 30 seconds unless set, and at most ten minutes. The minimum is 300 ms for PostgreSQL, and 3 seconds
    /// for MySQL and MariaDB, which count in whole seconds.
    pub fn session_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the prefix of the sequence or table `<prefix>session_token`, which gives the tokens. `dlock_`
    /// unless set; a lower-case letter or underscore, then lower-case letters, digits and underscores, at
    /// most 40. Different prefixes are different sets of locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the schema of that sequence in PostgreSQL; the first one of the search path unless set. Different
    /// schemas are different sets of locks. MySQL has no schemas: the database of the connection is used.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets how many connections may wait for a lock, or hold one that was waited for, besides the shared
    /// connection; 16 unless set. A waiter without a connection polls once a second.
    pub fn most_waiting(mut self, connections: usize) -> Self {
        self.most_waiting = connections;
        self
    }

    /// Sets how long connecting may take, and an answer that no lock depends on; above zero, 5 seconds unless
    /// set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets for how long after its start a server grants no lock. A client that has not noticed the restart
    /// may believe in its lock for the session ttl.
    ///
    /// The session ttl unless set, and at most ten minutes. Where clients with one prefix have different
    /// session ttls, set the longest for all: with less, a client that is paused or cut off during a restart
    /// may believe in a lock that was granted to another.
    pub fn restart_grace(mut self, grace: Duration) -> Self {
        self.restart_grace = Some(grace);
        self
    }

    /// Checks everything that needs no server.
    ///
    /// # Errors
    /// `InvalidInput` if an option is wrong.
    pub fn check(&self) -> Result<()> {
        self.checked().map(drop)
    }

    /// With the ttl rounded up to what the server counts in.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub(super) fn checked(&self) -> Result<Self> {
        let limits = &self.limits;
        let (ttl, shortest) = (self.ttl, limits.shortest_ttl);
        let wrong = if ttl < shortest || ttl > LONGEST_TTL {
            format!("the session ttl must be from {shortest:?} to {LONGEST_TTL:?}, not {ttl:?}")
        } else if self.restart_grace.is_some_and(|grace| grace > LONGEST_TTL) {
            format!("`restart_grace` must be at most {LONGEST_TTL:?}, the longest session ttl")
        } else if self.timeout.is_zero() {
            "the time limit of a request must be above zero".to_owned()
        // What is folded by one server and not by another would be two sequences.
        } else if !is_small(&self.prefix) {
            let prefix = self.prefix.escape_default();
            format!("the prefix `{prefix}` is not a small letter or `_`, then such and digits, 40 at most")
        } else if self.schema.is_some() && !limits.is_postgres {
            "MySQL has no `schema`: session locks use the database of the connection".to_owned()
        } else {
            String::new()
        };
        if !wrong.is_empty() {
            return Err(invalid(wrong));
        }
        let units = ttl.as_nanos().div_ceil(limits.granularity.as_nanos());
        let mut checked = self.clone();
        checked.ttl = self.in_units(units);
        Ok(checked)
    }

    fn in_units(&self, units: u128) -> Duration {
        self.limits.granularity * u32::try_from(units).unwrap_or(u32::MAX)
    }

    /// How long a wait is sent for.
    pub(super) fn turn(&self) -> Duration {
        let third = self.ttl.as_nanos() / 3 / self.limits.granularity.as_nanos();
        self.in_units(third.max(1))
    }

    /// For how long a server that has started grants nothing.
    pub(super) fn grace(&self) -> Duration {
        self.restart_grace.unwrap_or(self.ttl)
    }

    /// The sequence or table that the tokens come from.
    pub(super) fn sequence(&self) -> String {
        format!("{}session_token", self.prefix)
    }
}

/// Leaves out the options of the driver, which have the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("database", &self.limits.name)
            .field("prefix", &self.prefix)
            .field("session_ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
