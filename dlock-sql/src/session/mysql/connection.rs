//! A session of MySQL or MariaDB.
//!
//! What could break it, and why it does not:
//!
//! * *A second `GET_LOCK` gives the first one back*: before MySQL 5.7.5 and MariaDB 10.0.2. Those are
//!   refused.
//! * *`KILL QUERY` comes late* and ends the next statement. That one is always [`Request::Clean`], which is
//!   sent twice then.
//! * *A proxy answers `SET` by itself*, or gives each statement to another session. That the session has the
//!   limit that it was given is looked at, and each answer names its session.
//! * *A waiting statement holds up others.* One that names a table keeps a metadata lock as long as it waits,
//!   behind which `FLUSH TABLES WITH READ LOCK` waits, and behind that all writers. So what waits names none:
//!   MariaDB is sent a block whose second statement draws the token, and that one opens the sequence when it
//!   is its turn, which is when the lock is there. MySQL has no such blocks: it is sent two statements.
//! * *The block is ended between the lock and the token*, by a kill or by an error of the sequence: see
//!   [`Request::Wait`], it is cleaned.
//! * *The shared connection blocks*: `GET_LOCK` with a limit of nothing does not, and what draws a token
//!   waits no longer than a second for whoever keeps the tokens locked (a backup, say).

use std::time::Duration;

use async_trait::async_trait;
use futures::future::pending;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use sqlx::{SqlSafeStr as _, SqlStr};

use super::failure::{failed, is_interrupted, is_no_thread};
use super::schema::{Product, age, run};
use crate::session::dialect::{Backend, Request, Server, Session, Settings, Site, Wire, pooled};
use crate::session::failure::{Answer, Failed};

/// Where sessions come from.
pub(super) struct MySqlServer {
    options: MySqlConnectOptions,
    settings: Settings,
    site: Site,
    product: Product,
}

impl MySqlServer {
    pub(super) fn new(
        options: &MySqlConnectOptions,
        settings: Settings,
        site: Site,
        product: Product,
    ) -> Self {
        Self {
            // Not logged: a wait is slow by design.
            options: options.clone().disable_statement_logging(),
            settings,
            site,
            product,
        }
    }

    async fn begin(&self) -> sqlx::Result<(MySqlConnection, (i64, i64, i64, i64))> {
        let mut connection = MySqlConnection::connect_with(&self.options).await?;
        let (ttl, product) = (self.settings.ttl.as_secs(), self.product);
        let limit = match product {
            Product::MariaDb => "max_statement_time",
            Product::MySql => "max_execution_time",
        };
        let set = format!(
            "SET SESSION wait_timeout = {ttl}, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, \
             {limit} = 0, autocommit = 1"
        );
        connection.execute(AssertSqlSafe(set)).await?;
        let who = format!(
            "SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(@@SESSION.wait_timeout AS SIGNED), {}, {}",
            run(product),
            age(product)
        );
        let who = sqlx::query_as(AssertSqlSafe(who))
            .fetch_one(&mut connection)
            .await?;
        Ok((connection, who))
    }
}

#[async_trait]
impl Server for MySqlServer {
    fn site(&self) -> &Site {
        &self.site
    }

    async fn connect(&self, _: u8) -> Answer<Session> {
        let (connection, (id, limit, run, age)) = self.begin().await.map_err(|e| self.failed(e))?;
        if u64::try_from(limit) != Ok(self.settings.ttl.as_secs()) {
            return Err(pooled(&self.site.at));
        }
        // In whole seconds, of which the last one may not be over.
        let age = Duration::from_secs(u64::try_from(age - 1).unwrap_or(0));
        let wire = MySqlWire {
            connection,
            turn: self.settings.turn.as_secs(),
            product: self.product,
            tokens: self.site.quoted.as_str().into(),
        };
        // Numbers of sessions do not come again while the server runs.
        let since = String::new();
        Ok(Session {
            wire: Box::new(wire),
            backend: Backend { id, since },
            closed_for: self.site.grace.left(&run.to_string(), age),
        })
    }

    fn failed(&self, e: sqlx::Error) -> Failed {
        failed(e, &self.site.at)
    }
}

struct MySqlWire {
    connection: MySqlConnection,
    turn: u64,
    product: Product,
    /// The sequence of MariaDB, or the table.
    tokens: Box<str>,
}

impl MySqlWire {
    /// One number, and the session that has answered it.
    async fn fetch(&mut self, request: Request<'_>) -> sqlx::Result<(Option<i64>, Option<i64>)> {
        const TRY: &str = "SELECT CAST(GET_LOCK(?, 0) AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        const WAIT: &str = "SELECT CAST(GET_LOCK(?, ?) AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        const UNLOCK: &str = "SELECT CAST(RELEASE_LOCK(?) AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        const CLEAN: &str = "SELECT CAST(RELEASE_ALL_LOCKS() AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        const PING: &str = "SELECT CAST(NULL AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        let sql = |sql: SqlStr| sqlx::query_as::<_, (Option<i64>, Option<i64>)>(sql);
        let (tokens, turn) = (&self.tokens, self.turn);
        let asked = match (request, self.product) {
            (Request::Try(key), Product::MySql) => sql(TRY.into_sql_str()).bind(key.as_text()),
            (Request::Wait(key), Product::MySql) => sql(WAIT.into_sql_str()).bind(key.as_text()).bind(turn),
            (Request::Try(key), Product::MariaDb) => {
                // What is behind THEN is evaluated after the condition: the token is drawn by whoever has the
                // lock.
                let text = format!(
                    "SELECT CASE WHEN GET_LOCK(?, 0) = 1 THEN NEXTVAL({tokens}) END, \
                     CAST(CONNECTION_ID() AS SIGNED)"
                );
                sql(AssertSqlSafe(text).into_sql_str()).bind(key.as_text())
            }
            (Request::Wait(key), Product::MariaDb) => {
                // The key is letters and digits. Blocks take no parameters.
                let block = format!(
                    "BEGIN NOT ATOMIC IF GET_LOCK('{}', {turn}) = 1 \
                     THEN SELECT NEXTVAL({tokens}), CAST(CONNECTION_ID() AS SIGNED); \
                     ELSE SELECT CAST(NULL AS SIGNED), CAST(CONNECTION_ID() AS SIGNED); END IF; END",
                    key.as_text(),
                );
                // All of it: what the block says at its end is part of the answer.
                let rows = sqlx::raw_sql(AssertSqlSafe(block))
                    .fetch_all(&mut self.connection)
                    .await?;
                let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
                return Ok((row.try_get(0)?, row.try_get(1)?));
            }
            (Request::Unlock(key), _) => sql(UNLOCK.into_sql_str()).bind(key.as_text()),
            (Request::Clean, _) => sql(CLEAN.into_sql_str()),
            (Request::Ping, _) => sql(PING.into_sql_str()),
            (Request::Cancel(other), _) => {
                let kill = AssertSqlSafe(format!("KILL QUERY {}", other.id));
                return match self.connection.execute(kill).await {
                    Err(e) if !is_no_thread(&e) => Err(e),
                    _ => Ok((None, None)),
                };
            }
        };
        asked.fetch_one(&mut self.connection).await
    }

    /// Draws a token from the row of MySQL. The session has the lock.
    async fn draw(&mut self) -> sqlx::Result<u64> {
        let text = format!(
            "UPDATE {} SET n = LAST_INSERT_ID(n + 1) WHERE one = 1",
            self.tokens
        );
        let row = sqlx::query(AssertSqlSafe(text))
            .execute(&mut self.connection)
            .await?;
        // If its row is gone, the number is of no statement of ours.
        Ok(match row.rows_affected() {
            1 => row.last_insert_id(),
            _ => 0,
        })
    }
}

#[async_trait]
impl Wire for MySqlWire {
    async fn ask(&mut self, request: Request<'_>) -> sqlx::Result<(Option<u64>, Option<i64>)> {
        let mut answer = self.fetch(request).await;
        if matches!(request, Request::Clean) && answer.as_ref().is_err_and(is_interrupted) {
            answer = self.fetch(request).await;
        }
        match (request, answer) {
            (Request::Wait(_), Err(e)) if is_interrupted(&e) => Ok((None, None)),
            (Request::Try(_) | Request::Wait(_), Ok((got, by))) if self.product == Product::MySql => {
                match got {
                    Some(1) => Ok((Some(self.draw().await?), by)),
                    _ => Ok((None, by)),
                }
            }
            // No token is negative or zero.
            (_, answer) => answer.map(|(value, by)| (value.map(|v| u64::try_from(v).unwrap_or(0)), by)),
        }
    }

    async fn broken(&mut self) -> sqlx::Error {
        // The driver cannot read while nothing was asked.
        pending().await
    }

    async fn close(self: Box<Self>) {
        let _ = self.connection.close().await;
    }
}
