//! Locks in ZooKeeper: a line of ephemeral nodes, one request to join it, one to leave it, and nobody woken but who is next.
//!
//! # What it guarantees
//!
//! See [`ZkLock`].

mod acl;
mod address;
mod connection;
mod end;
mod enter;
mod entries;
mod failure;
mod fencing;
mod forced;
mod gate;
mod hand;
mod leave;
mod life;
mod line;
mod lock;
mod open;
mod paths;
mod plain;
mod priority;
mod question;
mod remains;
mod renew;
mod requests;
mod rwlock;
mod session;
mod single;
mod tombstones;
mod waiting;
mod watch;
mod watches;

pub use self::lock::ZkLock;
pub use self::open::{Access, Builder, Layout};

/// How ZooKeeper is opened in another way than by [`ZkLock::open`].
pub fn builder() -> Builder {
    Builder::default()
}
