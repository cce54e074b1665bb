//! All policy: waiting, backoff, deadlines, renewal, loss, cancellation. The only code with timers.
//!
//! | file | idea |
//! |---|---|
//! | `core.rs`, `losses.rs` | what is shared: the backend, the runtime, the table of what is held and waited for |
//! | `handle.rs` | what users hold; with the last of them the engine ends |
//! | `acquire.rs` | one acquire from the first attempt to a guard, and what is owed when it is dropped half-way |
//! | `wait.rs` | being in line: pushes, re-asks, polling, the wait limit |
//! | `release.rs` | letting go, and what is owed when that is dropped half-way |
//! | `keeper/` | the one background task: renewals in batches, losses on time, obligations until they are met |
//! | `lease.rs`, `lease_state.rs`, `validity.rs` | a lease as the client knows it; whether and how it ended; until when it may be believed |
//! | `periods.rs` | when a lease is renewed, and until when it may be held |
//! | `ask.rs`, `limit.rs` | one request to the store: its time limit, and when to ask again |
//! | `gate.rs` | the backend's fence gate, with that time limit |
//! | `waiter.rs`, `poller.rs`, `jobs.rs`, `timers.rs`, `place.rs` | what the keeper looks after, and its one timer |
//! | `owe.rs` | what is owed to the store, when, and for how long; and what is noted when it is paid |

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
