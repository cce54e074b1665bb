//! Renewal: of a majority of all members, whatever number granted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Either, select};

use super::calls::Calls;
use super::rounds::Round;
use super::votes::{life_of, majority};
use super::{Shared, only_some};
use crate::error::{Error, ErrorKind};
use crate::spi::{RenewItem, RenewKind, RenewOutcome, Renewal};
use crate::timestamp::Timestamp;

/// Members of leases that are very short are waited for at least that long; the engine gives them a little
/// more.
const SHORTEST_WAIT: Duration = Duration::from_millis(75);

/// Renews each at every member where it may be, in one call to each member.
///
/// * *Only a minority could be renewed.* That is a failure: the deadline stays where it was, and the engine
///   asks again. A lease there that lives longer than the deadline is released with the hold, or lapses.
/// * *So many members have lost it that no majority is left.* Then it is gone, and what is left of it is
///   given back.
/// * *A member that granted late, and was never raised to the token.* It counts: for as long as it is held
///   nobody else has a majority, and the token is known to those that made up the majority of the grant,
///   whoever renews.
pub(super) async fn renew(shared: &Arc<Shared>, items: &[RenewItem]) -> Vec<RenewOutcome> {
    if let Err(e) = shared.check_open() {
        return vec![RenewOutcome::Failed(e); items.len()];
    }
    let sent_at = shared.runtime.now();
    let mut tallies: Vec<_> = items
        .iter()
        .map(|item| Tally::new(shared, item, sent_at))
        .collect();
    let shortest = items.iter().map(|item| item.ttl).min().unwrap_or_default();
    // Well within what the engine gives a batch: whoever needs a member that hangs fails alone.
    let mut calls = Calls::new(shared, shared.patience_of(shortest));
    for (member, at) in shared.members.iter().enumerate() {
        let asked: Vec<_> = (0..items.len())
            .filter(|n| tallies[*n].may_be_at(member))
            .collect();
        let batch: Vec<_> = asked
            .iter()
            .filter_map(|n| {
                let inside = tallies[*n].round.as_ref()?.inside.clone();
                Some(RenewItem::lease(inside, items[*n].ttl))
            })
            .collect();
        if batch.is_empty() {
            continue;
        }
        let backend = at.backend.clone();
        calls.send(member, async move {
            let outcomes = match backend.renew() {
                Some(part) => part.renew(&batch).await,
                None => Vec::new(),
            };
            asked.into_iter().zip(outcomes).collect::<Vec<_>>()
        });
    }
    // Those that are decided wait for the others for so long, which is well within what the engine gives a
    // batch: whoever needs a member that hangs fails alone. As long as nothing is decided, waiting costs
    // nobody anything.
    let mut soon = None;
    let mut is_late = false;
    loop {
        while let Some((member, outcomes)) = calls.ready().await {
            take(&mut tallies, member, outcomes, sent_at);
        }
        let is_open = |tally: &Tally| tally.is_open(calls.running());
        if !tallies.iter().any(is_open) {
            break;
        }
        if is_late && !tallies.iter().all(is_open) {
            calls.fall_silent();
            break;
        }
        let soon = soon.get_or_insert_with(|| {
            let wait = (shortest / 8).max(SHORTEST_WAIT.min(shortest / 4));
            shared.runtime.sleep(shared.patience.min(wait)).fuse()
        });
        let next = pin!(calls.next());
        match select(next, soon).await {
            Either::Left((Some((member, outcomes)), _)) => take(&mut tallies, member, outcomes, sent_at),
            Either::Left((None, _)) => break,
            Either::Right(_) => is_late = true,
        }
    }
    calls.linger(|_, _| ());
    items
        .iter()
        .zip(tallies)
        .map(|(item, tally)| tally.outcome(shared, item, sent_at))
        .collect()
}

fn take(tallies: &mut [Tally], member: usize, outcomes: Vec<(usize, RenewOutcome)>, sent_at: Timestamp) {
    for (n, outcome) in outcomes {
        tallies[n].take(member, outcome, sent_at);
    }
}

/// What the members said to one item.
struct Tally {
    round: Option<Arc<Round>>,
    /// How many must renew it, of all members.
    needed: usize,
    /// How long it lives where it was renewed, from the time of sending.
    lives: Vec<Duration>,
    /// Which said that they have no such lease.
    gone: Vec<bool>,
    /// The first failure.
    failure: Option<Error>,
    /// Whether every failure says that the member was away.
    all_away: bool,
}

impl Tally {
    fn new(shared: &Arc<Shared>, item: &RenewItem, now: Timestamp) -> Self {
        let round = shared.rounds().held(&item.key);
        let members = shared.members.len();
        if let Some(round) = &round {
            round.keep(now);
        }
        Self {
            round: round.filter(|_| item.kind == RenewKind::Lease),
            needed: majority(members),
            lives: Vec::new(),
            gone: vec![false; members],
            failure: None,
            all_away: true,
        }
    }

    fn may_be_at(&self, member: usize) -> bool {
        self.round.as_ref().is_some_and(|round| round.may_be_at(member))
    }

    fn take(&mut self, member: usize, outcome: RenewOutcome, sent_at: Timestamp) {
        match outcome {
            RenewOutcome::Renewed(Renewal {
                counted_from,
                expires_in,
            }) => {
                let until = counted_from.min(sent_at) + expires_in;
                self.lives.push(sent_at.until(until));
            }
            RenewOutcome::Gone => self.gone[member] = true,
            other => {
                let e = match other {
                    RenewOutcome::Failed(e) => e,
                    _ => Error::new(
                        ErrorKind::BackendData,
                        "a member gave a waiter's answer to a lease",
                    ),
                };
                self.all_away &= e.kind() == ErrorKind::Unavailable;
                self.failure.get_or_insert(e);
            }
        }
    }

    fn is_lost(&self) -> bool {
        let is_gone = |member: &usize| self.gone[*member] || !self.may_be_at(*member);
        (0..self.gone.len()).filter(is_gone).count() > self.gone.len() - self.needed
    }

    /// Whether the answers that are lacking can decide it.
    fn is_open(&self, running: impl Iterator<Item = usize>) -> bool {
        let lacking = running.filter(|member| self.may_be_at(*member)).count();
        !self.is_lost() && self.lives.len() < self.needed && self.lives.len() + lacking >= self.needed
    }

    fn outcome(self, shared: &Arc<Shared>, item: &RenewItem, sent_at: Timestamp) -> RenewOutcome {
        if item.kind != RenewKind::Lease {
            let e = Error::new(ErrorKind::Unsupported, "a quorum has no queue");
            return RenewOutcome::Failed(e.with_name(&item.key.name));
        }
        let Some(round) = &self.round else {
            return RenewOutcome::Gone;
        };
        if self.lives.len() >= self.needed {
            let life = life_of(self.lives, self.needed);
            return RenewOutcome::Renewed(Renewal::new(sent_at, life));
        }
        if self.is_lost() {
            shared.give_back(&item.key, round);
            return RenewOutcome::Gone;
        }
        let kind = match self.all_away && self.lives.is_empty() && self.failure.is_some() {
            true => ErrorKind::Unavailable,
            false => ErrorKind::Unknown,
        };
        let e = Error::new(kind, only_some("renewed", self.lives.len(), shared)).with_name(&item.key.name);
        RenewOutcome::Failed(match self.failure {
            Some(cause) => e.with_source(cause),
            None => e,
        })
    }
}
