//! Which database server, and how it is used.

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

/// Settings of leases, and the database that they are in.
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

    /// As [`read`](Self::read), of a URL that is not parsed yet.
    ///
    /// # Errors
    /// `InvalidInput`; `Unsupported` if the build has no driver for it.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(Url::parse(url)?)
    }

    /// What a URL says: `postgres://user:password@host:5432/database`, or
    /// `mysql://user:password@host:3306/database`, which is MariaDB as well.
    ///
    /// | key | meaning |
    /// |---|---|
    /// | `table_prefix`, `schema` | [`table_prefix`](Self::table_prefix), [`schema`](Self::schema) |
    /// | `connections`, `lock_wait` | [`connections`](Self::connections), [`lock_wait`](Self::lock_wait) |
    /// | `pooler` | PostgreSQL: `true` [behind a pooler](Self::behind_pooler) in transaction mode |
    /// | others | what [the driver](crate::driver_url) is told |
    ///
    /// # Errors
    /// `InvalidInput` for what is no such URL, or a key that is not known; `Unsupported` if the build has no
    /// driver for it.
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

    /// The database of that pool, on connections of the lock's own. They are made with the pool's options,
    /// and are not counted among the pool's. The pool's hooks are not run.
    #[cfg(feature = "postgres")]
    pub fn from_postgres_pool(pool: &PgPool) -> Self {
        Self::new(Options::Postgres(pool.connect_options()))
    }

    /// As [`from_postgres_pool`](Self::from_postgres_pool), of MySQL or MariaDB.
    #[cfg(feature = "mysql")]
    pub fn from_mysql_pool(pool: &MySqlPool) -> Self {
        Self::new(Options::Mysql(pool.connect_options()))
    }

    /// The database of those options.
    #[cfg(feature = "postgres")]
    pub fn from_postgres_options(options: PgConnectOptions) -> Self {
        Self::new(Options::Postgres(Arc::new(options)))
    }

    /// The database of those options.
    #[cfg(feature = "mysql")]
    pub fn from_mysql_options(options: MySqlConnectOptions) -> Self {
        Self::new(Options::Mysql(Arc::new(options)))
    }

    /// Uses tables in that schema (in MySQL: another database of the same server). PostgreSQL: the first of
    /// the user's search path unless set; it is made if it is not there and tables have to be. MySQL: the
    /// database that is connected to unless set; it has to exist.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Uses tables whose names begin with that: a small letter or underscore, then small letters, digits and
    /// underscores, 40 at most. `dlock_` unless set. Two prefixes are two sets of locks.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Uses at most that many connections at a time, made when they are needed, beside the one that listens
    /// in PostgreSQL. 4 unless set, and at least 1. Waiters have none.
    pub fn connections(mut self, many: usize) -> Self {
        self.connections = many;
        self
    }

    /// How long a statement waits for a name that another one changes before it answers `Unavailable`. 2
    /// seconds unless set; MySQL counts in seconds, rounded up. Behind a pooler it is the server's
    /// `lock_timeout` for this user.
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// How often a client looks for names that nobody has used for two minutes, and deletes their rows; it
    /// does so when it releases something. One client does it for all. A minute unless set.
    pub fn sweep_every(mut self, time: Duration) -> Self {
        self.sweep_every = time;
        self
    }

    /// There is a pooler between this program and PostgreSQL that may answer each transaction on another
    /// session, as PgBouncer in transaction mode. Statements go unprepared, each is a transaction of its own,
    /// and nothing listens: whoever waits looks, every 10 to 200 ms per client and name.
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

/// Without the options of the driver, which show the password.
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
