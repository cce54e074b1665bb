//! Locks that hang on a session of the database: advisory locks of PostgreSQL, `GET_LOCK` of MySQL and
//! MariaDB.
//!
//! A lock is two statements, and no row is written. It is held for as long as its connection lives, and a
//! process that dies loses it at once. The cost: a broken connection loses all its locks, and a pooler that
//! shares sessions cannot be used. Otherwise use the lease strategy.
//!
//! # What it guarantees
//!
//! * *Exclusion*, also between two handles of one client, which to the server are one session.
//! * *A ttl.* The server ends a session that it has heard nothing of for the ttl (`idle_session_timeout`,
//!   `wait_timeout`), and is asked every third of that. A guard counts from when the last request that was
//!   answered had been *sent*, so it stops being valid before the server lets anybody else in, if its client
//!   is cut off or stands still.
//! * *A restart of the server* lets nobody in before the last guard is over by its own deadline, also that of
//!   a client that was cut off: a server that has just started grants nothing for a ttl, unless the sequence
//!   of the tokens was made since. Where clients of one prefix have different ttls, each is to be told the
//!   longest one (`restart_grace`).
//! * *Tokens* from a sequence of the database, drawn by the holder and not before: they grow with each grant,
//!   and across restarts.
//! * *Nothing stays.* A waiter that gives up is taken out of the server's queue (`pg_cancel_backend`, `KILL
//!   QUERY`), and what it was let in to at the last moment is given back. No slot of a pool is used, for the
//!   connections are the backend's own.
//! * *A pooler is found out*: at the start, by settings of the session that did not arrive; later, by an
//!   answer of another session. Both are `Unsupported`, and in the second case what was held is told as lost.
//!
//! # What it does not
//!
//! * *No loss without a gap where a session is ended by force* (`pg_terminate_backend`, `KILL`, a proxy that
//!   closes idle connections, a server's clock that is set forward with PostgreSQL). The server lets the next
//!   one in at that moment, and the holder learns of it a moment later: with PostgreSQL when the end of its
//!   connection arrives, with MySQL at its next ping. The fence is for that.
//! * *A client that vanishes while it waits* may be let in within a third of a ttl, and is found out a ttl
//!   later.
//! * *A fail-over* forgets all such locks, and two primaries know nothing of one another's. A standby that
//!   was not in step may give out the last tokens a second time.
//! * *The order* of those who wait is roughly that of their coming. One of each client waits at the server,
//!   anew every third of a ttl.
//! * *Names are hashed*: to 64 bits with PostgreSQL, to 224 with MySQL; `Capabilities::name_hash_bits` says
//!   so. Two names of one hash are one lock.
//! * Locks are exclusive. There are no readers, permits, priorities, labels, watches, inspection, or forced
//!   release: the server knows of sessions, not of requests and tokens.
//!
//! # How it is made
//!
//! A lock cannot move between sessions, so one shared `connection`, which never blocks, is for what was free
//! when it was asked for, and one for each name that has to be waited for. The `board`, a state machine
//! without I/O, keeps the requests of one client from one another. The token is drawn in the statement that
//! takes the lock. Waits come in turns (`wait`); until when a session is believed in is told in `handle`, and
//! what a server that has just started does not know in `restart`.

mod board;
mod config;
mod connection;
mod dialect;
mod failure;
mod handle;
mod keys;
mod lock;
#[cfg(feature = "mysql")]
pub mod mysql;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
mod renew;
mod restart;
#[cfg(test)]
mod tests;
mod wait;

pub use self::config::Config;
pub use self::lock::SessionLock;
