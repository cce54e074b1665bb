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
//! Connections are the backend's own, made with your pool's options; waiters have none. Tokens survive
//! release, expiry, restart, and the deletion of names that nobody uses. A name of which no row is left costs
//! nothing; one that was used in the last minutes keeps a row of some 150 bytes.
//!
//! A server clock that is set forward ends leases early; the fence decides then (`clock_sensitive`). What
//! else is not promised, and differs from server to server, is in `postgres` and `mysql`, and in
//! `docs/sql.md`.
//!
//! # How it is made
//!
//! What is the same for both servers is written once, for a `Dialect`, which says the rest.
//!
//! * *One row for each name is locked first* by every change, and says whether there is anything in `entry`
//!   (`others`): the fast paths rely on that row alone. A condition that read rows of another table would see
//!   them as they were before it waited for the lock, and admit a reader and a writer together.
//! * *The queue is in a second table*: in the name's row, a thousand waiters would rewrite a hundred
//!   kilobytes each time.
//! * *Tokens* are the last one and one more, or the server's clock in microseconds, in the name's row and
//!   under its lock. A sequence would be drawn *before* the row is locked: A draws 5 and waits, B draws 6,
//!   holds and lets go, A is granted 5.
//! * *A name that is deleted and made anew* must begin above its last token. Each sweep raises a floor, and a
//!   name goes only if the floor was above its token by the sweep *before*. A statement that makes a row
//!   reads the floor and the clock as it begins: for a token to fall, that statement would have to have begun
//!   before the end of that sweep and not yet have found its row, which nothing does that waits for no longer
//!   than `lock_wait` (behind a pooler: what the role has), if that is shorter than the time between two
//!   sweeps. And no token is less than the clock, so it would fall only where it had been raised above the
//!   clock, or where the clock was set back.
//! * *Time* is `clock_timestamp()`, taken after the lock; in MySQL that of the statement's beginning, which
//!   judges ends late and counts lives from before.
//! * *Hand-off*: `admit` offers the name to the next in line for what is left of its place, and tells that
//!   client alone (`NOTIFY`); its first renewal confirms. MySQL cannot tell, but wakes one look of
//!   that client: see `mysql/bell.rs`.
//! * *A copy of a request that comes late* finds the tombstone of its abandon, whose making changed the
//!   name's row, so a short statement that waited judges anew.
//! * *Connections* are the backend's own. A pool's costs twice the statement, checks each time whether it is
//!   there, and takes back what somebody dropped half-way: see `direct/pooled.rs`.
//!
//! The other strategies, and which one when, are in `docs/sql.md`.

mod background;
mod call;
mod config;
mod connection;
mod contention;
mod dialect;
mod failure;
mod fencing;
mod gate;
mod keys;
mod lock;
#[cfg(feature = "mysql")]
mod mysql;
mod open;
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
mod renew;
mod rwlock;
mod schema;
mod watch;

pub use config::Config;
