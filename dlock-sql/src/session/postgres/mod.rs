//! Advisory locks of PostgreSQL 14 and later.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use dlock_core::{Result, Runtime};
//! # async fn f(pool: sqlx::PgPool, runtime: Arc<dyn Runtime>) -> Result<()> {
//! use std::time::Duration;
//! use dlock_sql::session::Config;
//!
//! let backend = Config::from_postgres_pool(&pool)
//!     .session_ttl(Duration::from_secs(10))
//!     .connect(runtime)
//!     .await?;
//! # Ok(()) }
//! ```
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

use dlock_core::Result;
use sqlx::postgres::PgConnectOptions;

pub use self::transaction::TransactionLocks;
use super::dialect::{Limits, Opened, Settings, shown};
use super::keys::POSTGRES_BYTES;

/// A third of the ttl is a turn of waiting, and a ping.
pub(super) const LIMITS: Limits = Limits {
    name: "postgres-session",
    shortest_ttl: Duration::from_millis(300),
    granularity: Duration::from_millis(1),
    ping: Duration::MAX,
    key_bytes: POSTGRES_BYTES,
};

/// Finds or makes the sequence of the tokens.
pub(super) async fn open(options: PgConnectOptions, settings: Settings) -> Result<Opened> {
    let database = options.get_database().unwrap_or(options.get_username());
    let at = shown(
        options.get_socket(),
        options.get_host(),
        options.get_port(),
        database,
    );
    let timing = settings.timing;
    let tokens = schema::prepare(&options, &at, settings).await?;
    let server = Arc::new(connection::PgServer::new(options, at, timing, &tokens));
    Ok(Opened { server, tokens })
}
