//! The answers of the members to a request about a hold, counted until a majority has decided.

use std::sync::Arc;
use std::time::Duration;

use super::rounds::Round;
use super::shared::{Shared, only_some};
use super::votes::{life_of, majority};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::timestamp::Timestamp;

/// The failures of members, for the error of the quorum.
#[derive(Default)]
pub(super) struct Failures {
    first: Option<Error>,
    /// Whether one of them may have done it all the same.
    doubtful: bool,
}

impl Failures {
    pub(super) fn add(&mut self, e: Error) {
        self.doubtful |= e.kind() != ErrorKind::Unavailable;
        self.first.get_or_insert(e);
    }

    /// The error that only some did it. `Unavailable` if it is certain that none did.
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

/// The outcome of a request for a further life.
pub(super) enum Kept {
    /// A majority keeps it for this long, counted from sending.
    For(Duration),
    /// So many members have lost it that no majority is left.
    Gone,
    Failed(Error),
}

/// The answers of the members to a renewal or conversion: each gives the lease a new life, or has lost it.
pub(super) struct Tally {
    pub(super) round: Arc<Round>,
    sent_at: Timestamp,
    /// The number of members, of all, that must have done it.
    needed: usize,
    lives: Vec<Duration>,
    /// The members that have no such lease.
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

    /// Records that a member keeps the lease for this long. No life counts from later than sending.
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

    /// Members at which it was ended count as well, even if that happened while this was in transit.
    fn is_lost(&self) -> bool {
        let members = self.gone.len();
        let is_gone = |member: &usize| self.gone[*member] || !self.round.may_be_at(*member);
        (0..members).filter(is_gone).count() > members - self.needed
    }

    /// Whether the missing answers cannot change the outcome.
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
