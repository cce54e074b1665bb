//! Advisory locks of PostgreSQL 14 and later.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool, runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
//! use std::time::Duration;
//! use dlock_sql::session::postgres;
//!
//! let backend = postgres::builder()
//!     .session_ttl(Duration::from_secs(10))
//!     .open_pool(&pool, runtime)
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! Locks are those of one *database*: clients of another one on the same server have nothing to do with them, nor have those on a standby, which is refused.
//!
//! In the database there is one sequence, `<schema>.<prefix>session_token`. Whoever is to lock needs `USAGE` on it and nothing else; whoever opens first needs `CREATE` on the
//! schema, or an operator makes it: `CREATE SEQUENCE dlock_session_token CACHE 1`. The cache must stay 1, since each session has one of its own.
//!
//! Advisory locks are shared with whatever else uses them in the database, by numbers of 64 bits. Something of somebody else under the same number is waited for.

mod failure;
mod open;
mod run;
mod transaction;
mod wire;

pub use self::open::{Builder, builder};
pub use self::transaction::TransactionLocks;
