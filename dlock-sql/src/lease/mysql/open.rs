//! Opening: by URL, with the options of a pool.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use sqlx::ConnectOptions as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool};

use super::connection::{Db, Mysql, connecting, prepare};
use super::failure::nothing_done;
use super::lock::MysqlLease;
use super::schema::{MIGRATIONS, Names, Statements, migrate};
use super::sight::Sights;
use crate::lease::connection::{Parts, connect};
use crate::lease::request::check_prefix;

/// What the names of the tables begin with unless another prefix is chosen.
pub const DEFAULT_PREFIX: &str = "dlock_";

/// Settings for opening a [`MysqlLease`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    options: MySqlConnectOptions,
    schema: Option<String>,
    prefix: String,
    connections: usize,
    lock_wait: Duration,
    sweep_every: Duration,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("at", &shown(&self.options))
            .field("schema", &self.schema)
            .field("prefix", &self.prefix)
            .field("connections", &self.connections)
            .field("lock_wait", &self.lock_wait)
            .field("sweep_every", &self.sweep_every)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Uses tables in that schema (another database of the same server), which has to exist. The one that is
    /// connected to unless set.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// Uses tables whose names begin with `prefix`: a small letter or underscore, then small letters, digits
    /// and underscores, 40 at most. [`DEFAULT_PREFIX`] unless set. Two prefixes are two sets of locks.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Uses at most that many connections at a time, made when they are needed. 4 unless set, and at least 1.
    pub fn connections(mut self, many: usize) -> Self {
        self.connections = many.max(1);
        self
    }

    /// How long a statement waits for a name that another one changes before it answers `Unavailable`: whole
    /// seconds, rounded up. 2 unless set.
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

    /// Connects, and creates or updates the tables.
    ///
    /// A user that may not create tables can open them when they are there in this version.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the empty tables.
    ///
    /// # Errors
    /// `InvalidInput` for a bad prefix, or a database that is not there; `Unsupported` if a newer dlock has
    /// used the tables; `BackendData` if the tables are not ours; `PermissionDenied`; `Unavailable`.
    pub async fn open(self, runtime: Arc<dyn Runtime>) -> Result<MysqlLease> {
        check_prefix(&self.prefix)?;
        let at: Arc<str> = shown(&self.options).into();
        let options = self.options.disable_statement_logging();
        let wait = self.lock_wait.as_millis().div_ceil(1_000).clamp(1, 1_000_000);
        // Assignments see the ones before, unless a mode of MariaDB says otherwise. The last is read by
        // MariaDB alone.
        let greeting: Arc<str> = format!(
            "SET SESSION sql_mode = \
                'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
                innodb_lock_wait_timeout = {wait}, group_concat_max_len = 1000000, autocommit = 1; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             /*M!100300 SET SESSION idle_transaction_timeout = 1 */"
        )
        .into();
        let names = Names::new(self.schema.as_deref(), &self.prefix);
        let sql = Statements::new(&names);
        // Before there are tables nothing can be prepared.
        let mut first = connect::<Mysql>(connecting(&options, &greeting, Vec::new()), &*runtime, &at).await?;
        migrate(&mut first, &names, MIGRATIONS, &at).await?;
        let prepared = prepare(&mut first, &sql.warm()).await;
        prepared.map_err(|e| nothing_done(e, &at))?;
        let db = Db::new(Parts {
            dialect: Mysql {
                options,
                greeting,
                sql,
                sights: Sights::default(),
            },
            at,
            runtime,
            connections: self.connections,
            sweep_every: self.sweep_every,
            sweep_due: false,
            first,
        });
        let db = Arc::new(db);
        db.sweep_at_first().await;
        Ok(MysqlLease::new(db))
    }
}

impl MysqlLease {
    /// Settings for the database of that URL: `mysql://user:password@host:port/database`, and what else sqlx
    /// takes.
    ///
    /// # Errors
    /// `InvalidInput` if it is not such a URL.
    pub fn builder(url: &str) -> Result<Builder> {
        // The error of the driver may quote the URL, and with it a password.
        let options = MySqlConnectOptions::from_str(url).map_err(|_| {
            Error::new(
                ErrorKind::InvalidInput,
                "this is no URL of a MySQL database; it looks like mysql://user:password@host:3306/database",
            )
        })?;
        Ok(Self::builder_with(options))
    }

    /// Settings for the database that those options lead to.
    pub fn builder_with(options: MySqlConnectOptions) -> Builder {
        Builder {
            options,
            schema: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            connections: 4,
            lock_wait: Duration::from_secs(2),
            sweep_every: Duration::from_secs(60),
        }
    }

    /// Opens the database of that URL with the default settings.
    ///
    /// # Cancel safety
    /// As [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(url: &str, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::builder(url)?.open(runtime).await
    }

    /// Opens the database of a pool of yours with the default settings, on connections of its own that are
    /// made with the pool's options and do not count among the pool's.
    ///
    /// # Cancel safety
    /// As [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn from_pool(pool: &MySqlPool, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let options = (*pool.connect_options()).clone();
        Self::builder_with(options).open(runtime).await
    }
}

/// Where it is, for messages: never a password.
fn shown(options: &MySqlConnectOptions) -> String {
    let database = options.get_database().unwrap_or("the default database");
    match options.get_socket() {
        Some(socket) => format!("{database} at {}", socket.display()),
        None => format!("{database} at {}:{}", options.get_host(), options.get_port()),
    }
}
