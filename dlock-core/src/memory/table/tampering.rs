//! Changes to the table from outside, for tests of how a store reacts to them.

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

    /// Makes the next token larger than this. Never lowers the counter.
    pub(in crate::memory) fn skip_tokens(&mut self, to: u64) {
        self.desk.counter = self.desk.counter.max(to.min(super::MAX_RAISED));
    }

    /// Replaces the record of a name by something that is no lock. Its holder has lost it.
    pub(in crate::memory) fn spoil(&mut self, name: &LockName, with: &str, effects: &mut Effects) {
        // Blocks all requests, for ever.
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

    /// Returns what replaced the record of a name.
    pub(in crate::memory) fn spoiled(&self, name: &LockName) -> Option<Arc<str>> {
        foreign_in(self.names.get(name)?)?.owner.clone()
    }
}

/// The foreign entry of a name, if there is one. It is the first and only holder.
pub(super) fn foreign_in(state: &NameState) -> Option<&Entry> {
    let first = state.holders().first();
    first.filter(|l| l.phase == Phase::Kept && l.expires == Timestamp::MAX)
}
