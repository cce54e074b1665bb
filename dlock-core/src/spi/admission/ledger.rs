//! What a store adds to the rule.

use std::time::Duration;

use super::{Entry, Phase};
use crate::error::Result;
use crate::inspection::Change;
use crate::request_id::RequestId;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The store's side of a change: it numbers the grants, may refuse further ones, and is told what happened.
///
/// A store that keeps the states in memory and whose waiters poll needs little: `begin` returns `Ok`, `slack`
/// is zero, `note` does nothing, and `hand_off` returns [`Phase::Offered`] until `waiter.expires.min(now +
/// waiter.ttl())`. A name without [entries](super::NameState::entries) can be forgotten.
pub trait Ledger {
    /// Called before a request is granted, or joins the queue with `behind` waiters ahead. An error refuses
    /// the request. What is counted here is uncounted by [`note`](Self::note) of its end. If tokens can run
    /// out, check for one first.
    fn begin(&mut self, id: RequestId, behind: Option<usize>) -> Result<()>;

    /// Returns the next token. An error refuses the grant.
    fn mint(&mut self) -> Result<Token>;

    /// Makes all later tokens larger than `to`.
    fn raise(&mut self, to: Token);

    /// Returns what a waiter becomes when its turn has come, and until when: [`Phase::Offered`] where it
    /// finds out when it asks again, which starts its ttl; [`Phase::Provisional`] where a push tells it,
    /// which it has to confirm by a renewal; [`Phase::Held`] where it learns of it for certain.
    fn hand_off(&self, waiter: &Entry, now: Timestamp) -> (Phase, Timestamp);

    /// Returns how much shorter than asked for a queue lease may be, to save a write. It is never longer than
    /// asked for: a dead waiter would block the queue for longer than its ttl.
    fn slack(&self, queue_ttl: Duration) -> Duration;

    /// Called after something happened to an entry, with the entry as it is then.
    fn note(&mut self, entry: &Entry, event: Event, now: Timestamp);
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The entry is new and waits.
    Queued,
    /// The entry is new and holds.
    Granted,
    /// The entry waited and holds now.
    HandedOff,
    /// The entry holds in another mode.
    Converted,
    /// Something else about the entry changed, which watchers do not see.
    Changed,
    /// The entry is replaced by a minimum hold.
    Kept {
        /// The first waiter, which was told of a later end.
        next: Option<RequestId>,
    },
    /// The entry does not hold any more.
    Ended(Cause),
    /// The entry does not wait any more and was not granted.
    Dropped,
}

/// Why a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was released.
    Released,
    /// It expired.
    Expired,
    /// It was ended by somebody else.
    Forced,
}

impl Event {
    /// Returns what watchers are told of the event, if anything.
    pub fn change(self, entry: &Entry, now: Timestamp) -> Option<Change> {
        let id = entry.id;
        Some(match self {
            Self::Granted | Self::HandedOff | Self::Converted => Change::Granted(entry.holder(now)),
            Self::Ended(Cause::Forced) => Change::Forced { id },
            // A minimum hold that is over was released by its holder.
            Self::Ended(Cause::Expired) if entry.phase != Phase::Kept => Change::Expired { id },
            Self::Ended(_) => Change::Released { id },
            Self::Queued | Self::Changed | Self::Kept { .. } | Self::Dropped => return None,
        })
    }
}
