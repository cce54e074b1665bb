//! A lock store in the memory of this process: the reference backend.
//!
//! It claims every capability. The simulator and the tests of programs run on it, and other backends are
//! compared with it. Within one process it is a fast lock service without a server.
//!
//! ```text
//! Memory ── the store ("server"), cheap to clone           store.rs
//!   ├─ what all connections share, and how a call runs     shared.rs
//!   ├─ Table: the state machine, no clock, no I/O          table/
//!   ├─ MemoryLock: a client's connection                   connection.rs, lock.rs, and one file per trait
//!   ├─ pushes of grants, streams of changes                wait.rs, watchers.rs
//!   └─ what an operator does to it from outside            operator.rs
//! ```
//!
//! Nothing runs in the background. An expired entry is removed by the next call that touches its name, by a
//! waiter that asks again at the time that its wait gave, or by a watcher, whose stream wakes itself.

mod config;
mod connection;
mod failure;
mod fencing;
mod gate;
mod lock;
mod operator;
mod renew;
mod rwlock;
mod shared;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod wait;
mod watch;
mod watchers;

pub use config::Config;
pub use lock::MemoryLock;
pub use operator::{Sizes, Survives};
pub use shared::Clock;
pub use store::Memory;
