//! How MySQL and MariaDB are connected to and asked. The rest is the same for all servers:
//! `lease/connection.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::spi::LeaseKey;
use dlock_core::{LockName, RequestId, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, SqlSafeStr as _};

use super::schema::{Names, Statements, migrate};
use super::{Answer, Db, Statement};
use crate::lately::Lately;
use crate::lease::Config;
use crate::lease::connection::{Database, connect};
use crate::lease::failure::nothing_done;
use crate::lease::lock::Lease;

/// What a client knows of a MySQL or MariaDB database.
pub(in crate::lease) struct Mysql {
    options: MySqlConnectOptions,
    /// What each connection is told first.
    greeting: Arc<str>,
    pub(super) sql: Statements,
    /// Requests that a look has shown to be offered a lease. Their next re-ask need not lock the name: see
    /// `renew`. If that is forgotten, or not true any more, the re-ask goes the long way.
    offered: Mutex<Lately<LeaseKey, ()>>,
}

/// Connects, and makes or updates the tables.
pub(in crate::lease) async fn open(
    options: &MySqlConnectOptions,
    config: &Config,
    runtime: Arc<dyn Runtime>,
) -> Result<Lease<Mysql>> {
    let at: Arc<str> = shown(options).into();
    let wait = config.lock_wait.as_millis().div_ceil(1_000).clamp(1, 1_000_000);
    // Assignments see the ones before, unless a mode of MariaDB says otherwise. The last is read by MariaDB
    // alone.
    let greeting = format!(
        "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
            innodb_lock_wait_timeout = {wait}, group_concat_max_len = 1000000, autocommit = 1; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         /*M!100300 SET SESSION idle_transaction_timeout = 1 */"
    );
    let (schema, prefix) = (config.schema.clone(), config.table_prefix.clone());
    let names = Names { schema, prefix };
    let dialect = Mysql {
        options: options.clone().disable_statement_logging(),
        greeting: greeting.into(),
        sql: Statements::new(&names),
        offered: Mutex::default(),
    };
    // Before there are tables nothing can be prepared.
    let mut first = connect::<Mysql>(dialect.connecting(Vec::new()), &*runtime, &at).await?;
    migrate(&mut first, &names, &at).await?;
    let prepared = prepare(&mut first, dialect.sql.warm()).await;
    prepared.map_err(|e| nothing_done::<Mysql>(e, &at))?;
    let db = Database::new(dialect, first, &at, runtime, config);
    db.sweep_if_due().await;
    Ok(Lease::new(db))
}

/// Where it is, for messages: never a password.
fn shown(options: &MySqlConnectOptions) -> String {
    let database = options.get_database().unwrap_or("the default database");
    match options.get_socket() {
        Some(socket) => format!("{database} at {}", socket.display()),
        None => format!("{database} at {}:{}", options.get_host(), options.get_port()),
    }
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
        warm: Vec<Arc<str>>,
    ) -> BoxFuture<'static, Result<MySqlConnection, sqlx::Error>> {
        let (options, greeting) = (self.options.clone(), self.greeting.clone());
        async move {
            let mut conn = options.connect().await?;
            sqlx::raw_sql(AssertSqlSafe(greeting)).execute(&mut conn).await?;
            prepare(&mut conn, warm).await?;
            Ok(conn)
        }
        .boxed()
    }
}

/// Parses those statements at the server, which remembers them for this connection.
async fn prepare(conn: &mut MySqlConnection, warm: Vec<Arc<str>>) -> Result<(), sqlx::Error> {
    for text in warm {
        (&mut *conn).prepare(AssertSqlSafe(text).into_sql_str()).await?;
    }
    Ok(())
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
