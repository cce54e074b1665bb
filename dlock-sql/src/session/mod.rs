//! Locks that belong to a session of the database: advisory locks of PostgreSQL, `GET_LOCK` of MySQL and
//! MariaDB.
//!
//! A lock is two statements, and no row is written. It is held for as long as its connection lives, and a
//! process that dies loses it at once. The cost: a broken connection loses all its locks, and a pooler that
//! shares sessions cannot be used. Otherwise use the lease strategy.
//!
//! # What it guarantees
//!
//! * *Exclusion*, also between two handles of one client, which are one session to the server.
//! * *A ttl.* The server ends a session that was silent for the ttl (`idle_session_timeout`, `wait_timeout`),
//!   and the client pings it every third of that. A guard's deadline counts from when the last answered
//!   request was *sent*, so if its client is cut off or paused, it expires before the server grants the lock
//!   to another.
//! * *After a restart of the server* no lock is granted before the last guard has passed its deadline, even
//!   that of a client that was cut off: a server that has just started grants nothing for a ttl, unless the
//!   sequence of the tokens was created since. Where clients of one prefix have different ttls, set the
//!   longest one for each (`restart_grace`).
//! * *Tokens* from a sequence of the database, drawn by the holder and not before: they grow with each grant,
//!   and across restarts.
//! * *Nothing stays.* A waiter that gives up is removed from the server's queue (`pg_cancel_backend`, `KILL
//!   QUERY`), and a lock that it was granted at the last moment is released. No slot of a pool is used: the
//!   connections are the backend's own.
//! * *A pooler is detected*: when connecting, by settings of the session that did not arrive; later, by an
//!   answer from another session. Both are `Unsupported`, and in the second case the held locks are reported
//!   lost.
//!
//! # What it does not
//!
//! * *No loss without a gap where a session is ended by force* (`pg_terminate_backend`, `KILL`, a proxy that
//!   closes idle connections, a server's clock that is set forward with PostgreSQL). The server grants the
//!   lock to the next waiter at once, and the holder learns of it a moment later: with PostgreSQL when the
//!   end of its connection arrives, with MySQL at its next ping. Fencing protects against that.
//! * *A client that vanishes while it waits* may be granted the lock within a third of a ttl, and loses it a
//!   ttl later.
//! * *A failover* forgets all such locks, and two primaries do not know each other's. A standby that lagged
//!   behind may issue the last tokens a second time.
//! * *The order* of waiters is roughly that of their arrival. One waiter of each client waits in the server,
//!   anew every third of a ttl.
//! * *Names are hashed*: to 64 bits with PostgreSQL, to 224 with MySQL; `Capabilities::name_hash_bits`
//!   reports it. Two names with one hash are one lock.
//! * Locks are exclusive. There are no readers, permits, priorities, labels, watches, inspection, or forced
//!   release: the server knows of sessions, not of requests and tokens.
//!
//! # How it is made
//!
//! A lock cannot move between sessions. So one shared `connection`, which never blocks, takes locks that are
//! free, and each name that must be waited for gets a connection of its own. The `board`, a state machine
//! without I/O, keeps the requests of one client apart. The token is drawn in the statement that takes the
//! lock. Waits come in turns (`wait`); `handle` has the deadline of a session, and `restart` what a server
//! that has just started does not know.

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
