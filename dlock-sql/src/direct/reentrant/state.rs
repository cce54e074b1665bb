//! What a row says, and what follows from it: the whole of the rule, without a database.

/// 128 bits that name an owner, or one change.
pub(super) type Id = [u8; 16];

/// How often one owner can hold one name at once.
pub(super) const MAX_HOLDS: i64 = 1000;

/// The row of a name, as it was when it was locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// How often it is held; none is free.
    pub(super) holds: i64,
    pub(super) label: String,
    pub(super) owner: Vec<u8>,
    pub(super) token: i64,
    /// Which change made it so.
    pub(super) last_change: Vec<u8>,
    /// How long the hold lasts, in microseconds; below one if it is over.
    pub(super) remaining: i64,
}

impl Row {
    /// Whether somebody has it. One that has run out is nobody's.
    pub(super) fn is_held(&self) -> bool {
        self.holds > 0 && self.remaining > 0
    }

    /// What an owner finds who wants to enter.
    pub(super) fn enter(&self, owner: &Id, change: &Id) -> Enter {
        match (self.is_held(), self.owner == owner) {
            (false, _) => Enter::First,
            (true, false) => Enter::Busy,
            (true, true) if self.last_change == change => Enter::Done,
            (true, true) if self.holds >= MAX_HOLDS => Enter::TooMany,
            (true, true) => Enter::More,
        }
    }

    /// What an owner finds who leaves, or renews, what it has entered with that token.
    pub(super) fn own(&self, owner: &Id, token: i64, change: &Id) -> Own {
        let is_own = self.owner == owner;
        if is_own && self.last_change == change {
            Own::Done
        } else if is_own && self.is_held() && self.token == token {
            Own::Held
        } else {
            Own::Lost
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enter {
    /// This very change is stored already: its answer was lost.
    Done,
    /// It is free.
    First,
    /// It is the owner's.
    More,
    /// It is the owner's, as often as it can be.
    TooMany,
    /// It is somebody else's.
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// This very change is stored already.
    Done,
    /// It is the owner's.
    Held,
    /// It has run out; perhaps somebody else has it.
    Lost,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Id = [1; 16];
    const YOU: Id = [2; 16];
    const THIS: Id = [3; 16];
    const OTHER: Id = [4; 16];

    fn row(holds: i64, owner: Id, last_change: Id, remaining: i64) -> Row {
        Row {
            holds,
            label: "somebody".into(),
            owner: owner.into(),
            token: 7,
            last_change: last_change.into(),
            remaining,
        }
    }

    #[test]
    fn who_enters_is_the_first_or_again_or_neither() {
        for (row, expected) in [
            (row(0, ME, OTHER, 5), Enter::First),
            (row(1, ME, OTHER, 5), Enter::More),
            (row(1, YOU, OTHER, 5), Enter::Busy),
            (row(MAX_HOLDS, ME, OTHER, 5), Enter::TooMany),
            // What has run out is free, for its owner too.
            (row(3, YOU, OTHER, 0), Enter::First),
            (row(3, ME, OTHER, -1), Enter::First),
            // A change that comes twice is made once; the same number from somebody else is none of ours.
            (row(1, ME, THIS, 5), Enter::Done),
            (row(1, YOU, THIS, 5), Enter::Busy),
        ] {
            assert_eq!(row.enter(&ME, &THIS), expected, "{row:?}");
        }
    }

    #[test]
    fn a_hold_is_left_once_and_by_its_own_token() {
        for (row, token, expected) in [
            (row(2, ME, OTHER, 5), 7, Own::Held),
            // We lost it, and have entered anew since: that is another hold.
            (row(2, ME, OTHER, 5), 6, Own::Lost),
            (row(2, YOU, OTHER, 5), 7, Own::Lost),
            (row(3, ME, OTHER, 0), 7, Own::Lost),
            (row(0, ME, THIS, 5), 7, Own::Done),
            (row(1, YOU, THIS, 5), 7, Own::Lost),
        ] {
            assert_eq!(row.own(&ME, token, &THIS), expected, "{row:?}");
        }
    }
}
