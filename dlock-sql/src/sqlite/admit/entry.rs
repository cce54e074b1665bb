//! One holder or waiter, and the tokens that grants are numbered with.

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Holder, RequestId};
use dlock_core::{Mode, Timestamp, Token};

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Phase {
    /// Waits in the queue.
    Queued,
    /// Granted while its waiter was away; the next re-ask starts the full ttl.
    Offered,
    /// Held.
    Held,
    /// Released, and kept taken by a minimum hold.
    Kept,
}

/// One holder or waiter of a name.
#[derive(Clone, Debug)]
pub(in super::super) struct Entry {
    pub(in super::super) id: RequestId,
    pub(in super::super) phase: Phase,
    pub(in super::super) mode: Mode,
    pub(in super::super) priority: u8,
    pub(in super::super) arrival: i64,
    pub(in super::super) token: Option<Token>,
    pub(in super::super) ttl: Duration,
    pub(in super::super) expires: Timestamp,
    /// Has asked for an upgrade while others shared.
    pub(in super::super) upgrading: bool,
    pub(in super::super) owner: Option<Arc<str>>,
}

impl Entry {
    pub(super) fn place(&self) -> (Reverse<u8>, i64) {
        (Reverse(self.priority), self.arrival)
    }

    pub(super) fn limit(&self) -> Option<Option<NonZeroU32>> {
        match self.mode {
            Mode::Shared { limit } => Some(limit),
            _ => None,
        }
    }
}

pub(super) fn holder(e: &Entry, expires_in: Duration) -> Holder {
    Holder::new(e.id, e.mode, e.token, expires_in).with_owner(e.owner.clone())
}

/// The tokens of the database, as the transaction sees them.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Tokens {
    pub(in super::super) last: u64,
    pub(in super::super) ceiling: u64,
    pub(in super::super) dirty: bool,
}

impl Tokens {
    pub(super) fn mint(&mut self) -> Token {
        self.dirty = true;
        self.last += 1;
        Token::new(self.last).unwrap_or(Token::MIN)
    }

    pub(super) fn at_least(&mut self, token: Token) {
        if token.get() > self.last {
            self.last = token.get();
            self.dirty = true;
        }
    }
}
