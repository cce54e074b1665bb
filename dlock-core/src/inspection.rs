//! What can be seen of a lock without wanting it: who holds it, and how that changes.

use std::sync::Arc;
use std::time::Duration;

use crate::mode::Mode;
use crate::request_id::RequestId;
use crate::token::Token;

/// A lock as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Who holds it, in grant order. A lease kept by a minimum hold counts.
    pub holders: Vec<Holder>,
    /// How many requests are queued.
    pub waiting: u32,
}

impl Inspection {
    /// Those holders, that many waiters.
    pub fn new(holders: Vec<Holder>, waiting: u32) -> Self {
        Self { holders, waiting }
    }
}

/// One holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The acquisition. Shown for diagnosis; it is not a right to anything.
    pub id: RequestId,
    /// In which mode.
    pub mode: Mode,
    /// The fencing token of the grant.
    pub token: Option<Token>,
    /// How long the store keeps the lease yet, unless it is renewed.
    pub expires_in: Duration,
    /// The label that the holder gave itself.
    pub owner: Option<Arc<str>>,
    /// On which machine and in which process it is, by its own account and in words, where the store keeps
    /// that. For operators.
    pub whereabouts: Option<Arc<str>>,
}

impl Holder {
    /// A holder without a label, of whom nobody knows where it is.
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

    /// Adds where it is.
    pub fn with_whereabouts(mut self, whereabouts: Option<Arc<str>>) -> Self {
        self.whereabouts = whereabouts;
        self
    }

    /// Adds the label.
    pub fn with_owner(mut self, owner: Option<Arc<str>>) -> Self {
        self.owner = owner;
        self
    }
}

/// One change of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The state now. The first item of every stream; later ones with `skipped: true` where changes may be
    /// missing.
    Snapshot {
        /// The state.
        now: Inspection,
        /// Whether changes before this may have been skipped.
        skipped: bool,
    },
    /// Granted, or converted to another mode.
    Granted(Holder),
    /// A holder let go.
    Released {
        /// Which acquisition.
        id: RequestId,
    },
    /// A holder's lease ran out.
    Expired {
        /// Which acquisition.
        id: RequestId,
    },
    /// A holder was ended by `force_release`.
    Forced {
        /// Which acquisition.
        id: RequestId,
    },
}
