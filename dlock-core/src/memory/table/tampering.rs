//! What somebody does to the table who is no client of it: a test that wants to see what a store makes of
//! that.

use std::sync::Arc;

use super::entry::{Entry, Lease, Standing};
use super::{Effects, Table};
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
            self.names.insert(spot.hash, spot.filed.into_owned(), entry);
        }
    }

    /// What stands there that is no record of a lock.
    pub(in crate::memory) fn spoiled(&self, name: &LockName) -> Option<Arc<str>> {
        self.names.get(name)?.foreign()?.owner.clone()
    }
}

#[cfg(dlock_saboteur)]
impl Table {
    /// Rule 7.07: tokens are what the clock shows that can be set; leases go by the other one.
    pub(in crate::memory) fn tokens_by_the_clock(&mut self, wall: Timestamp, steady: Timestamp) -> Timestamp {
        self.desk.wall = wall;
        steady
    }

    /// Rule 16.12: the replica has heard nothing of the last tenth of a second.
    pub(in crate::memory) fn forget_what_is_not_replicated(&mut self, now: Timestamp) {
        for (_, entry) in self.names.iter_mut() {
            entry.holders.retain(|l| {
                let begun = l
                    .expires
                    .saturating_sub(std::time::Duration::from_nanos(l.ttl_nanos));
                now.since(begun) > std::time::Duration::from_millis(100)
            });
        }
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
