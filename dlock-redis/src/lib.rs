//! Locks in Redis: one script to acquire, one to release, and a lock that goes from holder to holder inside
//! the release.
//!
//! # What it guarantees
//!
//! On one server, or one master that does not change, whose wall clock is not set: no two holders at a time;
//! a queue by priority and arrival; a waiter is told of its turn by a push; a loss is told by the deadline at
//! the latest; and every grant has a larger token than all before it.
//!
//! # What it does not
//!
//! Redis replicates asynchronously, forgets what it was not told to keep, and goes by a wall clock. After a
//! failover, a restart, a `FLUSHALL` or a clock that was set forward, two clients can believe in one lock,
//! and the token alone tells them apart. `docs/redis.md` has the table, and what helps.
//!
//! # How it works
//!
//! Everything that matters happens in scripts, which Redis runs one at a time. `scripts/state.lua` has the
//! state of a name, and the one `admit` that every change runs. Acquire and release begin with a fast path.
//!
//! * *Hand-off.* `admit` makes the next in line the holder and tells its client by a push, for a claim
//!   window. The first renewal confirms it. The push carries the end of the window by the server's clock,
//!   which [`Anchors`](dlock_core::spi::Anchors) turn into a deadline; so a push that is late makes a short
//!   guard and never a wrong one. On a cluster, whose masters have a clock each, and with replicas, the
//!   waiter asks instead.
//! * *A waiter that does not answer.* One that no push reaches is *away*: out of the line, with its place
//!   kept, until it asks again. One that was reached and did not claim is stopped: when the window is over,
//!   all that its client waits for is away. Redis has no timer, so the client that caused the push comes by.
//! * *Tokens* are the server's time in microseconds or the last one and one more, whichever is larger, for
//!   256 buckets of names. As text: Lua's numbers are doubles.
//! * *Many requests at once* go out as one script, which looks at all keys and at the clock once
//!   (`connection/server/together.rs`). A request alone goes at once, and as it is.
//! * *A script that is stopped halfway* is not rolled back. So its first write is one that is refused where
//!   any may be, and a conversion that was refused later is `Unknown`.
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
