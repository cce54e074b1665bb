//! The SQL backends of `dlock`: distributed locks with fencing tokens in a database that you already have.
//!
//! * `lease`, with the feature `postgres` or `mysql`: leases in rows of a database server.
//! * [`sqlite`]: leases in a SQLite file (or in memory), shared by the processes of one machine.
//! * [`session`]: advisory locks of PostgreSQL, and `GET_LOCK` of MySQL and MariaDB, which live as long as a
//!   connection does.
//! * [`direct`]: locking by hand inside your own transactions and rows, in PostgreSQL, MySQL, MariaDB and
//!   SQLite.
//!
//! Nothing of sqlx shows in the signatures, but for the constructors that take a pool, and for what works
//! inside a transaction of your own: [`direct`], and the gates of the backends.

#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod admit;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub mod direct;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod gate;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod lately;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod lease;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod session;
#[cfg(feature = "sqlite")]
pub mod sqlite;

// For the tests of what has no public name: migrations to a version that there is not yet.
#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
#[path = "../../tests/servers/mod.rs"]
mod servers;
