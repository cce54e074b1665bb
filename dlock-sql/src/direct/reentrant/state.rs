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

    fn is_of(&self, owner: &Id) -> bool {
        self.owner == owner
    }

    fn was_changed_by(&self, change: &Id) -> bool {
        self.last_change == change
    }
}

/// What an owner who wants to enter finds.
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

pub(super) fn enter(row: &Row, owner: &Id, change: &Id) -> Enter {
    match (row.is_held(), row.is_of(owner)) {
        (false, _) => Enter::First,
        (true, false) => Enter::Busy,
        (true, true) if row.was_changed_by(change) => Enter::Done,
        (true, true) if row.holds >= MAX_HOLDS => Enter::TooMany,
        (true, true) => Enter::More,
    }
}

/// What an owner finds who leaves, or renews, what it has entered with that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    /// This very change is stored already.
    Done,
    /// It is the owner's.
    Held,
    /// It has run out; perhaps somebody else has it.
    Lost,
}

pub(super) fn own(row: &Row, owner: &Id, token: i64, change: &Id) -> Own {
    if row.is_of(owner) && row.was_changed_by(change) {
        Own::Done
    } else if row.is_held() && row.is_of(owner) && row.token == token {
        Own::Held
    } else {
        Own::Lost
    }
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
        assert_eq!(enter(&row(0, ME, OTHER, 5), &ME, &THIS), Enter::First);
        assert_eq!(enter(&row(1, ME, OTHER, 5), &ME, &THIS), Enter::More);
        assert_eq!(enter(&row(1, YOU, OTHER, 5), &ME, &THIS), Enter::Busy);
        assert_eq!(enter(&row(MAX_HOLDS, ME, OTHER, 5), &ME, &THIS), Enter::TooMany);
    }

    #[test]
    fn what_has_run_out_is_free_for_its_owner_too() {
        assert_eq!(enter(&row(3, YOU, OTHER, 0), &ME, &THIS), Enter::First);
        assert_eq!(enter(&row(3, ME, OTHER, -1), &ME, &THIS), Enter::First);
        assert_eq!(own(&row(3, ME, OTHER, 0), &ME, 7, &THIS), Own::Lost);
    }

    #[test]
    fn a_change_that_comes_twice_is_made_once() {
        assert_eq!(enter(&row(1, ME, THIS, 5), &ME, &THIS), Enter::Done);
        assert_eq!(own(&row(0, ME, THIS, 5), &ME, 7, &THIS), Own::Done);
        // The same number from somebody else is no change of ours.
        assert_eq!(enter(&row(1, YOU, THIS, 5), &ME, &THIS), Enter::Busy);
        assert_eq!(own(&row(1, YOU, THIS, 5), &ME, 7, &THIS), Own::Lost);
    }

    #[test]
    fn a_hold_is_left_by_its_own_token_only() {
        assert_eq!(own(&row(2, ME, OTHER, 5), &ME, 7, &THIS), Own::Held);
        // We lost it, and have entered anew since: that is another hold.
        assert_eq!(own(&row(2, ME, OTHER, 5), &ME, 6, &THIS), Own::Lost);
        assert_eq!(own(&row(2, YOU, OTHER, 5), &ME, 7, &THIS), Own::Lost);
    }
}
