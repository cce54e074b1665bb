//! The SQL backends of `dlock`: distributed locks with fencing tokens in a database that you already have.
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
//! Four strategies; the first two are backends of the SPI, the others direct APIs beside it, since their
//! guard *is* a transaction of the caller's: `lease` (rows with an end), `session` (locks of the server),
//! `direct::row` and `direct::optimistic`. In common they have sqlx, what an error means (`failure`), and
//! little else: what is to be locked first, and who runs the rule of admission, differs from store to store.
//!
//! | | the rule runs | because |
//! |---|---|---|
//! | SQLite | in the program ([`admission`](dlock_core::spi::admission)), under the file's write lock | there is no server |
//! | PostgreSQL | in the server, PL/pgSQL (`lease/postgres/v1/`) | one round trip for whatever is contended (two where the client did not know that it is); no row stays locked across one, so a client that stops blocks nobody; `NOTIFY` in the same commit; behind a pooler nothing is left open between statements |
//! | MySQL, MariaDB | in the program, the same, under the row's lock: two round trips | stored functions may neither commit nor return rows there, and procedures need rights that many do not have |
//!
//! That the two renderings of the rule agree is tested by random operations on both
//! (`tests/it/same.rs` of the workspace).
//!
//! Nothing of sqlx shows in the signatures, but for the constructors that take a pool, and for what works
//! inside a transaction of your own: [`direct`], and the gates of the backends.

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
