//! What somebody does to the table who is no client of it: a test that wants to see what a store makes of
//! that.

use std::sync::Arc;

use super::Table;
use super::effects::Effects;
use super::entry::{Entry, Lease, Standing};
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::request_id::RequestId;
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
    pub(in crate::memory) fn spoil(
        &mut self,
        now: Timestamp,
        name: &LockName,
        with: &str,
        effects: &mut Effects,
    ) {
        let foreign = || Lease {
            id: RequestId::new(0, 0),
            mode: Mode::Exclusive,
            token: Token::MIN,
            expires: Timestamp::MAX,
            ttl_nanos: 0,
            owner: Some(Arc::from(with)),
            standing: Standing::Foreign,
            upgrading: false,
        };
        let over_a_record = self.change(name, now, effects, |entry, desk, _| {
            for lease in entry.holders.drain(..).filter(|l| l.standing != Standing::Kept) {
                desk.ended(lease.id);
            }
            entry.holders.push(foreign());
        });
        if over_a_record.is_none() {
            let mut entry = Entry::new();
            entry.holders.push(foreign());
            let spot = self.spot(name);
            self.names.insert(spot.hash, name.clone(), entry);
        }
    }

    /// What stands there that is no record of a lock.
    pub(in crate::memory) fn spoiled(&self, name: &LockName) -> Option<Arc<str>> {
        self.names.get(name)?.foreign()?.owner.clone()
    }
}

/// What whoever asks for such a name is told.
pub(in crate::memory) fn foreign(name: &LockName) -> Error {
    Error::new(
        ErrorKind::BackendData,
        "what is stored for this lock was not written by dlock; an operator must look",
    )
    .with_name(name)
}
