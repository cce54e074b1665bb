//! How PostgreSQL is connected to and asked. The rest is the same for all servers: `lease/connection.rs`.

use std::sync::Arc;

use dlock_core::spi::LeaseKey;
use dlock_core::{Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, SqlSafeStr as _};

use super::answer::Answer;
use super::call::{Statement, Value, statement};
use super::notify::listen;
use super::schema::{Session, Statements};
use super::wait::Pushes;
use super::{Db, Rows};
use crate::lease::Config;
use crate::lease::connection::{Database, connect};
use crate::lease::failure::{is_fatal, nothing_done};
use crate::lease::keys::{hex, id_bytes};
use crate::lease::lock::Lease;

/// What a client knows of a PostgreSQL database.
pub(in crate::lease) struct Postgres {
    pub(super) options: PgConnectOptions,
    /// There is a pooler in transaction mode: statements go in full.
    pub(super) in_full: bool,
    pub(super) sql: Arc<Statements>,
    pub(super) pushes: Arc<Pushes>,
    /// Where this client is told; `None` if it only looks.
    pub(super) channel: Option<Arc<str>>,
}

/// Connects, makes or updates the tables, and begins to listen.
pub(in crate::lease) async fn open(
    options: &PgConnectOptions,
    config: &Config,
    runtime: Arc<dyn Runtime>,
) -> Result<Lease<Postgres>> {
    let at: Arc<str> = shown(options).into();
    let in_full = config.behind_pooler;
    let mut options = options.clone().disable_statement_logging();
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
    let mut session = Session {
        conn: connect::<Postgres>(connecting(&options, None), &*runtime, &at).await?,
        in_full,
        at: at.clone(),
    };
    let sql = Arc::new(Statements::new(session.migrated(config).await?));
    let mut first = session.conn;
    if !in_full {
        let prepared = prepare(&mut first, &sql).await;
        prepared.map_err(|e| nothing_done(e, &at))?;
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
    let db = Database::new(dialect, first, &at, runtime, config);
    listen(&db).await?;
    db.sweep_if_due().await;
    Ok(Lease::new(db))
}

/// Where it is, for messages: never a password.
fn shown(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("the PostgreSQL database {database} at {}", socket.display()),
        None => format!(
            "the PostgreSQL database {database} at {}:{}",
            options.get_host(),
            options.get_port()
        ),
    }
}

impl Postgres {
    pub(super) fn statement(&self, text: &Arc<str>, values: &[Value<'_>]) -> Result<Statement> {
        statement(self.in_full, text, values.iter())
    }

    /// One about a request: its first values are the name and the id.
    pub(super) fn about(&self, text: &Arc<str>, key: &LeaseKey, rest: &[Value<'_>]) -> Result<Statement> {
        let id = id_bytes(key.id);
        let values = [Value::Bytes(key.name.as_bytes()), Value::Bytes(&id)];
        statement(self.in_full, text, values.iter().chain(rest))
    }

    /// Connects, and makes the connection ready before it is used.
    pub(super) fn connecting(&self) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
        connecting(&self.options, (!self.in_full).then(|| self.sql.clone()))
    }

    fn read_answer(&self, (sent, rows): (Timestamp, Rows)) -> Result<(Timestamp, Answer)> {
        let answer = Answer::of(&rows)?;
        self.pushes.anchor(sent, answer.at);
        Ok((sent, answer))
    }
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

    /// A function about a request: when it was sent, and what it answers.
    pub(super) async fn call(
        self: &Arc<Self>,
        text: &Arc<str>,
        key: &LeaseKey,
        rest: &[Value<'_>],
    ) -> Result<(Timestamp, Answer)> {
        self.read_answer(self.send(self.about(text, key, rest)?).await?)
    }

    /// One that may be heard twice: see [`Database::send_again`].
    pub(super) async fn call_again(
        self: &Arc<Self>,
        text: &Arc<str>,
        key: &LeaseKey,
        rest: &[Value<'_>],
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, Answer)> {
        let answered = self.send_again(|| self.about(text, key, rest), noted);
        self.read_answer(answered.await?)
    }

    /// A statement that reads.
    pub(super) async fn read_rows(self: &Arc<Self>, text: &Arc<str>, values: &[Value<'_>]) -> Result<Rows> {
        self.read(|| self.statement(text, values)).await
    }
}

fn connecting(
    options: &PgConnectOptions,
    sql: Option<Arc<Statements>>,
) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
    let options = options.clone();
    async move {
        let mut conn = options.connect().await?;
        if let Some(sql) = sql {
            prepare(&mut conn, &sql).await?;
        }
        Ok(conn)
    }
    .boxed()
}

/// Has statements parsed, and functions compiled. The server does that in each session anew, at the first
/// call, and it takes several milliseconds, with the name's row locked: where a hundred clients come for one
/// name after a restart, they would do it one after the other.
async fn prepare(conn: &mut PgConnection, sql: &Statements) -> Result<(), sqlx::Error> {
    for text in sql.prepared() {
        let text = AssertSqlSafe(text.clone()).into_sql_str();
        (&mut *conn).prepare(text).await?;
    }
    let called = sqlx::raw_sql(AssertSqlSafe(sql.calls.clone()))
        .execute(conn)
        .await;
    // What the server refuses here it refuses again, to somebody who hears of it.
    match called {
        Err(e) if is_fatal(&e) => Err(e),
        _ => Ok(()),
    }
}
