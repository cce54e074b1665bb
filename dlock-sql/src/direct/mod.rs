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
//! What differs (isolation levels, rights, poolers, and what sqlx does not tell) is in `docs/sql-by-hand.md`.

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
