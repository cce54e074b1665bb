//! Locking by hand in a database of yours: beside the locks of the rest of the library, in the terms of SQL.
//!
//! | | holds | for | waits |
//! |---|---|---|---|
//! | [`row`] | rows, until the transaction ends | reading and writing in one | in the server, in no order |
//! | [`optimistic`] | nothing | rows that are seldom fought over | never: who was slower begins again |
//! | [`reentrant`] | a name, for an owner, for a time | what operators want to see in a table | not at all |
//! | [`gate`] | a resource, until the transaction ends | refusing overtaken tokens | in the server |
//!
//! There is no engine behind them and no task in the background. Nothing is renewed, repeated or undone
//! unless it says so. Each takes `sqlx::Postgres`, `sqlx::MySql` (for MariaDB too) or `sqlx::Sqlite`, with
//! the feature of that name. Every [`Error`] tells the [`Failure`] behind it, the same for all databases.
//!
//! Behind a pooler in transaction mode (PgBouncer) use what is done inside a transaction: [`gate`],
//! [`reentrant`], and [`row`] with [`unprepared`](row::Rows::unprepared). Your own statements there need
//! `persistent(false)`: sqlx numbers prepared statements for each of *its* connections, and two that share
//! one of the server's would use a name twice (the more so with its `statement_cache_capacity(0)`).

mod dialect;
mod failure;
pub mod gate;
pub mod optimistic;
mod pooled;
pub mod reentrant;
pub mod row;
mod tables;

#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) use self::dialect::Dialect;
pub use self::dialect::Store;
pub use self::failure::{Error, Failure, Result};
pub use self::tables::Tables;
#[cfg(feature = "sqlite")]
pub(crate) use self::tables::is_prefix;
