//! The state of a lock, and how it changes.

use std::sync::Arc;
use std::time::Duration;

use crate::mode::Mode;
use crate::request_id::RequestId;
use crate::token::Token;

/// The state of a lock. From [`Client::inspect`](crate::Client::inspect).
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let guard = client.lock("report")?.acquire().await?;
/// let state = client.inspect("report").await?;
/// println!("{} waiting", state.waiting);
/// for holder in &state.holders {
///     println!("{} holds token {:?} for {:?} more", holder.id, holder.token, holder.expires_in);
/// }
/// assert_eq!(state.holders[0].token, guard.token());
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holders, in grant order, including leases that a minimum hold keeps.
    pub holders: Vec<Holder>,
    /// The number of queued requests.
    pub waiting: u32,
}

impl Inspection {
    /// For backends: creates a state.
    pub fn new(holders: Vec<Holder>, waiting: u32) -> Self {
        Self { holders, waiting }
    }
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The acquisition. For diagnosis; knowing it gives no rights.
    pub id: RequestId,
    /// The mode of the hold.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub token: Option<Token>,
    /// How long the store keeps the lease, unless it is renewed.
    pub expires_in: Duration,
    /// The holder's [owner label](crate::LockOptions::owner_label), if it has one.
    pub owner: Option<Arc<str>>,
    /// The machine and process of the holder, by its own account, where the store keeps that. For operators.
    pub whereabouts: Option<Arc<str>>,
}

impl Holder {
    /// For backends: creates a holder without label and whereabouts.
    pub fn new(id: RequestId, mode: Mode, token: Option<Token>, expires_in: Duration) -> Self {
        Self {
            id,
            mode,
            token,
            expires_in,
            owner: None,
            whereabouts: None,
        }
    }

    /// Sets the machine and process.
    pub fn with_whereabouts(mut self, whereabouts: Option<Arc<str>>) -> Self {
        self.whereabouts = whereabouts;
        self
    }

    /// Sets the owner label.
    pub fn with_owner(mut self, owner: Option<Arc<str>>) -> Self {
        self.owner = owner;
        self
    }
}

/// A change of a lock. From the stream [`Client::watch`](crate::Client::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The state now. The first item of each stream. Later ones have `skipped: true`: changes may be missing
    /// before them.
    Snapshot {
        /// The state.
        now: Inspection,
        /// Whether changes before this may be missing.
        skipped: bool,
    },
    /// The lock was granted to this holder, or the hold was converted to another mode.
    Granted(Holder),
    /// A holder released the lock.
    Released {
        /// Which acquisition.
        id: RequestId,
    },
    /// The lease of a holder expired.
    Expired {
        /// Which acquisition.
        id: RequestId,
    },
    /// `force_release` ended a hold.
    Forced {
        /// Which acquisition.
        id: RequestId,
    },
}
