//! Locks in Redis: one script to acquire, one to release, and a lock that goes from holder to holder inside
//! the release.
//!
//! # What it guarantees
//!
//! On one server, or one master that does not change, and whose wall clock is not set: mutual exclusion;
//! a queue by priority and arrival; waiters are woken by pushes; a loss is reported by the deadline at the
//! latest; and every grant has a larger token than all before it.
//!
//! # What it does not
//!
//! Redis replicates asynchronously, keeps only what it is configured to, and goes by a wall clock. After a
//! failover, a restart, a `FLUSHALL`, or a clock that was set forward, two clients can hold one lock, and
//! only the token tells them apart. `docs/redis.md` has the table, and what helps.
//!
//! # How it works
//!
//! All changes happen in scripts, which Redis runs one at a time. `scripts/state.lua` has the state of a
//! name, and the one `admit` that every change runs. Acquire and release begin with a fast path.
//!
//! * *Hand-off.* `admit` makes the next waiter the holder for a claim window, and pushes the grant to its
//!   client. The first renewal confirms it. The push carries the end of the window by the server's clock,
//!   which [`Anchors`](dlock_core::spi::Anchors) turn into a deadline; so a late push makes a short guard and
//!   never a wrong one. On a cluster, whose masters have a clock each, and with replicas, the waiter asks
//!   instead.
//! * *A waiter that does not answer.* If no push reaches it, it is *away*: it leaves the queue, and keeps its
//!   place until it asks again. If a push reached it and it did not claim, its client is paused: when the
//!   window is over, all waiters of that client are away. Redis has no timer, so the client that caused the
//!   push looks after it.
//! * *Tokens* are the server's time in microseconds or the last token plus one, whichever is larger, for 256
//!   buckets of names. They are text: Lua's numbers are doubles.
//! * *Many requests at once* go out as one script, which reads all keys and the clock once
//!   (`connection/server/together.rs`). A single request goes at once, and unchanged.
//! * *A script that is stopped halfway* is not rolled back. So its first write is one that the server refuses
//!   if it would refuse any, and a conversion that was refused later is `Unknown`.
//! * *Layouts* have a version, in each value. A client that meets a newer one refuses.

mod backend;
mod config;
mod connection;
mod diagnosis;
mod failure;
mod fencing;
mod gate;
mod handoff;
mod keys;
mod listing;
mod lock;
mod plain;
mod renew;
mod replicas;
mod reply;
mod rwlock;
mod scripts;
mod wait;
mod watch;

pub use self::config::Config;
pub use self::connection::members::Members;
pub use self::lock::RedisLock;
pub use self::plain::PlainLock;
/// The driver, for [`Config::from_client`].
pub use redis;
