//! Locking by hand, in a database of yours: beside the locks of the rest of the library, in the terms of SQL.
//!
//! | | holds | for | waits |
//! |---|---|---|---|
//! | [`row`] | rows of yours, until the transaction ends | what is read and written in one transaction | in the server, in no order that is promised |
//! | [`optimistic`] | nothing | rows that are seldom fought over | never: who was slower begins again |
//! | [`reentrant`] | a name, for an owner, for a time | what an operator wants to see in a table, and an owner may enter again | not at all |
//! | [`gate`] | a resource, until the transaction ends | refusing a holder of *any* lock here whose token was overtaken | in the server |
//!
//! They have no engine behind them: nothing is renewed, repeated or undone unless it says so, and there is no task in the background.
//!
//! Each takes `sqlx::Postgres`, `sqlx::MySql` (for MariaDB too) or `sqlx::Sqlite`, with the feature of that name. What fails is one of a
//! few [`Failure`]s, whatever the database.
//!
//! Behind a pooler in transaction mode (PgBouncer) use what is done inside a transaction: [`gate`], [`reentrant`], and [`row`] with
//! [`unprepared`](row::Rows::unprepared). Your own statements there need `persistent(false)`: sqlx numbers prepared statements for each of *its*
//! connections, and two of them that share one of the server's would give the same name twice. (Its `statement_cache_capacity(0)` alone
//! makes that worse: names are given, and never taken back.)

mod database;
mod failure;
pub mod gate;
mod lent;
pub mod optimistic;
pub mod reentrant;
pub mod row;
mod tables;
mod version;

pub use self::database::Store;
pub use self::failure::{Error, Failure, Result};
pub use self::tables::Tables;
