//! How MySQL and MariaDB are connected to and asked. The rest is the same for all servers: see
//! `lease/connection.rs`.
//!
//! *A connection breaks while it stands idle.* The first half of a transaction changes nothing, so it is sent
//! once more on another connection. Whatever is lost later was sent on a connection that had answered a
//! moment ago, and is `Unknown`.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, Result, Timestamp};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, SqlSafeStr as _};

use super::call::{Answer, Statement, run};
use super::failure;
use super::schema::Statements;
use super::sight::Sights;
use crate::lease::connection::Database;
use crate::lease::dialect::Dialect;

/// What a client knows of a MySQL or MariaDB database.
pub(super) struct Mysql {
    pub(super) options: MySqlConnectOptions,
    /// What each connection is told first.
    pub(super) greeting: Arc<str>,
    pub(super) sql: Statements,
    pub(super) sights: Sights,
}

pub(super) type Db = Database<Mysql>;

impl Dialect for Mysql {
    type Connection = MySqlConnection;
    type Statement = Statement;
    type Answer = Answer;

    const NAME: &'static str = "MySQL";
    const CONTENDED: Duration = Duration::ZERO;
    const PING_AFTER: Option<Duration> = Some(Duration::from_secs(5));
    const REFUSAL_LEAVES_TRANSACTION: bool = true;

    fn connect(&self) -> BoxFuture<'static, Result<MySqlConnection, sqlx::Error>> {
        connecting(&self.options, &self.greeting, self.sql.warm())
    }

    fn run(statement: Statement, conn: &mut MySqlConnection) -> BoxFuture<'_, Result<Answer, sqlx::Error>> {
        run(statement, conn).boxed()
    }

    fn reset(conn: &mut MySqlConnection) -> BoxFuture<'_, Result<(), sqlx::Error>> {
        let rolling_back = sqlx::raw_sql("ROLLBACK").execute(conn);
        rolling_back.map(|rolled_back| rolled_back.map(|_| ())).boxed()
    }

    fn is_fatal(e: &sqlx::Error) -> bool {
        failure::is_fatal(e)
    }

    /// One that logs statements is no news either: another connection has what was set since.
    fn is_lost(e: &sqlx::Error) -> bool {
        failure::is_fatal(e)
    }

    fn nothing_done(e: sqlx::Error, at: &str) -> Error {
        failure::nothing_done(e, at)
    }

    fn perhaps_done(e: sqlx::Error, at: &str) -> Error {
        failure::perhaps_done(e, at)
    }
}

impl Db {
    /// One statement that changes something, commits by itself and may be heard twice: when it was sent, and
    /// its insert id. See [`Database::send_again`].
    pub(super) async fn ask_again(
        self: &Arc<Self>,
        text: &Arc<str>,
        args: impl Fn() -> Result<MySqlArguments>,
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, u64)> {
        let statement = || Ok(Statement::with(text, args()?));
        let (sent, answer) = self.send_again(statement, noted).await?;
        Ok((sent, answer.id))
    }

    /// A text that changes something.
    pub(super) async fn tell(self: &Arc<Self>, text: String) -> Result<(Timestamp, Answer)> {
        self.send(Statement::Text(text)).await
    }

    /// One that may be heard twice.
    pub(super) async fn tell_again(self: &Arc<Self>, text: String) -> Result<(Timestamp, Answer)> {
        self.send_again(|| Ok(Statement::Text(text.clone())), || ()).await
    }

    /// One that reads.
    pub(super) async fn read(
        self: &Arc<Self>,
        text: &Arc<str>,
        args: MySqlArguments,
    ) -> Result<Vec<MySqlRow>> {
        let read = self.send_read(|| Ok(Statement::with(text, args.clone())));
        Ok(read.await?.rows)
    }

    pub(super) async fn read_text(self: &Arc<Self>, text: String) -> Result<Vec<MySqlRow>> {
        let read = self.send_read(|| Ok(Statement::Text(text.clone())));
        Ok(read.await?.rows)
    }
}

/// Connects, says what the session is to be like, and prepares the statements.
pub(super) fn connecting(
    options: &MySqlConnectOptions,
    greeting: &Arc<str>,
    warm: Vec<Arc<str>>,
) -> BoxFuture<'static, Result<MySqlConnection, sqlx::Error>> {
    let (options, greeting) = (options.clone(), greeting.clone());
    async move {
        let mut conn = options.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(greeting)).execute(&mut conn).await?;
        prepare(&mut conn, &warm).await?;
        Ok(conn)
    }
    .boxed()
}

/// Parses those statements at the server, which remembers them for this connection.
pub(super) async fn prepare(conn: &mut MySqlConnection, warm: &[Arc<str>]) -> Result<(), sqlx::Error> {
    for text in warm {
        let text = AssertSqlSafe(text.clone()).into_sql_str();
        (&mut *conn).prepare(text).await?;
    }
    Ok(())
}
