//! Distributed locks with fencing tokens, over the stores that you already run.
//!
//! # All that there is
//!
//! | for | there is |
//! |---|---|
//! | opening | [`connect`] and [`quorum()`] give a [`Connect`]: [`runtime`](Connect::runtime), [`defaults`](Connect::defaults), [`op_timeout`](Connect::op_timeout), [`blocking`](Connect::blocking), `.await`. From a backend: [`Client::builder`], a [`ClientBuilder`]; [`Memory`] is one |
//! | a [`Client`] | [`lock`](Client::lock), [`rwlock`](Client::rwlock), [`semaphore`](Client::semaphore), [`election`](Client::election), [`owner`](Client::owner), [`gate`](Client::gate); for operators [`inspect`](Client::inspect), [`watch`](Client::watch), [`list`](Client::list), [`diagnose`](Client::diagnose), [`force_release`](Client::force_release); [`capabilities`](Client::capabilities), [`runtime`](Client::runtime), [`backend`](Client::backend), [`blocking`](Client::blocking); [`close`](Client::close), [`abort`](Client::abort) |
//! | a [`Lock`], an [`RwLock`], a [`Semaphore`] | [`acquire`](Lock::acquire), [`acquire_timeout`](Lock::acquire_timeout), [`try_acquire`](Lock::try_acquire), [`with`](Lock::with); [`options`](Lock::options), [`name`](Lock::name), [`mode`](Lock::mode); [`read`](RwLock::read) and [`write`](RwLock::write); [`permits`](Semaphore::permits) |
//! | names, options | [`LockName`]; [`LockOptions`] with [`AutoRenew`] and [`Drift`]; [`reentrant`](Lock::reentrant) for an [`Owner`]; a [`Mode`], of the class [`ReadWrite`] or [`Permits`] |
//! | a [`Guard`], a [`Permit`] | [`release`](Guard::release) or drop; [`token`](Guard::token), [`deadline`](Guard::deadline), [`remaining`](Guard::remaining), [`is_valid`](Guard::is_valid), [`ttl`](Guard::ttl), [`name`](Guard::name), [`id`](Guard::id), [`mode`](Guard::mode); [`lost`](Guard::lost), [`loss`](Guard::loss), [`events`](Guard::events); [`renew`](Guard::renew); [`held`](Guard::held), a [`Held`]; a guard's [`downgrade`](Guard::downgrade), [`try_upgrade`](Guard::try_upgrade) |
//! | what these tell | [`Timestamp`], [`RequestId`], [`LossReason`], [`Upgrade`], [`GuardEvents`] of [`GuardEvent`] |
//! | an [`Election`] | [`campaign`](Election::campaign) gives a [`Leadership`]: all of a [`Held`], and [`resign`](Leadership::resign), [`step_down`](Leadership::step_down); [`lead`](Election::lead) does both for as long as it takes; [`leader`](Election::leader), [`observe`](Election::observe); [`value`](Election::value), [`options`](Election::options), [`name`](Election::name) |
//! | fencing | [`Token`], [`Strength`]; a [`Gate`]: [`admit`](Gate::admit), [`write`](Gate::write), [`read`](Gate::read), any [`FenceGate`](Gate::as_dyn); [`Access`], [`Admission`], [`FencedValue`], [`FenceGate`] |
//! | looking on | [`Inspection`] of [`Holder`]s, [`Change`]; a [`Finding`] of some [`Severity`]; [`observe`]: tracing and metrics |
//! | what failed | [`Error`]: [`kind`](Error::kind), [`is_retryable`](Error::is_retryable), [`may_be_held`](Error::may_be_held), [`loss_reason`](Error::loss_reason), [`name`](Error::name); [`ErrorKind`], [`Result`] |
//! | what a store can | [`Capabilities`], [`Capability`], [`Nature`] |
//! | several at once | [`combinators`]: [`MultiLock`](combinators::MultiLock) with its [`MultiGuard`](combinators::MultiGuard), [`Namespaced`](combinators::Namespaced), [`Sharded`](combinators::Sharded) over [`Shard`](combinators::Shard)s, [`Quorum`](combinators::Quorum) |
//! | threads that block | [`blocking`]: [`connect`](blocking::connect), and all above |
//! | async runtimes | [`runtime`]: [`detect`](runtime::detect), [`yield_now`](runtime::yield_now), one adaptor for each feature; [`Runtime`] |
//! | the stores | [`memory`], always there |
#![cfg_attr(feature = "sqlite", doc = "| | [`sqlite`] |")]
#![cfg_attr(
    any(feature = "postgres", feature = "mysql"),
    doc = "| | [`lease`] and [`session`], in PostgreSQL, MySQL and MariaDB |"
)]
#![cfg_attr(
    any(feature = "sqlite", feature = "postgres", feature = "mysql"),
    doc = "| | [`direct`]: locking by hand in SQL, inside your own transactions |"
)]
#![cfg_attr(feature = "redis", doc = "| | [`redis`] |")]
#![cfg_attr(feature = "zookeeper", doc = "| | [`zookeeper`] |")]
#![cfg_attr(feature = "etcd", doc = "| | [`etcd`] |")]
//! | a store of your own | [`spi`] |
//!
// The programs in there run on tokio, and stand in there as a reader would copy them.
#![cfg_attr(feature = "tokio", doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Its programs are compiled.
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
