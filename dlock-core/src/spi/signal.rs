use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::LeaseKey;
use crate::error::LossReason;

/// What happens to the session or connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Signal {
    /// Whether leases still stand is not known: the connection broke, the session is suspended. The engine
    /// renews at once.
    Doubt,
    /// These leases have ended.
    Lost(LostLeases, LossReason),
    /// Reconnected. The engine renews and asks again for its waiters at once.
    Back,
    /// Somebody has stored something, of whatever names. Where waiters [look](super::Wake::Poll), the engine
    /// looks at once, unless it has just looked. It may come too often, too early or not at all: it saves
    /// waiters from waiting for the next look, and takes no look away.
    Changed,
}

/// Which leases a signal is about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LostLeases {
    /// Every lease of this client.
    All,
    /// These.
    These(Vec<LeaseKey>),
    /// Every one of which this is true: see [`LostLeases::of`].
    Where(LeasesWhere),
}

impl LostLeases {
    /// Every lease whose key that says so of: for a backend that has some of the names elsewhere, and does
    /// not know by heart who holds what. The engine asks it as often as it likes, of leases that are held,
    /// owed, or on their way; so it must answer quickly, and always the same. Should it panic, that counts as
    /// lost.
    pub fn of(is_lost: impl Fn(&LeaseKey) -> bool + Send + Sync + 'static) -> Self {
        Self::Where(LeasesWhere(Arc::new(is_lost)))
    }

    /// Whether that lease is among them.
    pub fn contains(&self, key: &LeaseKey) -> bool {
        match self {
            Self::All => true,
            Self::These(keys) => keys.contains(key),
            Self::Where(is_lost) => catch_unwind(AssertUnwindSafe(|| (is_lost.0)(key))).unwrap_or(true),
        }
    }
}

/// What tells lost leases from others.
#[derive(Clone)]
pub struct LeasesWhere(Arc<dyn Fn(&LeaseKey) -> bool + Send + Sync>);

impl fmt::Debug for LeasesWhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeasesWhere(..)")
    }
}
