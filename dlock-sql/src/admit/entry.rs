//! One holder or waiter, and the tokens that grants are numbered with.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Holder, Mode, RequestId, Result, Timestamp, Token};

use crate::gate::LAST_TOKEN;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) phase: Phase,
    pub(crate) mode: Mode,
    pub(crate) priority: u8,
    pub(crate) arrival: i64,
    pub(crate) token: Option<Token>,
    pub(crate) ttl: Duration,
    pub(crate) expires: Timestamp,
    /// Has asked for an upgrade while others shared.
    pub(crate) upgrading: bool,
    pub(crate) owner: Option<Arc<str>>,
}

/// That the changes of a name are counted, since somebody watches it who may be on another connection.
///
/// Whoever changes the name has loaded this row with its others, so no change is left out. It ends with a
/// lease of its own: a name that nobody watches costs nothing, and a dead one leaves no row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) changes: u64,
    pub(crate) until: Timestamp,
}

/// One row of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row<E, W> {
    Entry(E),
    Watch(W),
}

/// Where a waiter stands. The id makes it the waiter's own, whatever numbers are stored.
pub(super) type Rank = (Reverse<u8>, i64, RequestId);

impl Entry {
    pub(super) fn rank(&self) -> Rank {
        (Reverse(self.priority), self.arrival, self.id)
    }

    /// Whether its lease can be renewed, converted or raised.
    pub(super) fn is_lease(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Offered)
    }

    pub(super) fn holder(&self, expires_in: Duration) -> Holder {
        Holder::new(self.id, self.mode, self.token, expires_in).with_owner(self.owner.clone())
    }
}

/// The tokens of the database, as the transaction sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) last: u64,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code))]
    pub(crate) ceiling: u64,
    pub(crate) dirty: bool,
}

impl Tokens {
    /// Whether there is one more. A raise may have gone to the last one that SQL can store.
    pub(super) fn has_next(&self) -> bool {
        self.last < LAST_TOKEN
    }

    /// Refuses what needs a token when there is none: one that came twice would be no fence.
    pub(super) fn check(&self) -> Result<()> {
        if self.has_next() {
            return Ok(());
        }
        let text = format!(
            "the tokens of this database are used up: the last one, {LAST_TOKEN}, was granted or raised to; \
             use another table prefix, with new gates"
        );
        Err(Error::new(ErrorKind::LimitReached, text))
    }

    /// The next token. The caller has made sure that there is one.
    pub(super) fn mint(&mut self) -> Option<Token> {
        let next = self.has_next().then(|| self.last + 1).and_then(Token::new)?;
        self.at_least(next);
        Some(next)
    }

    pub(super) fn at_least(&mut self, token: Token) {
        if token.get() > self.last {
            self.last = token.get();
            self.dirty = true;
        }
    }
}
