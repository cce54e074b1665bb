//! Distributed locks with fencing tokens, over the stores that you already run.
//!
//! One API for locks, read-write locks, semaphores and leader election, on memory, SQLite, PostgreSQL, MySQL
//! and MariaDB, Redis, ZooKeeper and etcd; on tokio, smol and async-std, or without async.
//!
//! # Quick start
//!
//! ```
//! # #[cfg(feature = "tokio")] #[tokio::main]
//! # async fn main() -> dlock::Result<()> {
//! let client = dlock::connect("memory://").await?; // or sqlite://locks.db, redis://host ...
//! let guard = client.lock("stock/42")?.acquire().await?;
//! println!("held for {:?} more, with token {:?}", guard.remaining(), guard.token());
//! // ... the work; the lock is renewed meanwhile ...
//! guard.release().await?;
//! client.close().await
//! # }
//! # #[cfg(not(feature = "tokio"))] fn main() {}
//! ```
//!
//! [`connect`] lists the URLs of all stores. To run a body under a lock and cancel it when the lock is lost,
//! use [`Lock::with`]; to try without waiting, [`Lock::try_acquire`]; to limit the wait,
//! [`Lock::acquire_timeout`].
//!
//! # Three ideas
//!
//! **A guard has a deadline.** A lock is a *lease*: the store frees it at most one ttl after its holder
//! vanished. The client renews it in the background. A [`Guard`] knows the [`deadline`](Guard::deadline) up
//! to which the lease is certain, counted from before the request was sent, and [`is_valid`](Guard::is_valid)
//! reads the clock.
//!
//! **A lock can be lost.** If the process is paused or cut off for longer than the ttl, the lease ends while
//! the guard exists. [`Guard::lost`] is a future that completes at the deadline at the latest, and
//! [`LossReason`] says why. [`Lock::with`] and [`Election::lead`] cancel the work. A lost guard is never
//! valid again.
//!
//! **A token makes a late write harmless.** A paused process does not know that its lease is over, so its
//! next write may come after that of a newer holder. A grant has a fencing [`Token`]; that of an exclusive
//! grant is larger than all before it. A [`Gate`] checks the token and writes in one step, and refuses an
//! older token:
//!
//! ```
//! # #[cfg(feature = "tokio")] #[tokio::main]
//! # async fn main() -> dlock::Result<()> {
//! # let client = dlock::connect("memory://").await?;
//! let guard = client.lock("report")?.acquire().await?;
//! let token = guard.token().expect("this store has tokens");
//! let admission = client.gate()?.write("report.json", token, b"{}").await?;
//! assert!(admission.is_admitted());
//! # Ok(()) }
//! # #[cfg(not(feature = "tokio"))] fn main() {}
//! ```
//!
//! If the data is in a SQL database, the token can be checked in your own transaction instead (module
//! `direct`).
//!
//! # What to use
//!
//! | to | use |
//! |---|---|
//! | connect | [`connect`] or [`quorum()`], which return a [`Connect`]; [`blocking`] for threads; the result is a [`Client`]. [`Client::builder`], a [`ClientBuilder`], takes any backend, such as a [`Memory`] |
//! | let one in at a time | [`Client::lock`] with a [`LockName`]: a [`Lock`], whose [`Guard`] holds it; a [`Held`] shows it to the work |
//! | let many readers in, or one writer | [`Client::rwlock`], an [`RwLock`]; [`Guard::downgrade`] and [`Guard::try_upgrade`], an [`Upgrade`] |
//! | let `n` in at a time | [`Client::semaphore`], a [`Semaphore`], a [`Permit`] |
//! | have one leader | [`Client::election`], an [`Election`], a [`Leadership`] |
//! | hold several locks, all or none | [`combinators::MultiLock`] |
//! | set ttl, limits, renewal, priority | [`LockOptions`], [`AutoRenew`], [`Drift`] |
//! | acquire a lock again while holding it | [`Lock::reentrant`] with an [`Owner`] |
//! | learn of a loss | [`Guard::lost`], a [`LossReason`]; [`Guard::events`], a stream [`GuardEvents`] of [`GuardEvent`]s; deadlines are [`Timestamp`]s |
//! | protect data from a late holder | a [`Token`]; [`Client::gate`], a [`Gate`], with [`Access`], [`Admission`] and [`FencedValue`] |
//! | handle errors | [`Error`], [`ErrorKind`], [`Result`]; [`Error::is_retryable`], [`Error::may_be_held`] |
//! | see who holds a lock | [`Client::inspect`], an [`Inspection`] of [`Holder`]s with their [`RequestId`]s; [`Client::watch`], a stream of [`Change`]s; [`Client::list`] |
//! | operate a store | [`Client::diagnose`], with [`Finding`]s of a [`Severity`]; [`Client::force_release`] |
//! | log and measure | [`observe`] |
//! | know what a store can do | [`Client::capabilities`]: [`Capabilities`], [`Capability`], [`Nature`], [`Strength`] |
//! | share or combine stores | [`combinators`]: namespaces, shards, quorums |
//! | choose or write an async runtime | [`runtime`], [`Runtime`] |
//! | write a backend | [`spi`]; [`FenceGate`], [`Mode`]; guards are of the class [`ReadWrite`] or [`Permits`] |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` (default), `smol`, `async-std` | the async [`runtime`]; one of them is needed |
//! | `sqlite` (default) | `sqlite://` |
//! | `postgres`, `mysql` | `postgres://`, `mysql://`: modules `lease`, `session`, `direct` |
//! | `redis`, `redis-sentinel`, `redis-cluster` | `redis://`, `redis+sentinel://`, `redis+cluster://` |
//! | `zookeeper` | `zk://` |
//! | `etcd` | `etcd://` (its build needs `protoc`) |
//! | `sql-tls`, `redis-tls`, `zookeeper-tls`, `etcd-tls` | TLS to these stores |
//! | `zookeeper-sasl` | logging in to ZooKeeper by SASL |
//! | `tracing`, `metrics` | [`observe`]: spans and events, metrics |
//!
//! The [`memory`] backend is always there. The store modules of this build:
//!
//! * [`memory`]
#![cfg_attr(feature = "sqlite", doc = "* [`sqlite`]: a SQLite file")]
#![cfg_attr(
    any(feature = "postgres", feature = "mysql"),
    doc = "* [`lease`] and [`session`]: PostgreSQL, MySQL and MariaDB"
)]
#![cfg_attr(
    any(feature = "sqlite", feature = "postgres", feature = "mysql"),
    doc = "* [`direct`]: locked rows, versions and the fence gate inside your own SQL transactions"
)]
#![cfg_attr(feature = "redis", doc = "* [`redis`]: Redis and Valkey")]
#![cfg_attr(feature = "zookeeper", doc = "* [`zookeeper`], for ZooKeeper")]
#![cfg_attr(feature = "etcd", doc = "* [`etcd`], for etcd")]
//!
//! # Where next
//!
//! * [Getting started], [guarantees] and [operating], with settings and alarms.
//! * [Choosing a backend], and a chapter for each.
//! * The [program `dlock`], for shell scripts and cron jobs.
//!
//! [Getting started]: https://github.com/dlock-rs/dlock/blob/main/docs/getting-started.md
//! [guarantees]: https://github.com/dlock-rs/dlock/blob/main/docs/guarantees.md
//! [operating]: https://github.com/dlock-rs/dlock/blob/main/docs/operating.md
//! [Choosing a backend]: https://github.com/dlock-rs/dlock/blob/main/docs/choosing-a-backend.md
//! [program `dlock`]: https://github.com/dlock-rs/dlock/blob/main/docs/command-line.md
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Its programs are compiled and run.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// As above.
#[cfg(all(doctest, feature = "postgres", feature = "mysql", feature = "tokio"))]
#[doc = include_str!("../docs/sql.md")]
mod page {}

/// As above.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/getting-started.md")]
mod getting_started {}

/// As above.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/election.md")]
mod election {}

/// As above.
#[cfg(all(doctest, feature = "postgres", feature = "sqlite", feature = "tokio"))]
#[doc = include_str!("../docs/fencing.md")]
mod fencing {}

/// As above. The simulator is there with the conformance kit, which the tests depend on.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/testing-with-dlock.md")]
mod testing_with_dlock {}

/// As above.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/troubleshooting.md")]
mod troubleshooting {}

/// As above.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../docs/migrating.md")]
mod migrating {}

/// As above.
#[cfg(all(doctest, feature = "metrics", feature = "tokio"))]
#[doc = include_str!("../docs/operating.md")]
mod operating {}

mod backends;
pub mod blocking;
mod connect;
mod quorum;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

pub use connect::{Connect, connect, quorum};
pub use dlock_core::*;
/// Locks in etcd.
#[cfg(feature = "etcd")]
pub mod etcd {
    pub use dlock_etcd::*;
}
/// Locks in Redis.
#[cfg(feature = "redis")]
pub mod redis {
    pub use dlock_redis::*;
}
/// Locking by hand, inside your own transactions and rows.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use dlock_sql::direct;
/// Leases in rows of a database server.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use dlock_sql::lease;
/// Locks that live as long as a session with a database server.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use dlock_sql::session;
#[cfg(feature = "sqlite")]
pub use dlock_sql::sqlite;
/// Locks in ZooKeeper.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use dlock_zk::*;
}
