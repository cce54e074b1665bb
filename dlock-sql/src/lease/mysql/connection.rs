//! Connections and requests to MySQL and MariaDB; the rest is in `lease/connection.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::spi::LeaseKey;
use dlock_core::{LockName, RequestId, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::bell::Bells;
use super::schema::{Statements, tables};
use super::{Answer, Db, Statement};
use crate::cache::Cache;
use crate::failure::shown;
use crate::lease::Config;
use crate::lease::call::prepare;
use crate::lease::connection::{Database, connect};
use crate::lease::failure::nothing_done;
use crate::lease::lock::Lease;
use crate::lease::schema::Opening;

/// What a client knows of a MySQL or MariaDB database.
pub(in crate::lease) struct Mysql {
    pub(super) options: MySqlConnectOptions,
    /// The first statements on each connection.
    greeting: Arc<str>,
    pub(super) sql: Statements,
    /// Requests that a look has shown to be offered a lease. Their next re-ask need not lock the name: see
    /// `renew`. If that is forgotten, or not true any more, the re-ask goes the long way.
    offered: Mutex<Cache<LeaseKey, ()>>,
    pub(super) bells: Arc<Bells>,
}

/// Connects, and makes or updates the tables.
pub(in crate::lease) async fn open(
    options: &MySqlConnectOptions,
    config: &Config,
    runtime: Arc<dyn Runtime>,
) -> Result<Lease<Mysql>> {
    let database = options.get_database().unwrap_or_default();
    let (socket, host, port) = (options.get_socket(), options.get_host(), options.get_port());
    let at = Arc::<str>::from(shown("MySQL", socket, host, port, database));
    let wait = config.lock_wait.as_millis().div_ceil(1_000).clamp(1, 1_000_000);
    // Assignments see the ones before, unless a mode of MariaDB says otherwise. The last is read by MariaDB
    // alone.
    let greeting = format!(
        "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
            innodb_lock_wait_timeout = {wait}, group_concat_max_len = 1000000, autocommit = 1; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         /*M!100300 SET SESSION idle_transaction_timeout = 1 */"
    );
    let tables = tables(config.schema.as_deref(), &config.table_prefix);
    let dialect = Mysql {
        options: options.clone().disable_statement_logging(),
        greeting: greeting.into(),
        sql: Statements::new(tables.prefix.clone()),
        offered: Mutex::default(),
        bells: Arc::default(),
    };
    // Before there are tables nothing can be prepared.
    let conn = connect::<Mysql>(dialect.connecting(Vec::new()), &*runtime, &at).await?;
    let mut opening = Opening::<Mysql> { conn, at: at.clone() };
    opening.migrate(&tables).await?;
    let mut first = opening.conn;
    let prepared = prepare::<sqlx::MySql>(&mut first, &dialect.sql.prepared()).await;
    prepared.map_err(|e| nothing_done(e, &at))?;
    let db = Database::new(dialect, first, &at, tables.fence, runtime, config);
    db.sweep_if_due().await;
    Ok(Lease::new(db))
}

impl Mysql {
    pub(super) fn note_offers(&self, name: &LockName, ids: &[RequestId]) {
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        for id in ids {
            offered.note(&LeaseKey::new(name.clone(), *id), ());
        }
    }

    /// Whether it was offered a lease; it is forgotten by that.
    pub(super) fn take_offer(&self, key: &LeaseKey) -> bool {
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let was_offered = offered.of(key).is_some();
        offered.forget(key);
        was_offered
    }

    /// Connects, says what the session is to be like, and prepares the statements.
    pub(super) fn connecting(
        &self,
        prepared: Vec<Arc<str>>,
    ) -> BoxFuture<'static, Result<MySqlConnection, sqlx::Error>> {
        let (options, greeting) = (self.options.clone(), self.greeting.clone());
        async move {
            let mut conn = options.connect().await?;
            sqlx::raw_sql(AssertSqlSafe(greeting)).execute(&mut conn).await?;
            prepare::<sqlx::MySql>(&mut conn, &prepared).await?;
            Ok(conn)
        }
        .boxed()
    }
}

impl Db {
    /// A text that changes something.
    pub(super) async fn tell(self: &Arc<Self>, text: String) -> Result<(Timestamp, Answer)> {
        self.send(Statement::Text(text)).await
    }

    /// A text that reads.
    pub(super) async fn read_text(self: &Arc<Self>, text: String) -> Result<Vec<MySqlRow>> {
        let read = self.read(|| Ok(Statement::Text(text.clone())));
        Ok(read.await?.rows)
    }
}
