//! The bare driver on PostgreSQL.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgAdvisoryLock, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{Connection as _, Executor as _};

use super::server::Server;
use crate::redis::quantile;

/// As long as an id of ours.
const OWNER: &[u8] = &[7; 24];

const UPSERT: &str = "INSERT INTO raw (name, owner, token, ends) VALUES ($1, $2, 1, clock_timestamp() + \
    interval '30 seconds') \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = raw.token + 1, ends = excluded.ends \
     WHERE raw.owner IS NULL OR raw.ends <= clock_timestamp() RETURNING token";
const FREE: &str = "UPDATE raw SET owner = NULL WHERE name = $1 AND owner = $2";

/// A connection of the bare driver, a pool of it, and its own lock.
#[derive(Debug)]
pub struct Postgres {
    connection: PgConnection,
    pool: PgPool,
    lock: PgAdvisoryLock,
}

impl Postgres {
    /// With a table for the raw statements.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn new(server: &Server) -> Self {
        let url = server.url();
        let mut connection = PgConnection::connect(&url).await.expect("the server is there");
        let table = "CREATE TABLE IF NOT EXISTS raw (name bytea PRIMARY KEY, owner bytea, token bigint NOT \
            NULL, ends timestamptz NOT NULL) WITH (fillfactor = 50)";
        connection.execute(table).await.expect("it answers");
        let pool = PgPoolOptions::new().max_connections(2).connect(&url).await;
        Self {
            connection,
            pool: pool.expect("the server is there"),
            lock: PgAdvisoryLock::new("a-name-of-twenty-one-c"),
        }
    }

    /// A row is taken, with a token, and freed.
    pub async fn row_pair(&mut self, name: &[u8]) {
        let token = sqlx::query_scalar::<_, i64>(UPSERT).bind(name).bind(OWNER);
        let token = token
            .fetch_optional(&mut self.connection)
            .await
            .expect("it answers");
        assert!(token.is_some(), "nobody else wants it");
        let freed = sqlx::query(FREE)
            .bind(name)
            .bind(OWNER)
            .execute(&mut self.connection);
        assert_eq!(freed.await.expect("it answers").rows_affected(), 1);
    }

    /// The server's own lock, on a connection that is kept.
    pub async fn advisory_pair(&mut self, key: i64) {
        self.lock(key).await;
        self.unlock(key).await;
    }

    /// The same on connections of a pool.
    pub async fn pool_pair(&self, key: i64) {
        let mut connection = self.pool.acquire().await.expect("there is one");
        let lock = sqlx::query("SELECT pg_advisory_lock($1)").bind(key);
        lock.execute(&mut *connection).await.expect("it answers");
        let unlock = sqlx::query("SELECT pg_advisory_unlock($1)").bind(key);
        unlock.execute(&mut *connection).await.expect("it answers");
    }

    /// The lock of the driver.
    pub async fn driver_pair(&self) {
        let connection = self.pool.acquire().await.expect("there is one");
        let guard = self.lock.acquire(connection).await.expect("it answers");
        guard.release_now().await.expect("it answers");
    }

    /// Waits until it has the server's own lock.
    pub async fn lock(&mut self, key: i64) {
        let lock = sqlx::query("SELECT pg_advisory_lock($1)").bind(key);
        lock.execute(&mut self.connection).await.expect("it answers");
    }

    /// Gives it back.
    pub async fn unlock(&mut self, key: i64) {
        let unlock = sqlx::query_scalar::<_, bool>("SELECT pg_advisory_unlock($1)").bind(key);
        assert!(unlock.fetch_one(&mut self.connection).await.expect("it answers"));
    }
}

/// A row is deleted and a waiter notified, which then inserts it: the minimum time of a hand-off with
/// notification. Each begins after that pause.
///
/// # Panics
/// If the server is not there.
pub async fn notify_floor(server: &Server, length: Duration, pause: Duration) -> Duration {
    let mut one = Postgres::new(server).await.connection;
    let mut two = Postgres::new(server).await.connection;
    let mut listener = PgListener::connect(&server.url())
        .await
        .expect("the server is there");
    listener.listen("floor").await.expect("it answers");
    one.execute("CREATE TABLE IF NOT EXISTS floor (name bytea PRIMARY KEY)")
        .await
        .expect("it answers");
    // Of the time before.
    one.execute("DELETE FROM floor").await.expect("it answers");
    let mut gaps = Vec::new();
    let until = Instant::now() + length;
    let name = &b"a-name-of-twenty-one-f"[..];
    let insert = "INSERT INTO floor VALUES ($1)";
    sqlx::query(insert)
        .bind(name)
        .execute(&mut two)
        .await
        .expect("it is free");
    while Instant::now() < until {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let at = Instant::now();
        let hand = "WITH gone AS (DELETE FROM floor WHERE name = $1 RETURNING 1) SELECT pg_notify('floor', \
            '') FROM gone";
        let (_, gap) = futures::join!(sqlx::query(hand).bind(name).execute(&mut one), async {
            listener.recv().await.expect("it answers");
            sqlx::query(insert)
                .bind(name)
                .execute(&mut two)
                .await
                .expect("it is free");
            at.elapsed()
        });
        gaps.push(gap);
    }
    quantile(&mut gaps, 0.5)
}
