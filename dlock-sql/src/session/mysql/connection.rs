//! A session of MySQL or MariaDB.
//!
//! What could break it, and why it does not:
//!
//! * *A second `GET_LOCK` releases the first one*: before MySQL 5.7.5 and MariaDB 10.0.2. Those are refused.
//! * *`KILL QUERY` comes late* and ends the next statement. That one is always [`Request::Clean`], which is
//!   sent twice then.
//! * *A proxy answers `SET` on its own*, or sends each statement to another session. The limit of the session
//!   is read back, and each answer names its session.
//! * *A waiting statement blocks others.* One that names a table keeps a metadata lock as long as it waits,
//!   behind which `FLUSH TABLES WITH READ LOCK` waits, and behind that all writers. So a waiting statement
//!   names none: MariaDB gets a block whose second statement opens the sequence, once the lock is granted.
//!   MySQL has no such blocks: it gets two statements.
//! * *The block is ended between the lock and the token*, by a kill or an error: see [`Request::Wait`].
//! * *The shared connection blocks*: `GET_LOCK` with a limit of zero does not, and drawing a token waits at
//!   most a second while the tokens are locked, by a backup for instance.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::Result;
use futures::future::pending;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::schema::{self, run_and_age};
use crate::direct::Failure;
use crate::failure::is_no_thread;
use crate::session::config::Config;
use crate::session::dialect::{Backend, Dialect, Product, Request, Session, Site, Told, Wire, pooled};
use crate::session::failure::Answer;
use crate::session::keys::Key;

/// Where sessions come from.
pub(in crate::session) struct MySql(MySqlConnectOptions);

#[async_trait]
impl Dialect for MySql {
    async fn prepare(&self, config: &Config) -> Result<Site> {
        schema::prepare(&self.0, config).await
    }

    async fn connect(&self, config: &Config, site: &Site) -> Answer<Session> {
        let (ttl, product) = (config.ttl.as_secs(), site.product);
        let begun = self.begin(ttl, product).await;
        let (connection, (id, limit, run, age)) = begun.map_err(|e| self.failed(e, &site.at))?;
        if u64::try_from(limit) != Ok(ttl) {
            return Err(pooled(&site.at));
        }
        // In whole seconds, of which the last one may not be over.
        let age = Duration::from_secs(u64::try_from(age - 1).unwrap_or(0));
        let wire = MySqlWire {
            connection,
            turn: config.turn().as_secs(),
            product,
            tokens: site.quoted.clone(),
        };
        // Numbers of sessions do not come again while the server runs.
        let since = String::new();
        Ok(Session {
            wire: Box::new(wire),
            backend: Backend { id, since },
            closed_for: site.grace.left(&run.to_string(), age),
        })
    }
}

impl MySql {
    pub(in crate::session) fn dialect(options: MySqlConnectOptions) -> Arc<dyn Dialect> {
        // Not logged: a wait is slow by design.
        Arc::new(Self(options.disable_statement_logging()))
    }

    async fn begin(
        &self,
        ttl: u64,
        product: Product,
    ) -> sqlx::Result<(MySqlConnection, (i64, i64, i64, i64))> {
        let mut connection = MySqlConnection::connect_with(&self.0).await?;
        let limit = match product {
            Product::MariaDb => "max_statement_time",
            _ => "max_execution_time",
        };
        let set = format!(
            "SET SESSION wait_timeout = {ttl}, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, \
             {limit} = 0, autocommit = 1"
        );
        connection.execute(AssertSqlSafe(set)).await?;
        let who = format!(
            "SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(@@SESSION.wait_timeout AS SIGNED), {}",
            run_and_age(product)
        );
        let who = sqlx::query_as(AssertSqlSafe(who));
        let who = who.fetch_one(&mut connection).await?;
        Ok((connection, who))
    }
}

struct MySqlWire {
    connection: MySqlConnection,
    turn: u64,
    product: Product,
    /// The sequence of MariaDB, or the table.
    tokens: String,
}

/// Which session answers.
const BY: &str = "CAST(CONNECTION_ID() AS SIGNED)";

impl MySqlWire {
    /// What is behind THEN is evaluated after the condition: only the holder draws a token.
    async fn take(&mut self, key: &Key, turn: Option<u64>) -> sqlx::Result<Told> {
        let (tokens, key) = (&self.tokens, key.as_text());
        match (self.product, turn) {
            (Product::MariaDb, None) => {
                let drawn = format!("CASE WHEN GET_LOCK(?, 0) = 1 THEN NEXTVAL({tokens}) END");
                self.fetch(&drawn, Some(&key)).await
            }
            (Product::MariaDb, Some(turn)) => {
                // The key is letters and digits. Blocks take no parameters.
                let block = format!(
                    "BEGIN NOT ATOMIC IF GET_LOCK('{key}', {turn}) = 1 THEN SELECT NEXTVAL({tokens}), {BY}; \
                     ELSE SELECT CAST(NULL AS SIGNED), {BY}; END IF; END"
                );
                // All of it: what the block says at its end is part of the answer.
                let rows = sqlx::raw_sql(AssertSqlSafe(block)).fetch_all(&mut self.connection);
                let rows = rows.await?;
                let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
                Ok((row.try_get(0)?, row.try_get(1)?))
            }
            (_, turn) => {
                let got = format!("CAST(GET_LOCK(?, {}) AS SIGNED)", turn.unwrap_or(0));
                let (got, by) = self.fetch(&got, Some(&key)).await?;
                match got {
                    Some(1) => Ok((Some(self.draw().await?), by)),
                    _ => Ok((None, by)),
                }
            }
        }
    }

    /// One number.
    async fn fetch(&mut self, number: &str, key: Option<&str>) -> sqlx::Result<Told> {
        let mut asked = sqlx::query_as(AssertSqlSafe(format!("SELECT {number}, {BY}")));
        if let Some(key) = key {
            asked = asked.bind(key);
        }
        asked.fetch_one(&mut self.connection).await
    }

    /// Draws a token from the row of MySQL. The session has the lock.
    async fn draw(&mut self) -> sqlx::Result<i64> {
        let text = format!(
            "UPDATE {} SET n = LAST_INSERT_ID(n + 1) WHERE one = 1",
            self.tokens
        );
        let drawn = sqlx::query(AssertSqlSafe(text)).execute(&mut self.connection);
        let drawn = drawn.await?;
        // If its row is gone, the number is of no statement of ours, and 0 is no token.
        let number = i64::try_from(drawn.last_insert_id()).unwrap_or(0);
        Ok(if drawn.rows_affected() == 1 { number } else { 0 })
    }
}

#[async_trait]
impl Wire for MySqlWire {
    async fn ask(&mut self, request: Request<'_>) -> sqlx::Result<Told> {
        const CLEAN: &str = "CAST(RELEASE_ALL_LOCKS() AS SIGNED)";
        match request {
            Request::Try(key) => self.take(key, None).await,
            Request::Wait(key) => match self.take(key, Some(self.turn)).await {
                Err(e) if Failure::of(&e) == Failure::Cancelled => Ok((None, None)),
                told => told,
            },
            Request::Unlock(key) => {
                let unlocked = "CAST(RELEASE_LOCK(?) AS SIGNED)";
                self.fetch(unlocked, Some(&key.as_text())).await
            }
            Request::Clean => match self.fetch(CLEAN, None).await {
                Err(e) if Failure::of(&e) == Failure::Cancelled => self.fetch(CLEAN, None).await,
                told => told,
            },
            Request::Ping => self.fetch("CAST(NULL AS SIGNED)", None).await,
            Request::Cancel(other) => {
                let kill = AssertSqlSafe(format!("KILL QUERY {}", other.id));
                match self.connection.execute(kill).await {
                    Err(e) if !is_no_thread(&e) => Err(e),
                    _ => Ok((None, None)),
                }
            }
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
