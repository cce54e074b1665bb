use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::LeaseKey;
use crate::error::LossReason;

/// An event of the session or connection. From [`Lock::signals`](super::Lock::signals).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Signal {
    /// It is not known whether leases still stand: the connection broke, or the session is suspended. The
    /// engine renews at once.
    Doubt,
    /// These leases have ended.
    Lost(LostLeases, LossReason),
    /// The connection is back. The engine renews, and asks again for its waiters, at once.
    Back,
    /// Something was stored, under any name. If waiters [poll](super::Wake::Poll), the engine looks at once,
    /// unless it has just looked. The signal may come too often, too early or not at all: it saves waiters
    /// the wait for the next look, and replaces no look.
    Changed,
}

/// The leases that a [`Signal::Lost`] is about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LostLeases {
    /// Every lease of this client.
    All,
    /// These leases.
    These(Vec<LeaseKey>),
    /// Every lease for which this is true: see [`LostLeases::of`].
    Where(LeasesWhere),
}

impl LostLeases {
    /// Selects every lease for whose key `is_lost` returns `true`. For a backend that stores some names
    /// elsewhere and does not know which leases are held there.
    ///
    /// The engine calls `is_lost` any number of times, for leases that are held, owed or in transit, so it
    /// must be quick and always return the same. If it panics, the lease counts as lost.
    pub fn of(is_lost: impl Fn(&LeaseKey) -> bool + Send + Sync + 'static) -> Self {
        Self::Where(LeasesWhere(Arc::new(is_lost)))
    }

    /// Returns whether a lease is among them.
    pub fn contains(&self, key: &LeaseKey) -> bool {
        match self {
            Self::All => true,
            Self::These(keys) => keys.contains(key),
            Self::Where(is_lost) => catch_unwind(AssertUnwindSafe(|| (is_lost.0)(key))).unwrap_or(true),
        }
    }
}

/// The predicate of [`LostLeases::Where`].
#[derive(Clone)]
pub struct LeasesWhere(Arc<dyn Fn(&LeaseKey) -> bool + Send + Sync>);

impl fmt::Debug for LeasesWhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeasesWhere(..)")
    }
}
