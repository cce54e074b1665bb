//! Locks in etcd: a transaction to join a queue of keys, a deletion to leave it, and only the next waiter is
//! woken. [`Config`] connects.
//!
//! Building this crate needs `protoc` and Google's protocol files, since its driver compiles etcd's own: on
//! Debian and Ubuntu the packages `protobuf-compiler` and `libprotobuf-dev`, elsewhere `protobuf`.
//!
//! # What it guarantees
//!
//! * *Exclusion* by the order of etcd's revisions, on which a majority of its members agrees. A guard expires
//!   by its own clock before any member gives its lock away, even if the client hears nothing, as long as
//!   clocks run at the same speed within the drift margin.
//! * *First come, first served*, for all modes. A waiter watches the key in front of it, and a release wakes
//!   one client; or, for permits, as many waiters as there are permits, one of which is admitted.
//! * *Tokens* are revisions of the cluster. They grow with each grant for as long as a majority keeps its
//!   data.
//! * *Nothing stays.* All keys of a client go with its lease.
//! * *Go's locks take part*: `etcdctl lock` and the `Mutex` and `Election` of etcd's own client exclude, and
//!   are excluded, on the same keys.
//!
//! # What it does not
//!
//! * A client that was paused past its lease may still write: fencing tokens and the
//!   [gate](dlock_core::FenceGate) protect against that.
//! * A cluster that was restored from a snapshot counts revisions from there: tokens go back.
//! * There are no priorities, no upgrade and no minimum hold. They answer `Unsupported` before anything is
//!   sent.
//!
//! Failures, set-up, operation and costs: [`docs/etcd.md`].
//!
//! [`docs/etcd.md`]: https://github.com/dlock-rs/dlock/blob/main/docs/etcd.md

mod channel;
mod config;
mod connect;
mod connection;
mod deadline;
mod diagnosis;
mod failure;
mod fencing;
mod force_release;
mod gate;
mod holders;
mod join;
mod keys;
mod line;
mod link;
mod listing;
mod lock;
mod renew;
mod requests;
mod rwlock;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod upkeep;
mod wait;
mod watch;
mod watches;

pub use self::config::Config;
pub use self::lock::EtcdLock;
