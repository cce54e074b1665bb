//! What members answer to a request about a hold, added up until a majority has decided.

use std::sync::Arc;
use std::time::Duration;

use super::rounds::Round;
use super::shared::{Shared, only_some};
use super::votes::{life_of, majority};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::timestamp::Timestamp;

/// What went wrong at members, for the error of the whole.
#[derive(Default)]
pub(super) struct Failures {
    first: Option<Error>,
    /// One of them may have done it all the same.
    doubtful: bool,
}

impl Failures {
    pub(super) fn add(&mut self, e: Error) {
        self.doubtful |= e.kind() != ErrorKind::Unavailable;
        self.first.get_or_insert(e);
    }

    /// That only so many did it. `Unavailable` where it is certain that nobody did.
    pub(super) fn error(
        self,
        shared: &Shared,
        name: &LockName,
        what: &str,
        how_many: usize,
        all_answered: bool,
    ) -> Error {
        let kind = match how_many == 0 && all_answered && !self.doubtful && self.first.is_some() {
            true => ErrorKind::Unavailable,
            false => ErrorKind::Unknown,
        };
        let e = Error::new(kind, only_some(what, how_many, shared)).with_name(name);
        e.caused_by(self.first)
    }
}

/// What a request for a further life came to.
pub(super) enum Kept {
    /// A majority keeps it for that long, from the time of sending.
    For(Duration),
    /// So many have lost it that no majority is left.
    Gone,
    Failed(Error),
}

/// What the members said to a renewal, or to a conversion: each gives the lease a new life, or has lost it.
pub(super) struct Tally {
    pub(super) round: Arc<Round>,
    sent_at: Timestamp,
    /// How many must have done it, of all members.
    needed: usize,
    lives: Vec<Duration>,
    /// Which said that they have no such lease.
    gone: Vec<bool>,
    failures: Failures,
}

impl Tally {
    pub(super) fn new(shared: &Shared, round: Arc<Round>, sent_at: Timestamp) -> Self {
        let members = shared.members.len();
        round.keep(sent_at);
        Self {
            round,
            sent_at,
            needed: majority(members),
            lives: Vec::new(),
            gone: vec![false; members],
            failures: Failures::default(),
        }
    }

    /// A member keeps the lease for so long. No life is counted from later than the sending.
    pub(super) fn lives(&mut self, counted_from: Timestamp, expires_in: Duration) {
        let until = counted_from.min(self.sent_at) + expires_in;
        self.lives.push(self.sent_at.until(until));
    }

    pub(super) fn gone(&mut self, member: usize) {
        self.gone[member] = true;
    }

    pub(super) fn failed(&mut self, e: Error) {
        self.failures.add(e);
    }

    /// Where it was ended counts as well, also if that is done while this is on its way.
    fn is_lost(&self) -> bool {
        let members = self.gone.len();
        let is_gone = |member: &usize| self.gone[*member] || !self.round.may_be_at(*member);
        (0..members).filter(is_gone).count() > members - self.needed
    }

    /// Whether the answers that are lacking cannot change it.
    pub(super) fn is_decided(&self, running: impl Iterator<Item = usize>) -> bool {
        let lacking = running.filter(|member| self.round.may_be_at(*member)).count();
        let lives = self.lives.len();
        self.is_lost() || lives >= self.needed || lives + lacking < self.needed
    }

    pub(super) fn outcome(self, shared: &Shared, name: &LockName, what: &str, all_answered: bool) -> Kept {
        let lives = self.lives.len();
        if lives >= self.needed {
            return Kept::For(life_of(self.lives, self.needed));
        }
        match self.is_lost() {
            true => Kept::Gone,
            false => Kept::Failed(self.failures.error(shared, name, what, lives, all_answered)),
        }
    }
}
