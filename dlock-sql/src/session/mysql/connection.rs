//! A session of MySQL or MariaDB.
//!
//! What could break it, and why it does not:
//!
//! * *A second `GET_LOCK` gives the first one back*: before MySQL 5.7.5 and MariaDB 10.0.2. Those are
//!   refused.
//! * *`KILL QUERY` comes late* and ends the next statement. That one is always [`clean`](Wire::clean), which
//!   is sent twice then.
//! * *A proxy answers `SET` by itself*, or gives each statement to another session. That the session has the
//!   limit that it was given is looked at, and each answer names its session.
//! * *A waiting statement holds up others.* One that names a table keeps a metadata lock as long as it waits,
//!   behind which `FLUSH TABLES WITH READ LOCK` waits, and behind that all writers. So what waits names none:
//!   MariaDB is sent a block whose second statement draws the token, and that one opens the sequence when it
//!   is its turn, which is when the lock is there. MySQL has no such blocks: it is sent two statements.
//! * *The block is ended between the lock and the token*, by a kill or by an error of the sequence: see
//!   [`Wire::wait_lock`], it is cleaned.
//! * *The shared connection blocks*: `GET_LOCK` with a limit of nothing does not, and what draws a token
//!   waits no longer than a second for whoever keeps the tokens locked (a backup, say).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{Error, ErrorKind, Result, Token};
use futures::future::pending;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

use super::failure::{failed, is_interrupted, is_no_thread};
use super::run::{age, run};
use super::schema::Product;
use crate::session::config::{Config, Tokens};
use crate::session::dialect::{Backend, Server, Waited, Wire, token as drawn};
use crate::session::failure::{Answer, Failed};
use crate::session::keys::Key;
use crate::session::restart::Grace;

/// While something is held: the end of a session is seen no sooner.
const PING_AT_LEAST_EVERY: Duration = Duration::from_secs(1);

/// Where sessions come from.
#[derive(Debug)]
pub(super) struct MySqlServer {
    options: MySqlConnectOptions,
    at: String,
    ttl: Duration,
    turn: Duration,
    grace: Grace,
    sql: Arc<Statements>,
}

/// The statements, with the sequence or table filled in once.
#[derive(Debug)]
struct Statements {
    product: Product,
    try_lock: Arc<str>,
    token: Arc<str>,
    /// The sequence or table.
    tokens: String,
    /// What a session begins with.
    set: String,
    who: Arc<str>,
}

impl Statements {
    /// For a sequence or table whose quoted name that is.
    fn new(product: Product, tokens: &str, ttl: Duration) -> Self {
        let limit = match product {
            Product::MariaDb => "max_statement_time",
            Product::MySql => "max_execution_time",
        };
        let try_lock = match product {
            // What is behind THEN is evaluated after the condition: the token is drawn by whoever has the
            // lock.
            Product::MariaDb => format!(
                "SELECT CASE WHEN GET_LOCK(?, 0) = 1 THEN NEXTVAL({tokens}) END, CAST(CONNECTION_ID() AS \
                 SIGNED)"
            ),
            Product::MySql => {
                "SELECT CAST(GET_LOCK(?, 0) AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)".to_owned()
            }
        };
        Self {
            product,
            try_lock: try_lock.into(),
            token: format!("UPDATE {tokens} SET n = LAST_INSERT_ID(n + 1) WHERE one = 1").into(),
            tokens: tokens.to_owned(),
            set: format!(
                "SET SESSION wait_timeout = {}, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, \
                 {limit} = 0, autocommit = 1",
                ttl.as_secs()
            ),
            who: format!(
                "SELECT CAST(CONNECTION_ID() AS SIGNED), CAST(@@SESSION.wait_timeout AS SIGNED), {}, {}",
                run(product),
                age(product)
            )
            .into(),
        }
    }
}

impl MySqlServer {
    pub(super) fn new(
        options: &MySqlConnectOptions,
        at: String,
        config: &Config,
        tokens: &Tokens,
        product: Product,
    ) -> Self {
        Self {
            // Not logged: a wait is slow by design.
            options: options.clone().disable_statement_logging(),
            at,
            ttl: config.ttl,
            turn: config.turn(),
            grace: tokens.grace.clone(),
            sql: Statements::new(product, &tokens.quoted, config.ttl).into(),
        }
    }
}

#[async_trait]
impl Server for MySqlServer {
    async fn connect(&self, _: u8) -> Result<Box<dyn Wire>> {
        let told = |e| failed(e, &self.at).error;
        let mut connection = MySqlConnection::connect_with(&self.options).await.map_err(told)?;
        let set = AssertSqlSafe(self.sql.set.clone());
        connection.execute(set).await.map_err(told)?;
        let who = sqlx::query_as::<_, (i64, i64, i64, i64)>(AssertSqlSafe(self.sql.who.clone()))
            .fetch_one(&mut connection)
            .await;
        let (id, limit, run, age) = who.map_err(told)?;
        // In whole seconds, of which the last one may not be over.
        let age = Duration::from_secs(u64::try_from(age - 1).unwrap_or(0));
        if u64::try_from(limit) != Ok(self.ttl.as_secs()) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the session at {} did not take the settings that it was given: there is a proxy in \
                     between that shares sessions. Connect to the server itself, or use the lease strategy",
                    self.at
                ),
            ));
        }
        Ok(Box::new(MySqlWire {
            connection,
            backend: Backend {
                id,
                // Numbers of sessions do not come again while the server runs.
                since: String::new(),
            },
            at: self.at.clone(),
            closed_for: self.grace.left(&run.to_string(), age),
            turn: self.turn,
            sql: self.sql.clone(),
        }))
    }

    fn at(&self) -> &str {
        &self.at
    }

    fn ping_every(&self, ttl: Duration) -> Duration {
        (ttl / 3).min(PING_AT_LEAST_EVERY)
    }
}

struct MySqlWire {
    connection: MySqlConnection,
    backend: Backend,
    at: String,
    closed_for: Duration,
    turn: Duration,
    sql: Arc<Statements>,
}

impl MySqlWire {
    fn failed(&self, e: sqlx::Error) -> Failed {
        failed(e, &self.at)
    }

    fn check(&self, id: i64) -> Answer<()> {
        self.backend.check(&self.at, id)
    }

    /// A statement that answers one number, and by whom.
    async fn ask(
        &mut self,
        sql: &'static str,
        key: Option<&Key>,
    ) -> std::result::Result<(Option<i64>, i64), sqlx::Error> {
        let asked = sqlx::query_as::<_, (Option<i64>, i64)>(sql);
        match key {
            Some(key) => asked.bind(key.as_text()).fetch_one(&mut self.connection).await,
            None => asked.fetch_one(&mut self.connection).await,
        }
    }

    /// Draws a token from the row of MySQL. The session has the lock.
    async fn token(&mut self) -> Answer<Token> {
        let sql = AssertSqlSafe(self.sql.token.clone());
        let row = sqlx::query(sql).execute(&mut self.connection).await;
        let row = row.map_err(|e| self.failed(e))?;
        match row.rows_affected() {
            1 => drawn(row.last_insert_id(), &self.at),
            // Its row is gone: the number is of no statement of ours.
            _ => drawn(0_u64, &self.at),
        }
    }

    /// MariaDB waits, and then draws a token, in one request.
    async fn wait_and_draw(&mut self, key: &Key) -> Answer<Waited> {
        let (key, turn, tokens) = (key.as_text(), self.turn.as_secs(), &self.sql.tokens);
        // The key is letters and digits. Blocks take no parameters.
        let sql = format!(
            "BEGIN NOT ATOMIC \
             IF GET_LOCK('{key}', {turn}) = 1 \
             THEN SELECT NEXTVAL({tokens}), CAST(CONNECTION_ID() AS SIGNED); \
             ELSE SELECT CAST(NULL AS SIGNED), CAST(CONNECTION_ID() AS SIGNED); \
             END IF; END"
        );
        // All of it: what the block says at its end is part of the answer.
        let rows = match sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut self.connection)
            .await
        {
            Ok(rows) => rows,
            Err(e) if is_interrupted(&e) => return Ok(Waited::NotYet),
            Err(e) => return Err(self.failed(e)),
        };
        let row = rows
            .first()
            .ok_or_else(|| self.failed(sqlx::Error::RowNotFound))?;
        let value = row.try_get::<Option<i64>, _>(0).map_err(|e| self.failed(e))?;
        self.check(row.try_get(1).map_err(|e| self.failed(e))?)?;
        match value {
            Some(value) => drawn(value, &self.at).map(Waited::Locked),
            None => Ok(Waited::NotYet),
        }
    }
}

#[async_trait]
impl Wire for MySqlWire {
    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn closed_for(&self) -> Duration {
        self.closed_for
    }

    async fn try_lock(&mut self, key: &Key) -> Answer<Option<Token>> {
        let sql = AssertSqlSafe(self.sql.try_lock.clone());
        let asked = sqlx::query_as::<_, (Option<i64>, i64)>(sql).bind(key.as_text());
        let answer = asked.fetch_one(&mut self.connection).await;
        let (value, id) = answer.map_err(|e| self.failed(e))?;
        self.check(id)?;
        match (self.sql.product, value) {
            (_, None) | (Product::MySql, Some(0)) => Ok(None),
            (Product::MariaDb, Some(token)) => drawn(token, &self.at).map(Some),
            (Product::MySql, Some(_)) => self.token().await.map(Some),
        }
    }

    async fn wait_lock(&mut self, key: &Key) -> Answer<Waited> {
        if self.sql.product == Product::MariaDb {
            return self.wait_and_draw(key).await;
        }
        const WAIT: &str = "SELECT CAST(GET_LOCK(?, ?) AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        let turn = i64::try_from(self.turn.as_secs()).unwrap_or(1);
        let asked = sqlx::query_as::<_, (Option<i64>, i64)>(WAIT)
            .bind(key.as_text())
            .bind(turn);
        let (got, id) = match asked.fetch_one(&mut self.connection).await {
            Ok(answer) => answer,
            Err(e) if is_interrupted(&e) => return Ok(Waited::NotYet),
            Err(e) => return Err(self.failed(e)),
        };
        self.check(id)?;
        match got {
            Some(1) => self.token().await.map(Waited::Locked),
            _ => Ok(Waited::NotYet),
        }
    }

    async fn unlock(&mut self, key: &Key) -> Answer<bool> {
        const UNLOCK: &str = "SELECT CAST(RELEASE_LOCK(?) AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        let (released, id) = self.ask(UNLOCK, Some(key)).await.map_err(|e| self.failed(e))?;
        self.check(id)?;
        Ok(released == Some(1))
    }

    async fn clean(&mut self) -> Answer<()> {
        const CLEAN: &str = "SELECT CAST(RELEASE_ALL_LOCKS() AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        let answer = match self.ask(CLEAN, None).await {
            Err(e) if is_interrupted(&e) => self.ask(CLEAN, None).await,
            answer => answer,
        };
        let (_, id) = answer.map_err(|e| self.failed(e))?;
        self.check(id)
    }

    async fn ping(&mut self) -> Answer<()> {
        const PING: &str = "SELECT CAST(NULL AS SIGNED), CAST(CONNECTION_ID() AS SIGNED)";
        let (_, id) = self.ask(PING, None).await.map_err(|e| self.failed(e))?;
        self.check(id)
    }

    async fn cancel(&mut self, other: &Backend) -> Answer<()> {
        let sql = AssertSqlSafe(format!("KILL QUERY {}", other.id));
        match self.connection.execute(sql).await {
            Ok(_) => Ok(()),
            Err(e) if is_no_thread(&e) => Ok(()),
            Err(e) => Err(self.failed(e)),
        }
    }

    async fn broken(&mut self) -> Failed {
        // The driver cannot read while nothing was asked.
        pending().await
    }

    async fn end(self: Box<Self>) {
        // What goes wrong in closing it concerns nobody.
        let _ = self.connection.close().await;
    }
}
