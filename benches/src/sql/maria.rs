//! The bare driver on MariaDB.

use sqlx::mysql::MySqlConnection;
use sqlx::{Connection as _, Executor as _};

use super::server::Server;

/// As long as an id of ours.
const OWNER: &[u8] = &[7; 24];

const TAKE: &str = "UPDATE raw SET token = LAST_INSERT_ID(token + 1), owner = ?, ends = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND \
     WHERE name = ? AND (owner IS NULL OR ends <= UTC_TIMESTAMP(6))";
const FREE: &str = "UPDATE raw SET owner = NULL WHERE name = ? AND owner = ?";

/// A connection of the bare driver.
#[derive(Debug)]
pub struct Maria(MySqlConnection);

impl Maria {
    /// With a table for the raw statements.
    ///
    /// # Panics
    /// If the server is not there.
    pub async fn new(server: &Server) -> Self {
        let mut connection = MySqlConnection::connect(&server.url())
            .await
            .expect("the server is there");
        let table = "CREATE TABLE IF NOT EXISTS raw (name VARBINARY(1024) PRIMARY KEY, owner VARBINARY(24), token BIGINT NOT NULL, ends DATETIME(6) NOT NULL)";
        connection.execute(table).await.expect("it answers");
        Self(connection)
    }

    /// A row that can be taken.
    pub async fn row(&mut self, name: &[u8]) {
        let make = sqlx::query("INSERT IGNORE INTO raw VALUES (?, NULL, 0, UTC_TIMESTAMP(6))").bind(name);
        make.execute(&mut self.0).await.expect("it answers");
    }

    /// The row is taken, with a token, and freed.
    pub async fn row_pair(&mut self, name: &[u8]) {
        let taken = sqlx::query(TAKE).bind(OWNER).bind(name).execute(&mut self.0);
        assert!(
            taken.await.expect("it answers").last_insert_id() > 0,
            "nobody else wants it"
        );
        let freed = sqlx::query(FREE).bind(name).bind(OWNER).execute(&mut self.0);
        assert_eq!(freed.await.expect("it answers").rows_affected(), 1);
    }

    /// The server's own lock, on a connection that is kept.
    pub async fn named_pair(&mut self, name: &str) {
        self.lock(name).await;
        self.unlock(name).await;
    }

    /// Waits until it has the server's own lock.
    pub async fn lock(&mut self, name: &str) {
        let lock = sqlx::query_scalar::<_, Option<i64>>("SELECT GET_LOCK(?, 60)").bind(name);
        assert_eq!(lock.fetch_one(&mut self.0).await.expect("it answers"), Some(1));
    }

    /// Gives it back.
    pub async fn unlock(&mut self, name: &str) {
        let unlock = sqlx::query_scalar::<_, Option<i64>>("SELECT RELEASE_LOCK(?)").bind(name);
        assert_eq!(unlock.fetch_one(&mut self.0).await.expect("it answers"), Some(1));
    }
}
