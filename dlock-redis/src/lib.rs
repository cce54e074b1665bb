//! Locks in Redis: one script to acquire, one to release, and a lock that goes from holder to holder inside the release.
//!
//! # What it guarantees
//!
//! See [`RedisLock`].

mod address;
mod apart;
#[cfg(feature = "cluster")]
mod cluster;
mod connection;
mod failure;
mod fencing;
mod gate;
mod keys;
mod link;
mod listening;
mod lock;
mod open;
mod plain;
mod pushes;
mod rejoin;
mod renew;
mod replicas;
mod reply;
mod rwlock;
mod scripts;
#[cfg(feature = "sentinel")]
mod sentinels;
mod server;
mod single;
mod tending;
mod watch;
mod way;

pub use self::address::single_server;
pub use self::apart::Apart;
pub use self::lock::RedisLock;
pub use self::open::Builder;
pub use self::plain::PlainLock;
/// The driver, for [`Builder::open_client`] and [`Builder::open_plain_client`].
pub use redis;
