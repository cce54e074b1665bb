//! The service provider interface: what a backend implements.
//!
//! A backend is mechanism only and does one thing per call. It never waits for a lock, never retries, has no
//! timer for a lease, and makes no policy: the engine queues, waits, backs off, renews, times out and cleans
//! up. A backend spawns only the upkeep of its own connection, on the [`Runtime`](crate::Runtime) that it is
//! given.
//!
//! There are five traits. Every backend implements [`Lock`]. The other four are *parts*, which a backend
//! returns from methods of that trait. Capabilities that follow from a part need not be claimed: see
//! [`capabilities_of`].
//!
//! | trait | what it adds |
//! |---|---|
//! | [`Lock`] | `attempt`, `release`, `abandon`, and `signals` of the session or connection |
//! | [`RwLock`] | `convert`: downgrade and upgrade in place (the shared *modes* themselves are part of [`Acquire`]) |
//! | [`Fencing`] | the strength of the tokens, the fence gate, and `raise` |
//! | [`Watch`] | the stream of changes, `inspect`, `force_release`, `list` |
//! | [`Renew`] | renewal of leases and queue entries, many in one call |
//!
//! Requests and replies are `#[non_exhaustive]` and have public constructors, so that they can grow. Types
//! that programs see as well, such as [`Inspection`](crate::Inspection) and [`FenceGate`](crate::FenceGate),
//! are at the root of the crate.
//!
//! # What every backend promises
//!
//! 1. **Idempotence.** A request is named by its [`LeaseKey`]. Sending it twice has the effect of sending it
//!    once: a second `attempt` of a granted key returns the same grant with its *remaining* life; `release`
//!    and `abandon` of something that is gone say so and touch nothing else.
//! 2. **Nothing outlives its abandon.** After `abandon` of a key there is no grant and no queue entry of that
//!    key, and an `attempt` of it that arrives late is refused, as after a `release`. For that the store
//!    keeps a tombstone for as long as such a message can be in transit.
//! 3. **`counted_from` is early enough.** The [`Timestamp`](crate::Timestamp) in a [`Grant`] or [`Renewal`]
//!    was taken before the request was sent, so that `counted_from + expires_in` is never later than the end
//!    of the lease in the store.
//! 4. **One admission rule**, applied by every change: see [`Mode`](crate::Mode). [`admission`] is that rule
//!    in Rust.
//! 5. **Typed outcomes.** `Unavailable` means that nothing took effect. If that is not certain, the error is
//!    `Unknown`.
//! 6. **The future of a call may be dropped at any poll.** The connection stays usable. The request may or
//!    may not take effect, and the engine abandons it.
//! 7. **A call sends its request once.** If a driver resends an `attempt`, for example after a reconnect, a
//!    lock that was given back in between may be granted again. Only the engine may ask again, since it knows
//!    what it has abandoned. ([`Unanswered::note`] says what a backend must do if its driver resends.)

mod acquire;
pub mod admission;
mod anchors;
mod claims;
mod fencing;
mod key;
mod line;
mod lock;
mod plain_name;
mod pushes;
mod release;
mod renew;
mod rwlock;
mod signal;
mod together;
mod tombstones;
mod unanswered;
mod url;
mod wait;
mod watch;
mod whereabouts;

pub use acquire::{Acquire, Attempt, Grant, Queueing};
pub use anchors::Anchors;
pub use claims::capabilities_of;
pub(crate) use claims::check_parts;
pub use fencing::{Fencing, Raised};
pub use key::LeaseKey;
pub use line::{InLine, Line, Place};
pub use lock::Lock;
pub use pushes::Pushes;
pub use release::{Abandoned, Release, Released};
pub use renew::{Renew, RenewItem, RenewKind, RenewOutcome, Renewal};
pub use rwlock::{Converted, RwLock};
pub use signal::{LostLeases, Signal};
pub use together::{Departure, Seat, Together, UnderWay};
pub use tombstones::Tombstones;
pub use unanswered::{Asking, LeftOpen, Sent, Unanswered};
pub use url::{Host, Servers, Url, UrlValue};
pub use wait::{News, Probe, Push, Wait, Wake};
pub use watch::{Page, Watch};
pub use whereabouts::whereabouts;
