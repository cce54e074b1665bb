//! Locking by hand in your own database, in the terms of SQL.
//!
//! | | holds | for | waits |
//! |---|---|---|---|
//! | [`row`] | rows, until the transaction ends | reading and writing in one | in the server, in no order |
//! | [`optimistic`] | nothing | rows with little contention | never: the slower one begins again |
//! | [`reentrant`] | a name, for an owner, for a time | locks that operators see in a table | never |
//! | [`gate`] | a resource, until the transaction ends | refusing stale tokens | in the server |
//!
//! There is no engine behind them and no background task. Nothing is renewed, repeated or undone unless it
//! says so. Each works with `sqlx::Postgres`, `sqlx::MySql` (also for MariaDB) or `sqlx::Sqlite`, with the
//! feature of that name. Every [`Error`] has a [`Failure`], the same for all databases. The differences
//! (isolation levels, rights, poolers, and what sqlx does not report) are in `docs/sql-by-hand.md`.

mod dialect;
mod failure;
pub mod gate;
pub mod optimistic;
mod pooled;
pub mod reentrant;
pub mod row;
mod tables;

pub(crate) use self::dialect::Dialect;
pub use self::dialect::Store;
pub use self::failure::{Error, Failure, Result};
pub use self::tables::Tables;
#[cfg(feature = "sqlite")]
pub(crate) use self::tables::is_prefix;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use self::tables::is_small;
