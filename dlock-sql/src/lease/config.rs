//! The options of leases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Result;
use dlock_core::spi::Url;
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnectOptions, MySqlPool};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::failure::invalid;
use crate::direct::is_small;
use crate::driver_url::Options;

/// How to reach a database server and keep leases in it.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # use std::sync::Arc;
/// # async fn f(pool: sqlx::PgPool, runtime: Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
/// use dlock_sql::lease::Config;
///
/// let backend = Config::from_postgres_pool(&pool).table_prefix("shop_").connect(runtime).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Config {
    pub(super) database: Options,
    pub(super) schema: Option<String>,
    pub(super) table_prefix: String,
    pub(super) connections: usize,
    pub(super) lock_wait: Duration,
    pub(super) sweep_every: Duration,
    #[cfg(feature = "postgres")]
    pub(super) behind_pooler: bool,
}

impl Config {
    fn new(database: Options) -> Self {
        Self {
            database,
            schema: None,
            table_prefix: "dlock_".to_owned(),
            connections: 4,
            lock_wait: Duration::from_secs(2),
            sweep_every: Duration::from_secs(60),
            #[cfg(feature = "postgres")]
            behind_pooler: false,
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
    /// | key | sets |
    /// |---|---|
    /// | `table_prefix`, `schema` | [`table_prefix`](Self::table_prefix), [`schema`](Self::schema) |
    /// | `connections`, `lock_wait` | [`connections`](Self::connections), [`lock_wait`](Self::lock_wait) |
    /// | `pooler` | PostgreSQL: `true` for [`behind_pooler`](Self::behind_pooler) |
    /// | others | options of [the driver](crate::driver_url) |
    ///
    /// # Errors
    /// `InvalidInput` if the URL is wrong or has an unknown key; `Unsupported` if the build has no driver for
    /// it.
    pub fn read(mut url: Url) -> Result<Self> {
        let mut config = Self::new(Options::read(&mut url)?);
        config.schema = url.take("schema")?;
        config.table_prefix = url.take("table_prefix")?.unwrap_or(config.table_prefix);
        config.lock_wait = url.take("lock_wait")?.unwrap_or(config.lock_wait);
        let connections = url.take::<u32>("connections")?;
        config.connections = connections.map_or(config.connections, |many| many as usize);
        #[cfg(feature = "postgres")]
        if url.scheme().starts_with("postgres") {
            config.behind_pooler = url.take("pooler")?.unwrap_or(false);
        }
        url.finish()?;
        Ok(config)
    }

    /// Uses the database of a pool, on connections of its own. They are made with the pool's options, do not
    /// count among the pool's connections, and do not run the pool's hooks.
    #[cfg(feature = "postgres")]
    pub fn from_postgres_pool(pool: &PgPool) -> Self {
        Self::new(Options::Postgres(pool.connect_options()))
    }

    /// As [`from_postgres_pool`](Self::from_postgres_pool), for MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub fn from_mysql_pool(pool: &MySqlPool) -> Self {
        Self::new(Options::Mysql(pool.connect_options()))
    }

    /// Uses the database that the driver's options name.
    #[cfg(feature = "postgres")]
    pub fn from_postgres_options(options: PgConnectOptions) -> Self {
        Self::new(Options::Postgres(Arc::new(options)))
    }

    /// Uses the database that the driver's options name.
    #[cfg(feature = "mysql")]
    pub fn from_mysql_options(options: MySqlConnectOptions) -> Self {
        Self::new(Options::Mysql(Arc::new(options)))
    }

    /// Sets the schema of the tables; in MySQL another database of the same server.
    ///
    /// PostgreSQL: the first of the user's search path unless set; it is created if it is missing and tables
    /// have to be created. MySQL: the database of the connection unless set; it must exist.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Sets the prefix of the names of all tables: a lower-case letter or underscore, then lower-case
    /// letters, digits and underscores, at most 40. `dlock_` unless set. Different prefixes are different
    /// sets of locks.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Sets how many connections are used at a time: at least 1, 4 unless set. They are made when they are
    /// needed. In PostgreSQL one more listens. Waiters need none.
    pub fn connections(mut self, many: usize) -> Self {
        self.connections = many;
        self
    }

    /// Sets how long a statement waits for a name that another one is changing before it fails as
    /// `Unavailable`; 2 seconds unless set. MySQL rounds up to seconds. Behind a pooler the server's
    /// `lock_timeout` for this user applies instead.
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Sets how often a client deletes the rows of names that were not used for two minutes; a minute unless
    /// set. It does so when it releases something. One client does it for all.
    pub fn sweep_every(mut self, time: Duration) -> Self {
        self.sweep_every = time;
        self
    }

    /// Works through a pooler that may run each transaction in another session, such as PgBouncer in
    /// transaction mode. Statements are not prepared, each is a transaction of its own, and no connection
    /// listens: waiters poll, every 10 to 200 ms per client and name.
    #[cfg(feature = "postgres")]
    pub fn behind_pooler(mut self) -> Self {
        self.behind_pooler = true;
        self
    }

    /// A prefix goes into the text of statements, so it is an identifier in lower case: unquoted, no server
    /// writes it otherwise. What is added to it is short enough for every limit of an identifier.
    pub(super) fn check(&self) -> Result<()> {
        match is_small(&self.table_prefix) && !self.table_prefix.starts_with("pg_") {
            true => Ok(()),
            false => Err(invalid(
                "a table prefix is a small letter or underscore, then small letters, digits and underscores, \
                    40 at most, and does not begin with `pg_`",
            )),
        }
    }
}

/// Leaves out the options of the driver, which have the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("schema", &self.schema)
            .field("table_prefix", &self.table_prefix)
            .field("connections", &self.connections)
            .field("lock_wait", &self.lock_wait)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_an_identifier_in_small_letters() {
        #[cfg(feature = "postgres")]
        let config = Config::from_url("postgres://h/d").unwrap();
        #[cfg(not(feature = "postgres"))]
        let config = Config::from_url("mysql://h/d").unwrap();
        for good in ["dlock_", "_", "a1"] {
            config.clone().table_prefix(good).check().unwrap();
        }
        let long = "a".repeat(41);
        for bad in ["", "1a", "A", "a b", "a;drop", "a\"", "a`", "pg_x", "é", &long] {
            let e = config.clone().table_prefix(bad).check().unwrap_err();
            assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput, "{bad:?}");
        }
    }
}
