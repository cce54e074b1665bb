//! Locks in a PostgreSQL database: leases in rows, with a queue, and `NOTIFY` to the one who is next.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool, runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
//! use dlock_sql::lease::postgres::PostgresLease;
//!
//! let backend = PostgresLease::from_pool(&pool, runtime).await?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! * **Whoever uses the same tables** excludes one another, in all modes, through one fair queue with
//!   priorities.
//! * **Expiry** is by the server's clock as it is when the row is locked, not as it was when a transaction
//!   began. No clock of a client counts.
//! * **Tokens** grow per name: each is larger than the last one of that name, and not less than the server's
//!   clock in microseconds. They survive release, expiry, restart, and the deletion of names that nobody
//!   uses.
//! * **Connections** are its own, made with your pool's options: [`Builder::connections`] of them and one
//!   that listens. Waiters have none, so thousands of them wait on one connection, and a pool of yours cannot
//!   run dry by locks.
//! * **A pooler** in transaction mode is no obstacle: see [`Route::TransactionPooler`].
//!
//! # What it does not
//!
//! * A server clock that is set forward ends leases early; the fence decides then. (Declared:
//!   `clock_sensitive`.)
//! * With `synchronous_commit = off` a crash of the server may take back the last grants, as a standby that
//!   is promoted may; tokens go on from the clock. Exclusion over a fail-over is as good as the replication.
//! * A change of a name waits for whoever has its row locked, which no client of dlock does for longer than a
//!   statement runs. After [`Builder::lock_wait`] it answers `Unavailable`. (Behind a pooler the server's own
//!   `lock_timeout` decides.)
//! * `NOTIFY` puts the commits of all transactions that notify into one line, server-wide. Only hand-overs
//!   and watched names do.
//! * A name of which no row is left costs nothing; one that was used in the last minutes keeps a row of some
//!   150 bytes.

mod call;
mod connection;
mod failure;
mod fencing;
pub mod gate;
mod lock;
mod notify;
mod open;
mod pushes;
mod renew;
mod reply;
mod rwlock;
mod schema;
mod sweep;
mod wait;
mod watch;

pub use lock::PostgresLease;
pub use open::{Builder, DEFAULT_PREFIX, Route};
