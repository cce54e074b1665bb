//! What a store adds to the rule.

use std::time::Duration;

use super::{Entry, Phase};
use crate::error::Result;
use crate::inspection::Change;
use crate::request_id::RequestId;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The store's side of a change: it numbers the grants, may refuse more of them, and hears what happened.
///
/// A store that keeps the states in memory, and whose waiters look for themselves, has little to say:
/// `begin` is `Ok`, `slack` is zero, `note` does nothing, and `hand_off` answers [`Phase::Offered`] until
/// `waiter.expires.min(now + waiter.ttl())`. A name without [entries](super::NameState::entries) can be
/// forgotten.
pub trait Ledger {
    /// A request is about to be granted, or to stand in line behind so many. An error refuses it. What is
    /// counted here is taken back by what is noted of its end: where tokens can run out, look for one first.
    fn begin(&mut self, id: RequestId, behind: Option<usize>) -> Result<()>;

    /// The next token. Without one nobody is granted anything.
    fn mint(&mut self) -> Result<Token>;

    /// From now on tokens are larger than that.
    fn raise(&mut self, to: Token);

    /// What a waiter becomes whose turn has come, and until when.
    fn hand_off(&self, waiter: &Entry, now: Timestamp) -> (Phase, Timestamp);

    /// How much a queue lease may be short of what was asked for, to spare a write. Never more than was asked
    /// for: a waiter that dies would stand in the way for longer than its ttl.
    fn slack(&self, queue_ttl: Duration) -> Duration;

    /// That has happened to that entry, which is told as it is after it.
    fn note(&mut self, entry: &Entry, event: Event, now: Timestamp);
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is new, and waits.
    Queued,
    /// It is new, and holds.
    Granted,
    /// It waited, and holds.
    HandedOff,
    /// It holds in another mode.
    Converted,
    /// Something else of it has changed, which is nobody's business.
    Changed,
    /// A minimum hold stands in its place.
    Kept {
        /// Who is first in line, and was told of a later end.
        next: Option<RequestId>,
    },
    /// It holds no more.
    Ended(Cause),
    /// It waits no more, and was not granted.
    Dropped,
}

/// Why a holder is one no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was let go.
    Released,
    /// It ran out.
    Expired,
    /// Somebody else ended it.
    Forced,
}

impl Event {
    /// What those who watch are told of it.
    pub fn change(self, entry: &Entry, now: Timestamp) -> Option<Change> {
        let id = entry.id;
        Some(match self {
            Self::Granted | Self::HandedOff | Self::Converted => Change::Granted(entry.holder(now)),
            Self::Ended(Cause::Forced) => Change::Forced { id },
            // A minimum hold that is over was let go by its holder.
            Self::Ended(Cause::Expired) if entry.phase != Phase::Kept => Change::Expired { id },
            Self::Ended(_) => Change::Released { id },
            Self::Queued | Self::Changed | Self::Kept { .. } | Self::Dropped => return None,
        })
    }
}
