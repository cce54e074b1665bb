//! Connections and requests to PostgreSQL. The rest is the same for all servers: `lease/connection.rs`.

use std::sync::Arc;

use dlock_core::spi::LeaseKey;
use dlock_core::{Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};

use super::answer::Answer;
use super::call::{Value, statement};
use super::notify::listen;
use super::schema::{Statements, tables};
use super::together::OnTheirWay;
use super::wait::Pushes;
use super::{Db, Rows, Statement};
use crate::failure::{OTHER_ISOLATION, shown, unsupported};
use crate::lease::Config;
use crate::lease::call::{get, prepare, run};
use crate::lease::connection::{Database, Lent, connect};
use crate::lease::failure::{foreign, invalid, is_fatal, nothing_done, perhaps_done};
use crate::lease::keys::id_bytes;
use crate::lease::lock::Lease;
use crate::lease::schema::Opening;

/// What a client knows of a PostgreSQL database.
pub(in crate::lease) struct Postgres {
    pub(super) options: PgConnectOptions,
    /// There is a pooler in transaction mode: statements go in full.
    pub(super) in_full: bool,
    pub(super) sql: Arc<Statements>,
    pub(super) pushes: Arc<Pushes>,
    /// The channel of this client; `None` if it only polls.
    pub(super) channel: Option<Arc<str>>,
    pub(super) on_their_way: OnTheirWay,
}

/// Connects, makes or updates the tables, and begins to listen.
pub(in crate::lease) async fn open(
    options: &PgConnectOptions,
    config: &Config,
    runtime: Arc<dyn Runtime>,
) -> Result<Lease<Postgres>> {
    let database = options.get_database().unwrap_or(options.get_username());
    let (socket, host, port) = (options.get_socket(), options.get_host(), options.get_port());
    let at = Arc::<str>::from(shown("PostgreSQL", socket, host, port, database));
    let in_full = config.behind_pooler;
    let mut options = options.clone().disable_statement_logging();
    if !in_full {
        let wait = config.lock_wait.as_millis().clamp(1, i32::MAX as u128);
        options = options.options([
            ("default_transaction_isolation", "read committed".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            ("bytea_output", "hex".to_owned()),
            ("lock_timeout", format!("{wait}ms")),
            // Each statement finds rows by their keys, whatever the values are. The server would plan some of
            // them anew each time, which costs more than to run them, and others for the table as it was when
            // it was small.
            ("plan_cache_mode", "force_generic_plan".to_owned()),
            ("enable_seqscan", "off".to_owned()),
            ("jit", "off".to_owned()),
        ]);
    }
    // Before there are tables nothing can be prepared.
    let connecting = connecting(&options, None);
    let conn = connect::<Postgres>(connecting, &*runtime, &at).await?;
    let mut opening = Opening::<Postgres> { conn, at: at.clone() };
    let tables = tables(&schema(&mut opening, config).await?, &config.table_prefix);
    opening.migrate(&tables).await?;
    let (sql, mut first) = (Arc::new(Statements::new(tables.prefix)), opening.conn);
    if !in_full {
        let ready = make_ready(&mut first, &sql).await;
        ready.map_err(|e| nothing_done(e, &at))?;
    }
    let channel = (!in_full).then(|| {
        let mut own = [0; 16];
        runtime.fill_random(&mut own);
        Arc::from(format!("dlock_{:032x}", u128::from_be_bytes(own)))
    });
    let dialect = Postgres {
        options,
        in_full,
        sql,
        pushes: Pushes::new(),
        channel,
        on_their_way: OnTheirWay::default(),
    };
    let db = Database::new(dialect, first, &at, tables.fence, runtime, config);
    listen(&db).await?;
    db.sweep_if_due().await;
    Ok(Lease::new(db))
}

/// The schema that the tables are in. Where nothing can be set, also whether the isolation level is what the
/// short statements need, since they do not look.
async fn schema(opening: &mut Opening<Postgres>, config: &Config) -> Result<String> {
    let row = "SELECT current_schema()::text, current_setting('transaction_isolation')";
    let row = opening.ask(row).await?.ok_or_else(|| foreign("no row"))?;
    if config.behind_pooler && get::<String, _>(&row, 1)? != "read committed" {
        return Err(unsupported(format!("{} {OTHER_ISOLATION}", opening.at)));
    }
    let schema = config.schema.clone().or(get(&row, 0)?);
    schema.ok_or_else(|| {
        invalid(format!(
            "no schema in the search path of {} exists; set `schema`",
            opening.at
        ))
    })
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

    /// The same on that connection.
    pub(super) async fn ask_on(
        self: &Arc<Self>,
        lent: Lent<Postgres>,
        text: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<(Timestamp, Rows)> {
        let (sent, answer) = self.run_on(lent, self.statement(text, values)?).await;
        Ok((sent, answer.map_err(|e| perhaps_done(e, &self.at))?))
    }

    /// A function about a request: when it was sent, and what it answers.
    pub(super) async fn call(
        self: &Arc<Self>,
        text: &Arc<str>,
        key: &LeaseKey,
        rest: &[Value<'_>],
    ) -> Result<(Timestamp, Answer)> {
        let (sent, rows) = self.send(self.about(text, key, rest)?).await?;
        let answer = Answer::of(&rows)?;
        self.pushes.anchor(sent, answer.at);
        Ok((sent, answer))
    }

    /// A statement that reads.
    pub(super) async fn read_rows(
        self: &Arc<Self>,
        text: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>> {
        Ok(self.read(|| self.statement(text, values)).await?.rows)
    }
}

/// Connects, and makes the connection ready before it is used.
pub(super) fn connecting(
    options: &PgConnectOptions,
    sql: Option<Arc<Statements>>,
) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
    let options = options.clone();
    async move {
        let mut conn = options.connect().await?;
        if let Some(sql) = sql {
            make_ready(&mut conn, &sql).await?;
        }
        Ok(conn)
    }
    .boxed()
}

/// Has statements parsed, and functions compiled. The server does that in each session anew, at the first
/// call, and it takes several milliseconds, with the name's row locked: where a hundred clients come for one
/// name after a restart, they would do it one after the other.
async fn make_ready(conn: &mut PgConnection, sql: &Statements) -> Result<(), sqlx::Error> {
    prepare::<sqlx::Postgres>(conn, &sql.prepared()).await?;
    // What the server refuses here it refuses again, to a request that gets the error.
    match run::<sqlx::Postgres>(Statement::Text(sql.calls.to_string()), conn).await {
        Err(e) if is_fatal(&e) => Err(e),
        _ => Ok(()),
    }
}
