//! How PostgreSQL is connected to and asked. The rest is the same for all servers: `lease/connection.rs`.

use std::sync::Arc;

use dlock_core::{Error, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgTypeInfo};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, SqlSafeStr as _};

use super::call::{Rows, Statement, Value};
use super::notify::listen;
use super::schema::{Session, Statements};
use super::wait::Pushes;
use super::{Db, failure};
use crate::lease::Config;
use crate::lease::connection::{Database, connect};
use crate::lease::failure::nothing_done;
use crate::lease::keys::hex;
use crate::lease::lock::Lease;

/// What a client knows of a PostgreSQL database.
pub(in crate::lease) struct Postgres {
    pub(super) options: PgConnectOptions,
    /// There is a pooler in transaction mode: statements go in full.
    pub(super) in_full: bool,
    pub(super) sql: Statements,
    pub(super) pushes: Arc<Pushes>,
    /// Where this client is told; `None` if it only looks.
    pub(super) channel: Option<Arc<str>>,
}

/// Connects, makes or updates the tables, and begins to listen.
pub(in crate::lease) async fn open(
    options: PgConnectOptions,
    config: &Config,
    runtime: Arc<dyn Runtime>,
) -> Result<Lease<Postgres>> {
    let at: Arc<str> = shown(&options).into();
    let in_full = config.behind_pooler;
    let mut options = options.disable_statement_logging();
    if !in_full {
        let wait = config.lock_wait.as_millis().clamp(1, i32::MAX as u128);
        options = options.options([
            ("default_transaction_isolation", "read committed".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            ("lock_timeout", format!("{wait}ms")),
            // Each statement finds rows by their keys, whatever the values are. The server would plan some of
            // them anew each time, which costs more than to run them, and others for the table as it was when
            // it was small.
            ("plan_cache_mode", "force_generic_plan".to_owned()),
            ("enable_seqscan", "off".to_owned()),
            ("jit", "off".to_owned()),
        ]);
    }
    let connecting = connecting(&options, Warm::default());
    let mut session = Session {
        conn: connect::<Postgres>(connecting, &*runtime, &at).await?,
        in_full,
        at: at.clone(),
    };
    let names = session.migrated(config).await?;
    let sql = Statements::new(&names);
    let mut first = session.conn;
    if !in_full {
        let prepared = prepare(&mut first, &sql.warm()).await;
        prepared.map_err(|e| nothing_done::<Postgres>(e, &at))?;
    }
    let channel = (!in_full).then(|| {
        let mut own = [0; 16];
        runtime.fill_random(&mut own);
        Arc::from(format!("dlock_{}", hex(&own)))
    });
    let dialect = Postgres {
        options,
        in_full,
        sql,
        pushes: Pushes::new(),
        channel,
    };
    let (connections, every) = (config.connections, config.sweep_every);
    let db = Database::new(dialect, first, &at, runtime, connections, every);
    listen(&db).await?;
    db.sweep_at_first().await;
    Ok(Lease::new(db))
}

/// Where it is, for messages: never a password.
fn shown(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{database} at {}", socket.display()),
        None => format!("{database} at {}:{}", options.get_host(), options.get_port()),
    }
}

impl Postgres {
    pub(super) fn statement(&self, text: &Arc<str>, values: &[Value<'_>]) -> Result<Statement> {
        Statement::new(self.in_full, text, values).map_err(not_written)
    }

    pub(super) fn warm(&self) -> Warm {
        match self.in_full {
            true => Warm::default(),
            false => self.sql.warm(),
        }
    }
}

fn not_written(e: sqlx::Error) -> Error {
    crate::lease::failure::invalid(format!("a value cannot be stored: {e}"))
}

impl Db {
    /// A statement that changes something: see [`Database::send`].
    pub(super) async fn ask(
        self: &Arc<Self>,
        text: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<(Timestamp, Rows)> {
        self.send(self.statement(text, values)?).await
    }

    /// One that may be heard twice: see [`Database::send_again`].
    pub(super) async fn ask_again(
        self: &Arc<Self>,
        text: &Arc<str>,
        values: &[Value<'_>],
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, Rows)> {
        self.send_again(|| self.statement(text, values), noted).await
    }

    /// One that reads.
    pub(super) async fn read_rows(self: &Arc<Self>, text: &Arc<str>, values: &[Value<'_>]) -> Result<Rows> {
        self.read(|| self.statement(text, values)).await
    }
}

/// What makes a new connection ready.
#[derive(Default)]
pub(super) struct Warm {
    /// Statements and the types of their values, parsed at the server.
    pub(super) statements: Vec<(Arc<str>, Vec<PgTypeInfo>)>,
    /// Has the server compile the functions, which it does in each session anew, at the first call. That
    /// takes several milliseconds, and the first call has the name's row locked: where a hundred clients come
    /// for one name after a restart, they would do it one after the other.
    pub(super) calls: Option<Arc<str>>,
}

/// Connects, and makes the connection ready before it is used.
pub(super) fn connecting(
    options: &PgConnectOptions,
    warm: Warm,
) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
    let options = options.clone();
    async move {
        let mut conn = options.connect().await?;
        prepare(&mut conn, &warm).await?;
        Ok(conn)
    }
    .boxed()
}

async fn prepare(conn: &mut PgConnection, warm: &Warm) -> Result<(), sqlx::Error> {
    for (text, types) in &warm.statements {
        let text = AssertSqlSafe(text.clone()).into_sql_str();
        (&mut *conn).prepare_with(text, types).await?;
    }
    if let Some(calls) = &warm.calls {
        let called = sqlx::raw_sql(AssertSqlSafe(calls.clone())).execute(conn).await;
        // What the server refuses here it refuses again, to somebody who hears of it.
        if let Err(e) = called
            && failure::is_fatal(&e)
        {
            return Err(e);
        }
    }
    Ok(())
}
