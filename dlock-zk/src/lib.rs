//! Locks in ZooKeeper: a line of ephemeral nodes, one request to join it, one to leave it, and nobody woken
//! but who is next. [`Config`] connects.
//!
//! # What it guarantees
//!
//! * *Exclusion* by the order in which ZooKeeper made the nodes of a line, which all its servers agree on. A
//!   guard stops being valid by its own clock before any server gives its lock away, also if nothing is heard
//!   from anybody: as long as clocks run at the same speed within the drift margin, and a tick of the servers
//!   is no longer than a sixth of the session timeout.
//! * *First come, first served*, for all modes. Whoever waits watches the one in front of it, and a release
//!   wakes one client; or, of permits, as many waiters as there are permits, of whom one is let in.
//! * *Tokens* are the transaction ids (czxid) of the nodes. They grow with each grant of a name for as long
//!   as the ensemble keeps its data.
//! * *Nothing stays.* All nodes of a client go with its session. A line is a container, which the server
//!   removes when it is empty.
//!
//! # What it does not
//!
//! * A client that was stopped past its session may still write: for that there are tokens and the
//!   [gate](dlock_core::FenceGate).
//! * There are no priorities, no upgrade and no minimum hold. [Unfair](Config::unfair) locks and those in the
//!   layout of [Curator](Layout::Curator) are exclusive alone. All these answer `Unsupported` before anything
//!   is sent.
//!
//! # How it works
//!
//! All that ZooKeeper does for a lock is to number nodes. Who has the lock each client reads from the list of
//! a line, and all come to the same end. What stands before an entry only becomes less, so a list that is old
//! costs a wait and never hides anybody. That is also why there is no upgrade: it would come in front of
//! those who wait.

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
