//! The subject of the rules: a lock library as its users see it.
//!
//! A `dlock` backend becomes a subject through the engine (`EngineSubject`). A foreign lock library
//! implements the two traits itself. They are dyn-safe, so the kit is compiled once for all subjects.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi;
use dlock_core::{
    Capabilities, Change, Election, Error, ErrorKind, FenceGate, Inspection, LockName, LossReason, Mode,
    Result, Timestamp, Token,
};
use futures::FutureExt as _;
use futures::future::{BoxFuture, ready};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::setters::setters;

/// The result of an operation of a subject.
pub type Reply<'a, T> = BoxFuture<'a, Result<T>>;

/// The result of a wait.
pub type Granted<'a> = Reply<'a, Box<dyn Held>>;

/// One independent client of the locks under test: its own connection, its own identity.
///
/// Errors are [`dlock_core::Error`]s by the table in [`dlock_core::ErrorKind`]. A subject adds no retry and
/// no timeout of its own.
///
/// # Cancel safety
/// If the future of an acquire is dropped, nothing is held or queued, at the latest after the ttl. If the
/// future of a release is dropped, nothing is held, at the latest after the ttl. The rules of section 9 check
/// that.
pub trait Subject: Send + Sync {
    /// Its capabilities. They must agree with [`Claims`](crate::Claims) and never change.
    fn capabilities(&self) -> Capabilities;

    /// Takes the lock if it is free now; `None` if it is held.
    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>>;

    /// Waits for the lock: for at most `limit`, then it answers `Timeout` with nothing held and nothing
    /// queued, or however long it takes.
    fn wait<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Option<Duration>) -> Granted<'a>;

    /// Waits for the lock, however long it takes.
    fn acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Granted<'a> {
        self.wait(name, ask, None)
    }

    /// Waits for the lock for at most `limit`.
    fn acquire_timeout<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Duration) -> Granted<'a> {
        self.wait(name, ask, Some(limit))
    }

    /// The fence gate of the store: a resource with check-and-write in one step. `None`, the default, unless
    /// claimed.
    fn gate(&self) -> Option<&dyn FenceGate> {
        None
    }

    /// Watching and inspecting names. `None`, the default, unless one of the two is claimed.
    fn observe(&self) -> Option<&dyn Observe> {
        None
    }

    /// Ends the client: guards are lost, operations in flight and later ones answer `Closed`. Idempotent.
    fn close(&self) -> Reply<'_, ()>;

    /// The `dlock` backend below it, for requests that only a layer above the client can make. `None`, the
    /// default, for other libraries.
    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        None
    }

    /// The election of that name, with the requested leases. `None`, the default, for other libraries.
    fn election(&self, _name: &LockName, _ask: &Ask) -> Option<Result<Election>> {
        None
    }

    /// The same store through that namespace, over the same connection. `None`, the default, for libraries
    /// without namespaces.
    fn in_namespace(&self, _namespace: &str) -> Option<Result<Arc<dyn Subject>>> {
        None
    }

    /// The output of `{:#?}` for the client, for the rule about secrets. `None`, the default, if it has none.
    fn printed(&self) -> Option<String> {
        None
    }

    /// Stops the client as the death of its process would: it no longer renews, releases or withdraws
    /// anything. Returns `false`, the default, if that is not possible. Rules then just leave a guard alone,
    /// which is weaker if the library releases expired locks.
    fn vanish(&self) -> bool {
        false
    }
}

/// The part of a subject that observes locks without taking them.
pub trait Observe: Send + Sync {
    /// The state of the name now, then every change.
    fn watch<'a>(&'a self, name: &'a LockName) -> Reply<'a, BoxStream<'static, Result<Change>>>;

    /// Who holds and who waits.
    fn inspect<'a>(&'a self, name: &'a LockName) -> Reply<'a, Inspection>;

    /// Ends every lease of the name, as an operator would, and returns how many there were.
    fn force_release<'a>(&'a self, name: &'a LockName) -> Reply<'a, u32>;

    /// The names with that prefix that are held or waited for.
    fn list<'a>(&'a self, _prefix: &'a [u8]) -> Reply<'a, Vec<LockName>> {
        let unsupported = Error::new(ErrorKind::Unsupported, "this subject does not list names");
        ready(Err(unsupported)).boxed()
    }
}

/// A lock that is held: a guard. Dropping it is dropping the guard.
pub trait Held: Send + Sync {
    /// Unique per acquisition, over all clients and processes.
    fn id(&self) -> String;

    /// The fencing token; `None` only without the fencing capability.
    fn token(&self) -> Option<Token>;

    /// The effective ttl: the requested one, rounded up, or the session's.
    fn ttl(&self) -> Duration;

    /// When the holder must stop unless the lease is renewed before, on the clock of the harness's runtime.
    fn deadline(&self) -> Timestamp;

    /// How long until the deadline; zero once lost.
    fn remaining(&self) -> Duration;

    /// Whether it is held, according to the clock. No I/O.
    fn is_valid(&self) -> bool;

    /// Completes when the hold is lost, or at once if it is already lost.
    fn lost(&self) -> BoxFuture<'static, LossReason>;

    /// Why it is lost, if it is.
    fn loss(&self) -> Option<LossReason>;

    /// Resets the lease to its full ttl.
    fn renew(&self) -> Reply<'_, ()>;

    /// Ends the hold. `Lost` if it had ended before, `Unknown` if that is not known.
    fn release(&self) -> Reply<'_, ()>;

    /// Downgrade and upgrade; `None`, the default, unless one of the two is claimed.
    fn convert(&self) -> Option<&dyn Convert> {
        None
    }
}

/// The part of a guard that changes its mode.
pub trait Convert: Send + Sync {
    /// From exclusive to shared in one step.
    fn downgrade(&self) -> Reply<'_, ()>;

    /// From shared to exclusive, if that is possible now.
    fn try_upgrade(&self) -> Reply<'_, Upgraded>;
}

/// The answer to an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgraded {
    /// Held exclusively now.
    Done,
    /// Other holders are there; still held shared.
    Busy,
    /// Another holder is upgrading as well; still held shared.
    WouldDeadlock,
}

/// The options of an acquire.
///
/// Rules get one from [`Cx::ask`](crate::Cx::ask) and change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[must_use]
pub struct Ask {
    /// In which mode.
    #[serde(with = "mode")]
    pub mode: Mode,
    /// "Free at most this long after I vanish."
    pub ttl: Duration,
    /// Whether the guard has auto-renewal.
    pub auto_renew: AutoRenewal,
    /// 1 (last) to 10 (first); 5 unless asked for.
    pub priority: u8,
    /// Shown by `inspect`.
    pub label: Option<Arc<str>>,
    /// The maximum hold, after which the guard is lost.
    pub max_hold: Option<Duration>,
    /// The name stays held for at least that long, even if it is released sooner.
    pub min_hold: Option<Duration>,
    /// Re-entrant for the owner with that number: acquires of one client with the same number do not exclude
    /// each other.
    pub reentrant: Option<u32>,
}

/// A mode, serialised for a child process.
mod mode {
    use dlock_core::Mode;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use crate::mode::ModeTag;

    pub(super) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        ModeTag::from(*mode).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        ModeTag::deserialize(from).map(Mode::from)
    }
}

/// The auto-renewal of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutoRenewal {
    /// It lapses with its ttl.
    Off,
    /// With the library's default period.
    On,
    /// With that period.
    Every(Duration),
}

impl Ask {
    /// 1 is last, 10 is first.
    pub(crate) const USUAL_PRIORITY: u8 = 5;

    /// An exclusive hold with that ttl, without auto-renewal.
    pub fn new(ttl: Duration) -> Self {
        Self {
            mode: Mode::Exclusive,
            ttl,
            auto_renew: AutoRenewal::Off,
            priority: Self::USUAL_PRIORITY,
            label: None,
            max_hold: None,
            min_hold: None,
            reentrant: None,
        }
    }

    setters! {
        ttl: Duration,
        mode: Mode,
        priority: u8,
        label: impl Into<Arc<str>> => Some(label.into()),
        max_hold: Duration => Some(max_hold),
        min_hold: Duration => Some(min_hold),
        reentrant: u32 => Some(reentrant),
    }

    /// As a reader.
    pub fn reader(self) -> Self {
        self.mode(Mode::READER)
    }

    /// As one of `n` permits; `n` = 0 means 1.
    pub fn permit(self, n: u32) -> Self {
        self.mode(Mode::permit(NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN)))
    }

    /// With auto-renewal at the library's default period.
    pub fn auto_renew(mut self) -> Self {
        self.auto_renew = AutoRenewal::On;
        self
    }

    /// With auto-renewal at that period.
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.auto_renew = AutoRenewal::Every(every);
        self
    }
}
