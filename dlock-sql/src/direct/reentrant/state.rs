//! What a row says, and what follows from it: the whole of the rule, without a database.

use std::time::Duration;

use dlock_core::{ErrorKind, Token};

use super::Holder;
use crate::direct::dialect::Store;
use crate::direct::failure::{Error, Result};
use crate::failure::known_version;

/// Of the table, which says it in each row. A dlock that changes what a row means raises it in all of them
/// and as the column's default: then this one refuses what it finds, and what it inserts.
pub(super) const VERSION: usize = 1;

/// 128 bits that name an owner.
pub(super) type Id = [u8; 16];

/// How often an owner has a name, and by which token: what the row is to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) token: u64,
    pub(super) holds: u32,
}

/// The row of a name, as it was when it was locked.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// How often it is held; none is free.
    pub(super) holds: u32,
    pub(super) label: String,
    pub(super) owner: Vec<u8>,
    /// That of the last hold; none is nought.
    pub(super) token: u64,
    /// How long the hold lasts; nothing if it is over.
    pub(super) remaining: Duration,
}

impl Row {
    pub(super) fn of<DB: Store>(row: &DB::Row) -> Result<Self> {
        let none = || foreign("a column is NULL");
        let below = |_| foreign("a number is below nought");
        let number = |at| -> Result<i64> { DB::read(row, at)?.ok_or_else(none) };
        known_version(number(4)?, VERSION, "this database (*reentrant)")?;
        let remaining: Option<i64> = DB::read(row, 5)?;
        Ok(Self {
            holds: u32::try_from(number(0)?).map_err(below)?,
            label: DB::read(row, 1)?.ok_or_else(none)?,
            owner: DB::read(row, 2)?.ok_or_else(none)?,
            token: u64::try_from(number(3)?).map_err(below)?,
            // One that was never held has no end.
            remaining: Duration::from_micros(u64::try_from(remaining.unwrap_or(0)).unwrap_or(0)),
        })
    }

    /// Whether it has an owner. An expired one has none.
    pub(super) fn is_held(&self) -> bool {
        self.holds > 0 && !self.remaining.is_zero()
    }

    pub(super) fn holder(&self) -> Result<Holder> {
        Ok(Holder {
            label: self.label.clone(),
            holds: self.holds,
            token: token(self.token)?,
            remaining: self.remaining,
        })
    }

    /// What an owner that knows this of it has when it enters what is free or its own.
    pub(super) fn entered(&self, own: &Own) -> Own {
        let (token, holds) = match self.is_held() {
            true => (self.token, self.count(own) + 1),
            false => (self.token + 1, 1),
        };
        Own { token, holds }
    }

    /// How often to write so that it says what its owner knows, and whether it is the owner's still. What has
    /// run out is not, unless it says so already: then the owner was in time, and the answer was lost.
    pub(super) fn settled(&self, owner: &Id, own: &Own) -> (Option<u32>, bool) {
        let (is_mine, count) = (self.owner == owner, self.count(own));
        let is_in_time = self.is_held() || self.holds == count;
        let write = (is_mine && self.holds != count).then_some(count);
        (write, is_mine && self.token == own.token && is_in_time)
    }

    /// How often an owner has it that knows this of it. Of a token that an entry without an answer has given,
    /// and that it does not know, it has none.
    fn count(&self, own: &Own) -> u32 {
        if self.token == own.token { own.holds } else { 0 }
    }
}

pub(super) fn token(number: u64) -> Result<Token> {
    Token::new(number).ok_or_else(|| foreign("it is held without a token"))
}

pub(super) fn foreign(what: &str) -> Error {
    let text = format!("a row of the table of re-entrant locks was not written by dlock: {what}");
    Error::new(ErrorKind::BackendData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Id = [1; 16];
    const YOU: Id = [2; 16];

    fn row(owner: Id, token: u64, holds: u32, remaining: u64) -> Row {
        Row {
            holds,
            label: String::new(),
            owner: owner.into(),
            token,
            remaining: Duration::from_micros(remaining),
        }
    }

    fn own(token: u64, holds: u32) -> Own {
        Own { token, holds }
    }

    #[test]
    fn entering_adds_one_hold() {
        for (row, known, expected) in [
            (row(YOU, 0, 0, 0), own(0, 0), own(1, 1)),
            (row(YOU, 7, 0, 5), own(0, 0), own(8, 1)),
            (row(ME, 7, 1, 5), own(7, 1), own(7, 2)),
            // What has run out is free, for its owner too.
            (row(YOU, 7, 3, 0), own(0, 0), own(8, 1)),
            (row(ME, 7, 3, 0), own(7, 3), own(8, 1)),
            // An entry that was not answered, the first one or another one, does not count.
            (row(ME, 7, 1, 5), own(0, 0), own(7, 1)),
            (row(ME, 7, 1, 5), own(6, 4), own(7, 1)),
            (row(ME, 7, 3, 5), own(7, 2), own(7, 3)),
        ] {
            assert_eq!(row.entered(&known), expected, "{row:?}");
        }
    }

    #[test]
    fn settling_writes_only_the_owners_own_holds() {
        for (row, known, expected) in [
            (row(ME, 7, 2, 5), own(7, 1), (Some(1), true)),
            (row(ME, 7, 1, 5), own(7, 0), (Some(0), true)),
            // It is stored already, and was in time.
            (row(ME, 7, 0, 5), own(7, 0), (None, true)),
            (row(ME, 7, 1, 0), own(7, 1), (None, true)),
            // It has run out before.
            (row(ME, 7, 2, 0), own(7, 1), (Some(1), false)),
            (row(YOU, 8, 1, 5), own(7, 1), (None, false)),
            // An entry that was not answered.
            (row(ME, 8, 1, 5), own(0, 0), (Some(0), false)),
            (row(ME, 8, 1, 5), own(7, 2), (Some(0), false)),
        ] {
            assert_eq!(row.settled(&ME, &known), expected, "{row:?}");
        }
    }
}
