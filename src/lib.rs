// The programs in there run on tokio, and stand in there as a reader would copy them.
#![cfg_attr(feature = "tokio", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "tokio"),
    doc = "Distributed locks with fencing tokens: see [`connect`]."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod backends;
pub mod blocking;
mod connect;
mod quorum;

pub use connect::{Connect, connect, quorum};
pub use dlock_core::*;
/// Locks in Redis.
#[cfg(feature = "redis")]
pub mod redis {
    pub use dlock_redis::*;
}
#[cfg(feature = "sqlite")]
pub use dlock_sql::sqlite;
/// Locks in ZooKeeper.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use dlock_zk::*;
}
