//! What somebody does to the table who is no client of it: a test that wants to see what a store makes of
//! that.

use std::sync::Arc;

use super::Table;
use super::effects::Effects;
use crate::mode::Mode;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::admission::{Entry, NameState, Phase};
use crate::timestamp::Timestamp;
use crate::token::Token;

impl Table {
    /// The last token that was minted; 0 before the first.
    pub(in crate::memory) fn last_token(&self) -> u64 {
        self.desk.counter
    }

    /// The next token is above this. Never below what it would have been.
    pub(in crate::memory) fn skip_tokens(&mut self, to: u64) {
        self.desk.counter = self.desk.counter.max(to.min(super::MAX_RAISED));
    }

    /// Puts something there that is no record of a lock. Whoever held the name has lost it.
    pub(in crate::memory) fn spoil(&mut self, name: &LockName, with: &str, effects: &mut Effects) {
        // In the way of all, for ever.
        let foreign = || Entry {
            id: RequestId::new(0, 0),
            phase: Phase::Kept,
            mode: Mode::Exclusive,
            priority: 0,
            token: Some(Token::MIN),
            ttl_nanos: 0,
            expires: Timestamp::MAX,
            upgrading: false,
            owner: Some(Arc::from(with)),
        };
        let spot = self.spot(name);
        let over_a_record = self.change(&spot, effects, |change| {
            let desk = &mut *change.ledger.desk;
            for lease in change.name.holders.drain(..).filter(|l| l.phase != Phase::Kept) {
                desk.ended(lease.id);
            }
            change.name.insert(foreign(), 0);
        });
        if over_a_record.is_none() {
            let mut state = NameState::default();
            state.insert(foreign(), 0);
            self.names.insert(spot.hash, name.clone(), state);
        }
    }

    /// What stands there that is no record of a lock.
    pub(in crate::memory) fn spoiled(&self, name: &LockName) -> Option<Arc<str>> {
        foreign_in(self.names.get(name)?)?.owner.clone()
    }
}

/// What stands at a name that the store did not write. It is the first, and there is nothing beside it that
/// holds.
pub(super) fn foreign_in(state: &NameState) -> Option<&Entry> {
    let first = state.holders().first();
    first.filter(|l| l.phase == Phase::Kept && l.expires == Timestamp::MAX)
}
