//! Locks as leases in rows of a database server: PostgreSQL, MySQL and MariaDB.
//!
//! A lease is a row with an end, by the clock of the database. It hangs on no connection: one that breaks
//! costs nothing, and a pooler may be in between. What is written of a name changes in one statement or one
//! transaction that has locked the name's row, so that nobody sees it half-done.
//!
//! | | PostgreSQL | MySQL, MariaDB |
//! |---|---|---|
//! | one exclusive lock, nobody else there | one statement to take it, one to let go | the same |
//! | others there | the same, by a function of the database | a short transaction |
//! | who is next learns it | by `NOTIFY`, to that one alone; by looking, behind a pooler | by looking |
//!
//! The other strategies, and which one when, are in `docs/sql.md`.

mod background;
mod connecting;
mod connection;
mod contention;
mod dialect;
#[cfg(feature = "mysql")]
pub mod mysql;
mod permits;
#[cfg(feature = "postgres")]
pub mod postgres;
mod request;
mod resent;
mod task;
