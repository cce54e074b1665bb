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
//! Locks are those of one *database*: clients of another one on the same server have nothing to do with them,
//! nor have those on a standby, which is refused.
//!
//! In the database there is one sequence, `<schema>.<prefix>session_token`. Whoever is to lock needs `USAGE`
//! on it and nothing else; whoever opens first needs `CREATE` on the schema, or an operator makes it: `CREATE
//! SEQUENCE dlock_session_token CACHE 1`. The cache must stay 1, since each session has one of its own.
//!
//! Advisory locks are shared with whatever else uses them in the database, by numbers of 64 bits. Something
//! of somebody else under the same number is waited for.

mod connection;
mod failure;
mod run;
mod schema;
mod transaction;

use std::time::Duration;

pub(in crate::session) use self::schema::open;
pub use self::transaction::TransactionLocks;
use crate::session::config::Limits;
use crate::session::keys::POSTGRES_BYTES;

/// A third of the ttl is a turn of waiting, and a ping.
pub(in crate::session) const LIMITS: Limits = Limits {
    name: "postgres-session",
    shortest_ttl: Duration::from_millis(300),
    granularity: Duration::from_millis(1),
    key_bytes: POSTGRES_BYTES,
};
