//! Locks as leases in rows of a database server: PostgreSQL, MySQL and MariaDB.
//!
//! A lease is a row with an expiry by the clock of the database. It depends on no connection: a broken one
//! loses nothing, and a pooler may be in between. Each change of a name is one statement or one transaction
//! that has locked the name's row, so no client sees it half-done.
//!
//! | | PostgreSQL | MySQL, MariaDB |
//! |---|---|---|
//! | an uncontended exclusive lock | one statement to acquire it, one to release it | the same |
//! | under contention | the same, by a function of the database | a short transaction |
//! | the next waiter learns of it | by `NOTIFY`, sent to it alone; by polling behind a pooler | by polling |
//!
//! The backend makes its own connections, with your pool's options; waiters have none. Tokens grow across
//! release, expiry, restart, and the deletion of unused names. An unused name costs nothing; one that was
//! used in the last minutes keeps a row of some 150 bytes.
//!
//! A server clock that is set forward ends leases early; then only the fence protects writes
//! (`clock_sensitive`). `postgres`, `mysql` and `docs/sql.md` say what else is not promised, and what differs
//! between servers.
//!
//! # How it is made
//!
//! The common part is written once, for a `Dialect`, which has the differences.
//!
//! * *One row for each name is locked first* by every change, and says whether there is anything in `entry`
//!   (`others`): the fast paths rely on that row alone. A condition that read rows of another table would see
//!   them as they were before it waited for the lock, and admit a reader and a writer together.
//! * *The queue is in a second table*: in the name's row, a thousand waiters would rewrite a hundred
//!   kilobytes each time.
//! * *Tokens* are the last one and one more, or the server's clock in microseconds, in the name's row and
//!   under its lock. A sequence would be drawn *before* the row is locked: A draws 5 and waits, B draws 6,
//!   holds and releases, A is granted 5.
//! * *A name that is deleted and made anew* must begin above its last token. Each sweep raises a floor, and a
//!   name goes only if the floor was above its token by the sweep *before*. A statement that makes a row
//!   reads the floor and the clock as it begins: for a token to fall, that statement would have to have begun
//!   before the end of that sweep and not yet have found its row, which nothing does that waits for no longer
//!   than `lock_wait` (behind a pooler: what the role has), if that is shorter than the time between two
//!   sweeps. And no token is less than the clock, so it would fall only where it had been raised above the
//!   clock, or where the clock was set back.
//! * *Time* is `clock_timestamp()`, taken after the lock; in MySQL that of the statement's beginning, which
//!   judges ends late and counts lives from before.
//! * *Hand-off*: `admit` offers the lock to the next waiter for the rest of its queue lease, and notifies
//!   only that client (`NOTIFY`); its first renewal confirms. MySQL has no notifications, but a release makes
//!   that client poll: see `mysql/bell.rs`.
//! * *A late copy of a request* finds the tombstone of its abandon. Making that changed the name's row, so a
//!   fast path that waited judges anew.
//! * *Connections* are the backend's own. A pool's connection doubles the cost of a statement, is checked at
//!   each use, and may be returned half-way through a statement: see `direct/pooled.rs`.
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
