//! How PostgreSQL is connected to and asked. The rest is the same for all servers: see `lease/connection.rs`.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, Result, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgTypeInfo};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _};

use super::call::{Rows, Statement, Value, Way};
use super::failure;
use super::pushes::Pushes;
use super::schema::Statements;
use crate::lease::connection::Database;
use crate::lease::dialect::Dialect;

/// What a client knows of a PostgreSQL database.
pub(super) struct Postgres {
    pub(super) options: PgConnectOptions,
    pub(super) way: Way,
    pub(super) sql: Statements,
    pub(super) pushes: Arc<Pushes>,
    /// Where this client is told; `None` if it only looks.
    pub(super) channel: Option<Arc<str>>,
}

pub(super) type Db = Database<Postgres>;

impl Dialect for Postgres {
    type Connection = PgConnection;
    type Statement = Statement;
    type Answer = Rows;

    const NAME: &'static str = "PostgreSQL";
    const CONTENDED: Duration = Duration::from_millis(100);
    const PING_AFTER: Option<Duration> = None;
    const REFUSAL_LEAVES_TRANSACTION: bool = false;

    fn connect(&self) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
        let warm = match self.way {
            Way::Prepared => self.sql.warm(),
            Way::InFull => Warm::default(),
        };
        connecting(&self.options, warm)
    }

    fn run(statement: Statement, conn: &mut PgConnection) -> BoxFuture<'_, Result<Rows, sqlx::Error>> {
        statement.on(conn).boxed()
    }

    fn reset(conn: &mut PgConnection) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        conn.ping().boxed()
    }

    fn is_fatal(e: &sqlx::Error) -> bool {
        failure::is_fatal(e)
    }

    fn is_lost(e: &sqlx::Error) -> bool {
        failure::is_lost(e)
    }

    fn nothing_done(e: sqlx::Error, at: &str) -> Error {
        failure::nothing_done(e, at)
    }

    fn perhaps_done(e: sqlx::Error, at: &str) -> Error {
        failure::perhaps_done(e, at)
    }

    fn closing(&self) {
        self.pushes.close();
    }
}

impl Db {
    fn statement(&self, text: &Arc<str>, values: &[Value<'_>]) -> Result<Statement> {
        Statement::new(self.way, text, values).map_err(|e| failure::nothing_done(e, &self.at))
    }

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
    pub(super) async fn read(self: &Arc<Self>, text: &Arc<str>, values: &[Value<'_>]) -> Result<Rows> {
        self.send_read(|| self.statement(text, values)).await
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

pub(super) async fn prepare(conn: &mut PgConnection, warm: &Warm) -> Result<(), sqlx::Error> {
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
