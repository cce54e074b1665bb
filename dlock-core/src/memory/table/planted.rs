//! What the rebuilt bugs of the table need beyond an `if`.

use std::collections::HashSet;

use super::Map;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::token::Token;

/// What they remember of grants that are over.
#[derive(Debug, Default)]
pub(in crate::memory) struct Notes {
    readers: HashSet<RequestId>,
    last: Map<LockName, (u128, Token)>,
}

impl Notes {
    /// Rule 11.05: this was granted as a reader's.
    pub(super) fn note_reader(&mut self, id: RequestId) {
        self.readers.insert(id);
    }

    /// Rule 11.05: whether it ever was.
    pub(super) fn has_read(&self, id: RequestId) -> bool {
        self.readers.contains(&id)
    }

    /// Rule 7.04: whoever had the name last has its old token again.
    pub(super) fn token_of(&mut self, name: &LockName, id: RequestId, fresh: Token) -> Token {
        let last = self.last.entry(name.clone()).or_insert((id.client(), fresh));
        if last.0 != id.client() {
            *last = (id.client(), fresh);
        }
        last.1
    }
}

/// Rule 7.02: unique, and in no order.
pub(super) fn random_token(counter: u64) -> Token {
    let mut z = counter.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    // Small enough that a column of signed numbers keeps it.
    Token::new((z ^ (z >> 31)) >> 2).unwrap_or(Token::MIN)
}

/// Rule 1.07: whether a pool of two connections gave both requests the same one.
pub(super) fn one_connection(one: RequestId, other: RequestId) -> bool {
    one.client() == other.client() && one.sequence() % 2 == other.sequence() % 2
}
