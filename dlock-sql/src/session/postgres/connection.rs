//! A session of PostgreSQL.
//!
//! * *The lock and its token are one statement*: `CASE` evaluates what is behind `THEN` after its condition,
//!   so only the holder draws a token, later than any holder before. Its sequence is not cached by sessions,
//!   and its values are durable before they are seen (`synchronous_commit` is on here, whatever the role's
//!   default is), so they go on after a crash.
//! * *The session's limits are parameters of its start*: a pooler refuses or drops such, and that is looked
//!   at. A `SET` would be carried out by any server session of the pooler, and stay there.
//! * *A `PgListener` is used as a plain connection*: nothing else in the driver reads while nothing was
//!   asked, and so sees at once that the server has ended the session. It never reconnects on its own: after
//!   its first end it is not used any more; and each answer names its backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{ErrorKind, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::schema::{self, AGE, RUN, draw};
use crate::direct::Failure;
use crate::session::config::Config;
use crate::session::dialect::{Backend, Dialect, Request, Session, Site, Told, Wire, pooled};
use crate::session::failure::{Answer, Failed};
use crate::session::keys::Key;

/// Where sessions come from.
pub(in crate::session) struct Postgres {
    options: PgConnectOptions,
    /// A connection has ended, and the server was not seen since.
    away: AtomicBool,
}

#[async_trait]
impl Dialect for Postgres {
    async fn prepare(&self, config: &Config) -> Result<Site> {
        schema::prepare(&self.options, config).await
    }

    async fn connect(&self, config: &Config, site: &Site) -> Answer<Session> {
        let told = |e| self.failed(e, &site.at);
        if self.away.load(Ordering::Relaxed) {
            // A pool tries again and again where nobody listens. The caller is to hear of it at once.
            let seen = PgConnection::connect_with(&self.options).await;
            let _ = seen.map_err(told)?.close().await;
            self.away.store(false, Ordering::Relaxed);
        }
        // For one connection, which the driver's listener insists on taking from a pool.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(config.timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(self.options.clone().options(start(config.ttl, config.turn())));
        let mut listener = PgListener::connect_with(&pool).await.map_err(told)?;
        listener.eager_reconnect(false);
        listener.ignore_pool_close_event(true);
        let (backend, closed_for) = self.greet(&mut listener, config.ttl, site).await?;
        let (token, by) = (draw(&site.quoted), "pg_backend_pid()");
        let try_lock = format!("SELECT CASE WHEN pg_try_advisory_lock($1) THEN {token} END, {by}");
        // It is never null, and evaluated before what depends on that.
        let wait = format!("SELECT CASE WHEN pg_advisory_lock($1) IS NULL THEN NULL ELSE {token} END, {by}");
        let wire = PgWire {
            listener,
            pool,
            try_lock: try_lock.into(),
            wait: wait.into(),
        };
        Ok(Session {
            wire: Box::new(wire),
            backend,
            closed_for,
        })
    }

    fn failed(&self, e: sqlx::Error, at: &str) -> Failed {
        let failed = Failed::of(e, at);
        if failed.fatal {
            self.away.store(true, Ordering::Relaxed);
        }
        failed
    }
}

impl Postgres {
    pub(in crate::session) fn dialect(options: PgConnectOptions) -> Arc<dyn Dialect> {
        Arc::new(Self {
            // Not logged: a wait is slow by design.
            options: options.disable_statement_logging(),
            away: AtomicBool::new(false),
        })
    }

    /// Who it is that answers, and whether it has taken what the session was started with.
    async fn greet(
        &self,
        listener: &mut PgListener,
        ttl: Duration,
        site: &Site,
    ) -> Answer<(Backend, Duration)> {
        let at = &site.at;
        let who = format!(
            "SELECT pg_backend_pid(), \
             (SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()), \
             (SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout'), \
             pg_is_in_recovery(), {RUN}, {AGE}"
        );
        let who = sqlx::query_as(AssertSqlSafe(who)).fetch_one(&mut *listener).await;
        let who: (i32, Option<String>, Option<String>, bool, String, f64) =
            who.map_err(|e| self.failed(e, at))?;
        let (pid, since, limit, is_standby, run, age) = who;
        if limit != Some(ttl.as_millis().to_string()) {
            return Err(pooled(at));
        }
        if is_standby {
            let message = format!("{at} is a standby, whose locks do not exclude clients of the primary");
            return Err(Failed::fatal(ErrorKind::Unavailable, message));
        }
        // Of version 17, and meant for transactions that do something.
        const NO_LIMIT: &str =
            "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'";
        let lifted = sqlx::query(NO_LIMIT).execute(&mut *listener).await;
        lifted.map_err(|e| self.failed(e, at))?;
        // Not every system can: then a waiter whose client is gone waits to the end of its turn.
        const LOOK: &str = "SELECT set_config('client_connection_check_interval', $1, false)";
        let looked = sqlx::query(LOOK).bind((ttl.as_millis() / 3).to_string());
        let refused = looked.execute(&mut *listener).await.err();
        if let Some(failed) = refused.map(|e| self.failed(e, at)).filter(|failed| failed.fatal) {
            return Err(failed);
        }
        let age = Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default();
        let (id, since) = (pid.into(), since.unwrap_or_default());
        Ok((Backend { id, since }, site.grace.left(&run, age)))
    }
}

/// The settings of a session.
///
/// The server is told not to give up a connection that is silent *sooner* than the session: a client that is
/// cut off believes in its locks for the ttl, and with the connection they would go to the next one. Its own
/// limits for TCP may be shorter.
fn start(ttl: Duration, turn: Duration) -> Vec<(&'static str, String)> {
    let ms = ttl.as_millis().to_string();
    vec![
        ("idle_session_timeout", ms.clone()),
        ("lock_timeout", turn.as_millis().to_string()),
        ("statement_timeout", "0".to_owned()),
        ("default_transaction_read_only", "off".to_owned()),
        ("synchronous_commit", "on".to_owned()),
        // A client whose machine is down is found out while its session waits, and an answer that nobody
        // takes ends it.
        ("tcp_keepalives_idle", ttl.as_millis().div_ceil(1000).to_string()),
        ("tcp_keepalives_interval", "1".to_owned()),
        ("tcp_keepalives_count", "3".to_owned()),
        ("tcp_user_timeout", ms),
    ]
}

struct PgWire {
    listener: PgListener,
    pool: PgPool,
    /// They take a key and draw a token.
    try_lock: Arc<str>,
    wait: Arc<str>,
}

#[async_trait]
impl Wire for PgWire {
    async fn ask(&mut self, request: Request<'_>) -> sqlx::Result<Told> {
        const UNLOCK: &str = "SELECT CASE WHEN pg_advisory_unlock($1) THEN 1::int8 END, pg_backend_pid()";
        const CLEAN: &str =
            "SELECT CASE WHEN pg_advisory_unlock_all() IS NULL THEN NULL ELSE 1::int8 END, pg_backend_pid()";
        const PING: &str = "SELECT NULL::int8, pg_backend_pid()";
        // Of that start: numbers of processes come again.
        const CANCEL: &str = "SELECT count(pg_cancel_backend(pid)), pg_backend_pid() FROM pg_stat_activity \
             WHERE pid = $1 AND backend_start = $2::timestamptz";
        let of_key =
            |sql: &Arc<str>, key: &Key| sqlx::query_as(AssertSqlSafe(sql.clone())).bind(key.as_i64());
        let asked = match request {
            Request::Try(key) => of_key(&self.try_lock, key),
            Request::Wait(key) => of_key(&self.wait, key),
            Request::Unlock(key) => sqlx::query_as(UNLOCK).bind(key.as_i64()),
            Request::Clean => sqlx::query_as(CLEAN),
            Request::Ping => sqlx::query_as(PING),
            Request::Cancel(other) => sqlx::query_as(CANCEL)
                .bind(i32::try_from(other.id).unwrap_or(0))
                .bind(other.since.as_str()),
        };
        let told: sqlx::Result<(Option<i64>, i32)> = asked.fetch_one(&mut self.listener).await;
        match told {
            Ok((value, pid)) => Ok((value, Some(pid.into()))),
            // The session may have the lock all the same.
            Err(e) if matches!(request, Request::Wait(_)) && is_not_yet(&e) => Ok((None, None)),
            Err(e) => Err(e),
        }
    }

    async fn broken(&mut self) -> sqlx::Error {
        loop {
            match self.listener.try_recv().await {
                // Nobody listens to anything here.
                Ok(Some(_)) => {}
                Ok(None) => return std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into(),
                Err(e) => return e,
            }
        }
    }

    async fn close(self: Box<Self>) {
        // Its connection goes back to its own pool, which is closed.
        drop(self.listener);
        self.pool.close().await;
    }
}

/// Whether a wait has been told to end, or its turn is over, and nothing is wrong.
fn is_not_yet(e: &sqlx::Error) -> bool {
    matches!(Failure::of(e), Failure::Cancelled | Failure::LockTimeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_is_given_up_before_its_session() {
        let ttl = Duration::from_millis(2500);
        let settings: std::collections::HashMap<_, _> = start(ttl, ttl / 3).into_iter().collect();
        let value = |name| settings[name].parse::<u64>().unwrap();
        assert_eq!(value("idle_session_timeout"), 2500);
        assert!(value("tcp_user_timeout") >= 2500 && value("tcp_keepalives_idle") * 1000 >= 2500);
    }
}
