//! The bare driver on MariaDB.

use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{Connection as _, Executor as _};

use super::server::Server;

/// As long as an id of ours.
const OWNER: &[u8] = &[7; 24];

/// The insert id is the token if it was free, and nought if it was not. Each assignment sees those before it.
const UPSERT: &str = "INSERT INTO raw (name, owner, token, ends) VALUES (?, ?, LAST_INSERT_ID(1), \
    UTC_TIMESTAMP(6) + INTERVAL 30 SECOND) \
     ON DUPLICATE KEY UPDATE \
     token = IF(owner IS NULL OR ends <= UTC_TIMESTAMP(6), LAST_INSERT_ID(token + 1), token + \
     LAST_INSERT_ID(0)), \
     owner = IF(owner IS NULL OR ends <= UTC_TIMESTAMP(6), VALUES(owner), owner), \
     ends = IF(owner = VALUES(owner), VALUES(ends), ends)";
const FREE: &str = "UPDATE raw SET owner = NULL WHERE name = ? AND owner = ?";

/// A connection of the bare driver, and a pool of it.
#[derive(Debug)]
pub struct Maria {
    connection: MySqlConnection,
    pool: MySqlPool,
}

impl Maria {
    /// With a table for the raw statements.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn new(server: &Server) -> Self {
        let url = server.url();
        let mut connection = MySqlConnection::connect(&url).await.expect("the server is there");
        let table = "CREATE TABLE IF NOT EXISTS raw (name VARBINARY(1024) PRIMARY KEY, owner VARBINARY(24), \
            token BIGINT NOT NULL, ends DATETIME(6) NOT NULL)";
        connection.execute(table).await.expect("it answers");
        let pool = MySqlPoolOptions::new().max_connections(2).connect(&url).await;
        Self {
            connection,
            pool: pool.expect("the server is there"),
        }
    }

    /// A row is taken, with a token, and freed.
    pub async fn row_pair(&mut self, name: &[u8]) {
        let taken = sqlx::query(UPSERT)
            .bind(name)
            .bind(OWNER)
            .execute(&mut self.connection);
        assert!(
            taken.await.expect("it answers").last_insert_id() > 0,
            "nobody else wants it"
        );
        let freed = sqlx::query(FREE)
            .bind(name)
            .bind(OWNER)
            .execute(&mut self.connection);
        assert_eq!(freed.await.expect("it answers").rows_affected(), 1);
    }

    /// The server's own lock, on a connection that is kept.
    pub async fn named_pair(&mut self, name: &str) {
        self.lock(name).await;
        self.unlock(name).await;
    }

    /// The same on connections of a pool.
    pub async fn pool_pair(&self, name: &str) {
        let mut connection = self.pool.acquire().await.expect("there is one");
        let lock = sqlx::query("SELECT GET_LOCK(?, 60)").bind(name);
        lock.execute(&mut *connection).await.expect("it answers");
        let unlock = sqlx::query("SELECT RELEASE_LOCK(?)").bind(name);
        unlock.execute(&mut *connection).await.expect("it answers");
    }

    /// Waits until it has the server's own lock.
    pub async fn lock(&mut self, name: &str) {
        let lock = sqlx::query_scalar::<_, Option<i64>>("SELECT GET_LOCK(?, 60)").bind(name);
        assert_eq!(
            lock.fetch_one(&mut self.connection).await.expect("it answers"),
            Some(1)
        );
    }

    /// Gives it back.
    pub async fn unlock(&mut self, name: &str) {
        let unlock = sqlx::query_scalar::<_, Option<i64>>("SELECT RELEASE_LOCK(?)").bind(name);
        assert_eq!(
            unlock.fetch_one(&mut self.connection).await.expect("it answers"),
            Some(1)
        );
    }
}
