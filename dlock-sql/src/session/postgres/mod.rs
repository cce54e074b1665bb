//! Advisory locks of PostgreSQL 14 and later.
//!
//! Locks are those of one *database*; a standby is refused, since its locks exclude nobody on the primary.
//!
//! In the database there is one sequence, `<schema>.<prefix>session_token`. Whoever is to lock needs `USAGE`
//! on it and nothing else; whoever opens first needs `CREATE` on the schema, or an operator makes it: `CREATE
//! SEQUENCE dlock_session_token CACHE 1`. The cache must stay 1, since each session has one of its own.
//!
//! Advisory locks are shared with whatever else uses them in the database, by numbers of 64 bits. Something
//! of somebody else under the same number is waited for.

mod connection;
mod failure;
mod schema;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::Result;
use sqlx::postgres::PgConnectOptions;

pub use self::transaction::TransactionLocks;
use super::config::Config;
use super::dialect::{Database, Limits, Server};
use super::keys::Key;

#[async_trait]
impl Database for PgConnectOptions {
    fn limits(&self) -> Limits {
        Limits {
            name: "postgres-session",
            // A third of it is a turn of waiting, and a ping.
            shortest_ttl: Duration::from_millis(300),
            granularity: Duration::from_millis(1),
            ping: Duration::MAX,
            key_bytes: Key::OF_POSTGRES,
            is_postgres: true,
        }
    }

    async fn open(&self, config: Config) -> Result<Arc<dyn Server>> {
        let site = schema::prepare(self, &config).await?;
        Ok(Arc::new(connection::PgServer::new(self, config, site)))
    }
}
