//! A session of PostgreSQL.
//!
//! * *The lock and its token are one statement*: `CASE` evaluates what is behind `THEN` after its condition,
//!   so the token is drawn by whoever has the lock, later than that of any holder before. Its sequence is not
//!   cached by sessions, and its values are durable before they are seen (`synchronous_commit` is on here,
//!   whatever the role's default is), so they go on after a crash.
//! * *The session's limits are parameters of its start*: what sets them is refused or dropped by a pooler,
//!   and that is looked at. A `SET` would be carried out by whichever server session the pooler has at hand,
//!   and stay there.
//! * *A `PgListener` is used as a plain connection*: of all that the driver has it alone reads while nothing
//!   was asked, and so sees at once that the server has ended the session. It is never let connect again by
//!   itself: after its first end it is not used any more; and each answer names its backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{Error, ErrorKind, Result, Token};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

use super::failure::{failed, is_not_yet};
use super::run::{AGE, RUN};
use crate::session::config::{Config, Tokens};
use crate::session::dialect::{Backend, Server, Waited, Wire, token as drawn};
use crate::session::failure::{Answer, Failed};
use crate::session::keys::Key;
use crate::session::restart::Grace;

/// Where sessions come from.
#[derive(Debug)]
pub(super) struct PgServer {
    options: PgConnectOptions,
    at: String,
    ttl: Duration,
    turn: Duration,
    timeout: Duration,
    grace: Grace,
    sql: Arc<Statements>,
    /// A connection has ended, and the server was not seen since.
    away: Arc<AtomicBool>,
}

/// The statements, with the sequence filled in once.
#[derive(Debug)]
pub(super) struct Statements {
    try_lock: Arc<str>,
    wait_lock: Arc<str>,
}

impl Statements {
    /// For a sequence whose quoted name that is.
    pub(super) fn new(sequence: &str) -> Self {
        let token = format!("nextval('{}'::regclass)", sequence.replace('\'', "''"));
        Self {
            try_lock: format!("SELECT CASE WHEN pg_try_advisory_lock($1) THEN {token} END, pg_backend_pid()")
                .into(),
            // It is never null, and evaluated before what depends on that.
            wait_lock: format!(
                "SELECT CASE WHEN pg_advisory_lock($1) IS NULL THEN NULL ELSE {token} END, pg_backend_pid()"
            )
            .into(),
        }
    }
}

impl PgServer {
    pub(super) fn new(options: &PgConnectOptions, at: String, config: &Config, tokens: &Tokens) -> Self {
        // Not logged: a wait is slow by design.
        let options = options.clone().disable_statement_logging();
        Self {
            options,
            at,
            ttl: config.ttl,
            turn: config.turn(),
            timeout: config.timeout,
            grace: tokens.grace.clone(),
            sql: Statements::new(&tokens.quoted).into(),
            away: Arc::default(),
        }
    }
}

/// The settings of a session.
///
/// The server is told not to give up a connection that is silent *sooner* than the session: a client that is
/// cut off believes in its locks for the ttl, and with the connection they would go to the next one. Its own
/// limits for TCP may be shorter.
fn start(ttl: Duration, turn: Duration) -> Vec<(&'static str, String)> {
    let whole = ttl.as_millis().div_ceil(1000).to_string();
    vec![
        ("idle_session_timeout", ttl.as_millis().to_string()),
        ("lock_timeout", turn.as_millis().to_string()),
        ("statement_timeout", "0".to_owned()),
        ("default_transaction_read_only", "off".to_owned()),
        ("synchronous_commit", "on".to_owned()),
        // A client whose machine has gone is found out while its session waits, and an answer that nobody
        // takes ends it.
        ("tcp_keepalives_idle", whole),
        ("tcp_keepalives_interval", "1".to_owned()),
        ("tcp_keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", ttl.as_millis().to_string()),
    ]
}

#[async_trait]
impl Server for PgServer {
    async fn connect(&self, spread: u8) -> Result<Box<dyn Wire>> {
        let told = |e| failed(e, &self.at).error;
        if self.away.load(Ordering::Relaxed) {
            // A pool tries again and again where nobody listens. That is for the caller to decide, who is
            // told at once.
            let seen = PgConnection::connect_with(&self.options).await.map_err(told)?;
            self.away.store(false, Ordering::Relaxed);
            // What goes wrong in closing it concerns nobody.
            let _ = seen.close().await;
        }
        // Three quarters of it at least.
        let turn = self.turn - self.turn * u32::from(spread) / 1024;
        // For one connection, which the driver's listener insists on taking from a pool.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(self.options.clone().options(start(self.ttl, turn)));
        let mut listener = PgListener::connect_with(&pool).await.map_err(|e| {
            self.away.store(true, Ordering::Relaxed);
            told(e)
        })?;
        listener.eager_reconnect(false);
        listener.ignore_pool_close_event(true);
        let mut wire = PgWire {
            listener,
            pool,
            backend: Backend {
                id: 0,
                since: String::new(),
            },
            at: self.at.clone(),
            closed_for: Duration::ZERO,
            sql: self.sql.clone(),
            away: self.away.clone(),
        };
        wire.greet(self.ttl, &self.grace).await.map_err(|f| f.error)?;
        Ok(Box::new(wire))
    }

    fn at(&self) -> &str {
        &self.at
    }

    fn ping_every(&self, ttl: Duration) -> Duration {
        ttl / 3
    }
}

struct PgWire {
    listener: PgListener,
    pool: PgPool,
    backend: Backend,
    at: String,
    closed_for: Duration,
    sql: Arc<Statements>,
    away: Arc<AtomicBool>,
}

impl PgWire {
    /// Who it is that answers, and whether it has taken what the session was started with.
    async fn greet(&mut self, ttl: Duration, grace: &Grace) -> Answer<()> {
        let who = format!(
            "SELECT pg_backend_pid(), \
             (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()), \
             (SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout'), \
             pg_is_in_recovery(), {RUN}, {AGE}"
        );
        let row = sqlx::query(AssertSqlSafe(who))
            .fetch_one(&mut self.listener)
            .await;
        let row = row.map_err(|e| failed(e, &self.at))?;
        let told = |e| failed(e, &self.at);
        let pid: i32 = row.try_get(0).map_err(told)?;
        let since: Option<String> = row.try_get(1).map_err(told)?;
        let limit: Option<String> = row.try_get(2).map_err(told)?;
        let is_standby: bool = row.try_get(3).map_err(told)?;
        let run: String = row.try_get(4).map_err(told)?;
        let age: f64 = row.try_get(5).map_err(told)?;
        let age = Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default();
        self.closed_for = grace.left(&run, age);
        self.backend = Backend {
            id: pid.into(),
            since: since.unwrap_or_default(),
        };
        if limit.is_none_or(|limit| limit != ttl.as_millis().to_string()) {
            let message = format!(
                "the session at {} was started without the settings that it was asked for: there is a \
                 pooler in between. Connect to the server itself, or use the lease strategy",
                self.at
            );
            return Err(Failed::fatal(Error::new(ErrorKind::Unsupported, message)));
        }
        if is_standby {
            let message = format!(
                "{} is a standby, whose locks exclude nobody on the primary",
                self.at
            );
            return Err(Failed::fatal(Error::new(ErrorKind::Unavailable, message)));
        }
        // Of version 17, and meant for transactions that do something.
        const NO_LIMIT: &str =
            "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'";
        let lifted = sqlx::query(NO_LIMIT).fetch_optional(&mut self.listener).await;
        lifted.map_err(|e| failed(e, &self.at))?;
        // Not every system can: then a waiter whose client has gone waits to the end of its turn.
        const LOOK: &str = "SELECT set_config('client_connection_check_interval', $1, false)";
        let every = (ttl.as_millis() / 3).to_string();
        let looked = sqlx::query(LOOK).bind(every).fetch_one(&mut self.listener).await;
        match looked.map_err(|e| failed(e, &self.at)) {
            Err(failed) if failed.fatal => Err(failed),
            _ => Ok(()),
        }
    }

    fn check(&self, pid: i32) -> Answer<()> {
        self.backend.check(&self.at, pid.into())
    }

    fn failed(&self, e: sqlx::Error) -> Failed {
        let failed = failed(e, &self.at);
        if failed.fatal {
            self.away.store(true, Ordering::Relaxed);
        }
        failed
    }
}

#[async_trait]
impl Wire for PgWire {
    fn backend(&self) -> &Backend {
        &self.backend
    }

    fn closed_for(&self) -> Duration {
        self.closed_for
    }

    async fn try_lock(&mut self, key: &Key) -> Answer<Option<Token>> {
        let sql = AssertSqlSafe(self.sql.try_lock.clone());
        let asked = sqlx::query_as::<_, (Option<i64>, i32)>(sql).bind(key.as_i64());
        let answer = asked.fetch_one(&mut self.listener).await;
        let (token, pid) = answer.map_err(|e| self.failed(e))?;
        self.check(pid)?;
        token.map(|value| drawn(value, &self.at)).transpose()
    }

    async fn wait_lock(&mut self, key: &Key) -> Answer<Waited> {
        let sql = AssertSqlSafe(self.sql.wait_lock.clone());
        let asked = sqlx::query_as::<_, (Option<i64>, i32)>(sql).bind(key.as_i64());
        let (token, pid) = match asked.fetch_one(&mut self.listener).await {
            Ok(answer) => answer,
            Err(e) if is_not_yet(&e) => return Ok(Waited::NotYet),
            Err(e) => return Err(self.failed(e)),
        };
        self.check(pid)?;
        match token {
            Some(value) => Ok(Waited::Locked(drawn(value, &self.at)?)),
            None => Ok(Waited::NotYet),
        }
    }

    async fn unlock(&mut self, key: &Key) -> Answer<bool> {
        const UNLOCK: &str = "SELECT pg_advisory_unlock($1), pg_backend_pid()";
        let asked = sqlx::query_as::<_, (bool, i32)>(UNLOCK).bind(key.as_i64());
        let answer = asked.fetch_one(&mut self.listener).await;
        let (was_held, pid) = answer.map_err(|e| self.failed(e))?;
        self.check(pid)?;
        Ok(was_held)
    }

    async fn clean(&mut self) -> Answer<()> {
        const CLEAN: &str =
            "SELECT CASE WHEN pg_advisory_unlock_all() IS NULL THEN 0 ELSE pg_backend_pid() END";
        let answer = sqlx::query_scalar::<_, i32>(CLEAN)
            .fetch_one(&mut self.listener)
            .await;
        let pid = answer.map_err(|e| self.failed(e))?;
        self.check(pid)
    }

    async fn ping(&mut self) -> Answer<()> {
        let answer = sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()");
        let answer = answer.fetch_one(&mut self.listener).await;
        let pid = answer.map_err(|e| self.failed(e))?;
        self.check(pid)
    }

    async fn cancel(&mut self, other: &Backend) -> Answer<()> {
        // Of that start: numbers of processes come again.
        const CANCEL: &str = "SELECT count(pg_cancel_backend(pid)), pg_backend_pid() FROM pg_stat_activity \
             WHERE pid = $1 AND backend_start = $2::timestamptz";
        let pid = i32::try_from(other.id).unwrap_or(0);
        let asked = sqlx::query_as::<_, (i64, i32)>(CANCEL)
            .bind(pid)
            .bind(other.since.as_str());
        let answer = asked.fetch_one(&mut self.listener).await;
        let (_, pid) = answer.map_err(|e| self.failed(e))?;
        self.check(pid)
    }

    async fn broken(&mut self) -> Failed {
        loop {
            match self.listener.try_recv().await {
                // Nobody listens to anything here.
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.away.store(true, Ordering::Relaxed);
                    let message = format!(
                        "PostgreSQL at {} has ended the session: it was stopped, or somebody has ended \
                         this connection",
                        self.at
                    );
                    return Failed::fatal(Error::new(ErrorKind::Unavailable, message));
                }
                Err(e) => return Failed::fatal(self.failed(e).error),
            }
        }
    }

    async fn end(self: Box<Self>) {
        let Self { listener, pool, .. } = *self;
        // Its connection goes back to its own pool, which is closed.
        drop(listener);
        pool.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_is_given_up_before_its_session() {
        let ttl = Duration::from_millis(2500);
        let settings = start(ttl, ttl / 3);
        let value = |name| -> u64 {
            let found = settings.iter().find(|(n, _)| *n == name);
            found.unwrap().1.parse().unwrap()
        };
        assert_eq!(value("idle_session_timeout"), 2500);
        assert!(value("tcp_user_timeout") >= 2500 && value("tcp_keepalives_idle") * 1000 >= 2500);
    }
}
