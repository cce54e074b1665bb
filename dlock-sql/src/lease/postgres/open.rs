//! Opening: by URL, with the options of a pool.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgPool};

use super::call::{Way, hex};
use super::connection::{Db, Postgres, Warm, connecting, prepare};
use super::failure::nothing_done;
use super::lock::PostgresLease;
use super::notify::listen;
use super::pushes::Pushes;
use super::schema::{MIGRATIONS, Names, Statements, check_isolation, current_schema, migrate};
use super::sweep::sweep_is_due;
use crate::lease::connection::{Parts, connect};
use crate::lease::request::check_prefix;

/// What the names of the tables begin with unless another prefix is chosen.
pub const DEFAULT_PREFIX: &str = "dlock_";

/// What is between this program and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Nothing, or a pooler in session mode.
    #[default]
    Direct,
    /// A pooler that may answer each transaction on another session, as PgBouncer in transaction mode.
    /// Statements go unprepared, each is a transaction of its own, and nothing listens: whoever waits looks,
    /// every 10 to 200 ms per client and name.
    TransactionPooler,
}

/// Settings for opening a [`PostgresLease`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    options: PgConnectOptions,
    schema: Option<String>,
    prefix: String,
    connections: usize,
    lock_wait: Duration,
    sweep_every: Duration,
    route: Route,
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
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Uses tables in that schema, which is made if it is not there and tables have to be. The first of the
    /// user's search path unless set.
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

    /// Uses at most that many connections at a time, made when they are needed, beside the one that listens.
    /// 4 unless set, and at least 1.
    pub fn connections(mut self, many: usize) -> Self {
        self.connections = many.max(1);
        self
    }

    /// How long a statement waits for a name that another one changes before it answers `Unavailable`. 2
    /// seconds unless set. Behind a pooler it is the server's `lock_timeout` for this user.
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Says what is between this program and the server. [`Route::Direct`] unless set.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// How often a client looks for names that nobody has used for two minutes, and deletes their rows; it
    /// does so when it releases something. One client does it for all. A minute unless set.
    pub fn sweep_every(mut self, time: Duration) -> Self {
        self.sweep_every = time;
        self
    }

    /// Connects, creates or updates the tables, and begins to listen.
    ///
    /// A user that may not create tables can open them when they are there in this version.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the empty tables.
    ///
    /// # Errors
    /// `InvalidInput` for a bad prefix, or a database or schema that is not there; `Unsupported` if a newer
    /// dlock has used the tables, or behind a pooler that was not told of; `BackendData` if the tables are
    /// not ours; `PermissionDenied`; `Unavailable`.
    pub async fn open(self, runtime: Arc<dyn Runtime>) -> Result<PostgresLease> {
        check_prefix(&self.prefix)?;
        let at: Arc<str> = shown(&self.options).into();
        let way = match self.route {
            Route::Direct => Way::Prepared,
            Route::TransactionPooler => Way::InFull,
        };
        let mut options = self.options.disable_statement_logging();
        if self.route == Route::Direct {
            let wait = self.lock_wait.as_millis().clamp(1, i32::MAX as u128);
            options = options.options([
                ("default_transaction_isolation", "read committed".to_owned()),
                ("default_transaction_read_only", "off".to_owned()),
                ("lock_timeout", format!("{wait}ms")),
                // Each statement finds rows by their keys, whatever the values are. The server would plan
                // some of them anew each time, which costs more than to run them, and others for the table as
                // it was when it was small.
                ("plan_cache_mode", "force_generic_plan".to_owned()),
                ("enable_seqscan", "off".to_owned()),
                ("jit", "off".to_owned()),
            ]);
        }
        let mut first = connect::<Postgres>(connecting(&options, Warm::default()), &*runtime, &at).await?;
        if way == Way::InFull {
            check_isolation(&mut first, way, &at).await?;
        }
        let schema = match self.schema {
            Some(schema) => schema,
            None => current_schema(&mut first, way, &at).await?,
        };
        let names = Names::new(&schema, &self.prefix);
        migrate(&mut first, way, &names, MIGRATIONS, &at).await?;
        let sql = Statements::new(&names);
        if way == Way::Prepared {
            prepare(&mut first, &sql.warm())
                .await
                .map_err(|e| nothing_done(e, &at))?;
        }
        let sweep_due = sweep_is_due(&mut first, way, &sql, &at).await?;
        let channel = (self.route == Route::Direct).then(|| {
            let mut own = [0; 16];
            runtime.fill_random(&mut own);
            Arc::from(format!("dlock_{}", hex(&own)))
        });
        let db = Arc::new(Db::new(Parts {
            dialect: Postgres {
                options,
                way,
                sql,
                pushes: Pushes::new(),
                channel,
            },
            at,
            runtime,
            connections: self.connections,
            sweep_every: self.sweep_every,
            sweep_due,
            first,
        }));
        listen(&db).await?;
        Ok(PostgresLease::new(db))
    }
}

impl PostgresLease {
    /// Settings for the database of that URL: `postgres://user:password@host:port/database`, and what else
    /// sqlx takes.
    ///
    /// # Errors
    /// `InvalidInput` if it is not such a URL.
    pub fn builder(url: &str) -> Result<Builder> {
        // The error of the driver may quote the URL, and with it a password.
        let options = PgConnectOptions::from_str(url).map_err(|_| {
            Error::new(
                ErrorKind::InvalidInput,
                "this is no URL of a PostgreSQL database; it looks like \
                    postgres://user:password@host:5432/database",
            )
        })?;
        Ok(Self::builder_with(options))
    }

    /// Settings for the database that those options lead to.
    pub fn builder_with(options: PgConnectOptions) -> Builder {
        Builder {
            options,
            schema: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            connections: 4,
            lock_wait: Duration::from_secs(2),
            sweep_every: Duration::from_secs(60),
            route: Route::Direct,
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
    pub async fn from_pool(pool: &PgPool, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let options = (*pool.connect_options()).clone();
        Self::builder_with(options).open(runtime).await
    }
}

/// Where it is, for messages: never a password.
fn shown(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{database} at {}", socket.display()),
        None => format!("{database} at {}:{}", options.get_host(), options.get_port()),
    }
}
