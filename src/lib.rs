// The programs in there run on tokio, and stand in there as a reader would copy them.
#![cfg_attr(feature = "tokio", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "tokio"),
    doc = "Distributed locks with fencing tokens: see [`connect`]."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Its programs are compiled.
#[cfg(all(doctest, feature = "postgres", feature = "mysql", feature = "tokio"))]
#[doc = include_str!("../docs/sql.md")]
mod page {}

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
