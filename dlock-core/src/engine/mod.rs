//! The engine: all policy, such as waiting, backoff, deadlines, renewal, loss and cancellation. The only code
//! with timers.
//!
//! | file | idea |
//! |---|---|
//! | `core.rs`, `losses.rs` | the shared state: the backend, the runtime, the table of leases and waiters |
//! | `handle.rs` | the handle that users share; the engine ends with the last one |
//! | `acquire.rs` | one acquire, from the first attempt to a guard, and what it owes the store when it is dropped half-way |
//! | `wait.rs` | waiting: pushes, re-asks, polling, the wait limit |
//! | `release.rs` | release, and what it owes the store when it is dropped half-way |
//! | `keeper/` | the one background task: it renews in batches, reports losses on time and meets obligations |
//! | `lease.rs`, `lease_state.rs`, `validity.rs` | a lease as the client knows it; whether and how it ended; its deadline |
//! | `periods.rs` | when a lease is renewed, and until when it may be held |
//! | `ask.rs`, `limit.rs` | one request to the store: its time limit, and when to ask again |
//! | `gate.rs` | the backend's fence gate, with that time limit |
//! | `waiter.rs`, `poller.rs`, `jobs.rs`, `timers.rs`, `place.rs` | what the keeper manages, and its one timer |
//! | `owe.rs` | obligations to the store: when, and for how long; the record of what was done |

mod acquire;
mod ask;
mod convert;
mod core;
mod gate;
mod handle;
mod jobs;
mod keeper;
mod lease;
mod lease_state;
mod limit;
mod losses;
mod owe;
mod periods;
mod place;
mod poller;
mod release;
mod timers;
mod validity;
mod wait;
mod waiter;

pub(crate) use self::acquire::{Ask, Patience, acquire};
pub(crate) use self::convert::convert;
pub(crate) use self::core::{Core, Settings};
pub(crate) use self::handle::Engine;
pub(crate) use self::lease::{Entered, Lease};
pub(crate) use self::lease_state::LeaseState;
pub(crate) use self::release::{drop_lease, release, renew};
