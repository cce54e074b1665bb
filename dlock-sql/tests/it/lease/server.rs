//! A server of a test's own, of either kind, and hands at it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::Lock;
use dlock_core::{Result, Runtime};
use dlock_sql::lease::Config;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use dlock_testkit::{MariaDbOptions, MariaDbServer, PostgresOptions, PostgresServer};

use super::site::blocking;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Postgres,
    MariaDb,
}

pub(crate) const BOTH: [Kind; 2] = [Kind::Postgres, Kind::MariaDb];

#[derive(Clone)]
pub(crate) enum Server {
    Postgres(Arc<PostgresServer>),
    MariaDb(Arc<MariaDbServer>),
}

/// A connection beside those of the backend.
pub(crate) enum Hand {
    Postgres(PgConnection),
    MariaDb(MySqlConnection),
}

impl Hand {
    /// Some statements, of which nothing is read.
    pub(crate) async fn run(&mut self, sql: &str) -> std::result::Result<(), sqlx::Error> {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(conn) => sqlx::raw_sql(sql).execute(conn).await.map(drop),
            Self::MariaDb(conn) => sqlx::raw_sql(sql).execute(conn).await.map(drop),
        }
    }
}

impl Server {
    pub(crate) async fn start(kind: Kind) -> Self {
        Self::with(kind, &[]).await
    }

    /// With those settings.
    pub(crate) async fn with(kind: Kind, settings: &'static [(&str, &str)]) -> Self {
        Self::start_with(kind, settings, false).await
    }

    /// With a wall clock that can be set.
    pub(crate) async fn own_clock(kind: Kind) -> Self {
        Self::start_with(kind, &[], true).await
    }

    async fn start_with(kind: Kind, settings: &'static [(&str, &str)], own_clock: bool) -> Self {
        blocking(move || {
            Ok(match kind {
                Kind::Postgres => {
                    let mut options = PostgresOptions::new();
                    for (name, value) in settings {
                        options = options.setting(name, value);
                    }
                    if own_clock {
                        options = options.own_clock();
                    }
                    Self::Postgres(Arc::new(PostgresServer::with(options)?))
                }
                Kind::MariaDb => {
                    let mut options = MariaDbOptions::new();
                    for (name, value) in settings {
                        options = options.setting(name, value);
                    }
                    if own_clock {
                        options = options.own_clock();
                    }
                    Self::MariaDb(Arc::new(MariaDbServer::with(options)?))
                }
            })
        })
        .await
    }

    pub(crate) fn url_of(&self, user: &str, password: &str) -> String {
        match self {
            Self::Postgres(server) => server.url_of(user, password),
            Self::MariaDb(server) => server.url_of(user, password),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::MariaDb(server) => server.url(),
        }
    }

    /// A backend, which waits for a locked row for a second, and sweeps in no test.
    pub(crate) async fn open(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Lock> {
        self.try_open(&self.url(), runtime).await.unwrap()
    }

    pub(crate) async fn try_open(&self, url: &str, runtime: &Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        self.open_with(url, Duration::from_secs(3600), runtime).await
    }

    /// One that sweeps each time that it releases something.
    pub(crate) async fn open_sweeping(&self, runtime: &Arc<dyn Runtime>) -> Arc<dyn Lock> {
        self.open_with(&self.url(), Duration::from_millis(1), runtime)
            .await
            .unwrap()
    }

    async fn open_with(
        &self,
        url: &str,
        sweep: Duration,
        runtime: &Arc<dyn Runtime>,
    ) -> Result<Arc<dyn Lock>> {
        let wait = Duration::from_secs(1);
        let config = Config::from_url(url)?.lock_wait(wait).sweep_every(sweep);
        config.connect(runtime.clone()).await
    }

    pub(crate) async fn hand(&self) -> Hand {
        match self {
            Self::Postgres(server) => {
                let options: PgConnectOptions = server.url().parse().unwrap();
                Hand::Postgres(options.connect().await.unwrap())
            }
            Self::MariaDb(server) => {
                let options: MySqlConnectOptions = server.url().parse().unwrap();
                Hand::MariaDb(options.connect().await.unwrap())
            }
        }
    }

    /// What its command line client answers.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let (server, sql) = (self.clone(), sql.to_owned());
        blocking(move || match server {
            Self::Postgres(server) => server.ask(&sql),
            Self::MariaDb(server) => server.ask(&sql),
        })
        .await
    }

    /// Ends all connections of programs, as an operator does.
    pub(crate) async fn end_all(&self) {
        let server = self.clone();
        blocking(move || {
            match server {
                Self::Postgres(server) => {
                    // In one statement: a session that has ended since it was listed does not matter.
                    server.ask(
                        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity \
                            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                    )?;
                }
                Self::MariaDb(server) => {
                    for connection in server.connections()? {
                        match server.kill_connection(connection) {
                            // It has ended since it was listed.
                            Err(e) if e.to_string().contains("Unknown thread id") => {}
                            killed => killed?,
                        }
                    }
                }
            }
            Ok(())
        })
        .await;
    }

    /// How many connections of programs there are.
    pub(crate) async fn connections(&self) -> usize {
        let server = self.clone();
        blocking(move || match server {
            Self::Postgres(server) => Ok(server.backends()?.len()),
            Self::MariaDb(server) => Ok(server.connections()?.len()),
        })
        .await
    }

    /// Ends and starts it again; `crash`: without order.
    pub(crate) async fn restart(&self, crash: bool) {
        let server = self.clone();
        blocking(move || match (server, crash) {
            (Self::Postgres(server), false) => server.restart(),
            (Self::MariaDb(server), false) => server.restart(),
            (Self::Postgres(server), true) => server.crash().and_then(|()| server.start_again()),
            (Self::MariaDb(server), true) => server.crash().and_then(|()| server.start_again()),
        })
        .await;
    }

    pub(crate) async fn wait_until_blocked(&self, many: i64) {
        let server = self.clone();
        blocking(move || match server {
            Self::Postgres(server) => server.wait_until_blocked(many, Duration::from_secs(10)),
            Self::MariaDb(server) => server.wait_until_blocked(many, Duration::from_secs(10)),
        })
        .await;
    }
}
