//! A lock store in the memory of this process: the reference backend.
//!
//! It claims every capability, so it is what the simulator and the tests of programs run on, and what other
//! backends are compared with. Within one process it is also a lock service of its own, fast and with no
//! server to run.
//!
//! ```text
//! Memory ── the store ("server"), cheap to clone           store.rs
//!   ├─ what all connections share, and how a call runs     shared.rs
//!   ├─ Table: the state machine, no clock, no I/O          table/
//!   ├─ MemoryLock: what a client of it has                 connection.rs, lock.rs, and each other trait
//!   ├─ who is pushed a grant, who is told of changes       wait.rs, watchers.rs
//!   └─ what an operator does to it from outside            operator.rs
//! ```
//!
//! Nothing runs in the background: what runs out is taken back by the next call that touches its name, by a
//! waiter that asks again when the wait told it to, or by a watcher, whose stream wakes itself.

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
