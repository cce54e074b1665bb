//! A lock store in the memory of this process: the reference backend.
//!
//! It claims every capability, so it is what the simulator and the tests of programs run on, and what other
//! backends are compared with. Within one process it is also a lock service of its own, fast and with no
//! server to run.
//!
//! ```text
//! Memory ── the store ("server"), cheap to clone      store.rs
//!   ├─ what all links share, and how a call runs      shared.rs
//!   ├─ Table: the state machine, no clock, no I/O     table/
//!   ├─ MemoryLink: one client's connection            link.rs
//!   ├─ the stream of changes                          watch.rs
//!   ├─ MemoryGate: the fence gate                     gate.rs
//!   └─ what an operator does to it from outside       operator.rs
//! ```
//!
//! Nothing runs in the background: what runs out is taken back by the next call that touches its name, by a
//! waiter that asks again when the wait told it to, or by a watcher, whose stream wakes itself.

mod gate;
mod link;
mod operator;
mod shared;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod watch;

pub use gate::MemoryGate;
pub use link::MemoryLink;
pub use shared::Clock;
pub use store::{Memory, MemoryBuilder, Sizes, Survives};
