//! What a backend implements: mechanism only.
//!
//! A backend does one thing per call. It never waits for a lock, never retries, never keeps a timer for a
//! lease and never decides: the engine queues, waits, backs off, renews, times out and cleans up. A backend
//! spawns nothing but the upkeep of its own connection, through the [`Runtime`](crate::Runtime) that it is
//! given.
//!
//! The five capabilities are five traits. [`Lock`] is what every backend has; the other four are *parts* that
//! it hands out through methods of that trait. What a part makes possible need not be claimed: see
//! [`capabilities_of`].
//!
//! | trait | what it adds |
//! |---|---|
//! | [`Lock`] | `attempt`, `release`, `abandon`, and `signals` of the session or connection |
//! | [`RwLock`] | `convert`: downgrade and upgrade in place (the shared *modes* themselves are part of [`Acquire`]) |
//! | [`Fencing`] | the tokens' strength, the fence gate, and `raise` |
//! | [`Watch`] | the stream of changes, `inspect`, `force_release`, `list` |
//! | [`Renew`] | leases and queue entries extended, many in one call |
//!
//! What has an obvious default has one. The requests and replies are `#[non_exhaustive]` with public
//! constructors, so that they can grow. What programs see as well, such as [`Inspection`](crate::Inspection)
//! and [`FenceGate`](crate::FenceGate), is at the root of the crate.
//!
//! # What every backend promises
//!
//! 1. **Idempotence.** A request is named by its [`LeaseKey`]. Sending it again has the effect of sending it
//!    once: a second `attempt` of a granted key answers the same grant with its *remaining* life; `release`
//!    and `abandon` of something that is gone say so and touch nothing else.
//! 2. **Nothing outlives its abandon.** After `abandon` of a key, no grant and no queue entry of that key
//!    exists, and an `attempt` of it that arrives late is refused (a tombstone, kept as long as such a
//!    message can live).
//! 3. **`counted_from` is early enough.** The [`Timestamp`](crate::Timestamp) in a [`Grant`] or [`Renewal`]
//!    was taken before the request was sent, so that `counted_from + expires_in` is never later than what the
//!    store believes.
//! 4. **One admission rule**, run by every change: see [`Mode`](crate::Mode). [`admission`] is that rule in
//!    Rust.
//! 5. **Typed outcomes.** `Unavailable` says that nothing took effect; when that is not sure, it is
//!    `Unknown`.
//! 6. **Dropping a future of a call is allowed at any poll** and leaves the connection usable; the request
//!    may then take effect or not, and the engine abandons it.
//! 7. **A call sends its request once.** A driver that sends an `attempt` again by itself, after a reconnect
//!    say, may be granted a second time what was given back in between. Whether to ask again is the engine's
//!    to say: it knows what it has abandoned. ([`Unanswered::note`] says what a backend owes that does so
//!    nevertheless.)

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
