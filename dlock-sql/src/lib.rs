//! The SQL backends of dlock: distributed locks with fencing tokens in a database that you already run.
//!
//! * `lease`, with the feature `postgres` or `mysql`: leases in rows of a database server.
//! * [`sqlite`]: leases in a SQLite file (or in memory), shared by the processes of one machine.
//! * [`session`]: advisory locks of PostgreSQL, and `GET_LOCK` of MySQL and MariaDB, which live as long as a
//!   connection does.
//! * [`direct`]: locking by hand inside your own transactions and rows, in PostgreSQL, MySQL, MariaDB and
//!   SQLite.
//!
//! # How it is made
//!
//! There are four strategies. `lease` (rows with an expiry) and `session` (locks of the server) are backends
//! of the SPI. `direct::row` and `direct::optimistic` are APIs of their own, since their guard *is* a
//! transaction of the caller. They share sqlx and the meaning of errors (`failure`), and little else: what is
//! locked first, and where the rule of admission runs, differs from store to store.
//!
//! | | the rule runs | because |
//! |---|---|---|
//! | SQLite | in the program ([`admission`](dlock_core::spi::admission)), under the file's write lock | there is no server |
//! | PostgreSQL | in the server, PL/pgSQL (`lease/postgres/v1/`) | one round trip under contention (two if the client did not know of it); no row stays locked across a round trip, so a paused client blocks nobody; `NOTIFY` in the same commit; behind a pooler nothing is left open between statements |
//! | MySQL, MariaDB | in the program, the same, under the row's lock: two round trips | stored functions may neither commit nor return rows there, and procedures need rights that many users lack |
//!
//! That the two renderings of the rule agree is tested by random operations on both
//! (`tests/it/same.rs` of the workspace).
//!
//! Types of sqlx appear only in the constructors that take a pool, and in what works inside the caller's
//! transaction: [`direct`], and the gates of the backends.

#![cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]

#[cfg(any(feature = "sqlite", feature = "mysql"))]
mod admit;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod cache;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod diagnosis;
pub mod direct;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod driver_url;
mod failure;
mod gate;
mod keys;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod lease;
mod listing;
mod probe;
mod requests;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod session;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use driver_url::driver_url;
