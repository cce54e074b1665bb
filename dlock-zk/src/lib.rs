//! Locks in ZooKeeper: a queue of ephemeral nodes, one request to join it, one to leave it, and only the next
//! waiter is woken. [`Config`] connects.
//!
//! # What it guarantees
//!
//! * *Exclusion* by the order in which ZooKeeper created the nodes of a queue, on which all servers agree. A
//!   guard expires by its own clock before any server gives its lock away, even if the client hears nothing:
//!   as long as clocks run at the same speed within the drift margin, and a tick of the servers is at most a
//!   sixth of the session timeout.
//! * *First come, first served*, for all modes. A waiter watches the node in front of it, and a release wakes
//!   one client; or, for permits, as many waiters as there are permits, one of which is admitted.
//! * *Tokens* are the transaction ids (czxid) of the nodes. They grow with each grant of a name for as long
//!   as the ensemble keeps its data.
//! * *Nothing stays.* All nodes of a client go with its session. A queue is a container, which the server
//!   removes when it is empty.
//!
//! # What it does not
//!
//! * A client that was paused past its session may still write: fencing tokens and the
//!   [gate](dlock_core::FenceGate) protect against that.
//! * There are no priorities, no upgrade and no minimum hold. [Unfair](Config::unfair) locks and those in the
//!   layout of [Curator](Layout::Curator) are exclusive only. What is missing answers `Unsupported` before
//!   anything is sent.
//!
//! # How it works
//!
//! ZooKeeper only numbers the nodes. Each client reads the holder from the list of a queue, and all come to
//! the same result. The entries in front of an entry only become fewer, so an old list costs a wait and never
//! hides a holder. That is also why there is no upgrade: it would have to pass the waiters.

mod access;
mod config;
mod connect;
mod connection;
mod deadline;
mod diagnosis;
mod failure;
mod fencing;
mod force_release;
mod gate;
mod join;
mod keys;
mod layout;
mod line;
mod listing;
mod lock;
mod node;
mod ping;
mod renew;
mod requests;
mod rwlock;
mod session;
mod unfair;
mod wait;
mod watch;
mod watch_budget;

pub use self::access::Access;
pub use self::config::Config;
pub use self::layout::Layout;
pub use self::lock::ZkLock;
