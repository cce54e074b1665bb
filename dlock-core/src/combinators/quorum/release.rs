//! Release and abandon: sent to every member, and done when a majority has confirmed it.
//!
//! Once a majority of the members is free of it, nobody is kept from the lock. What is left at the others
//! belongs to nobody: it is abandoned in the background until they answer, and expires at the latest.
//!
//! * *A member's answer is lost.* If a majority of the others has answered, it has ended all the same.
//!   Otherwise the outcome is not known, and the engine retries under the same key: members that have
//!   answered are not asked twice.
//! * *An answer comes when it is not waited for any more.* It is received in the background, and counts at
//!   the next try.
//! * *It is repeated while the first request is still in transit*, or was never answered. The second one
//!   finds nothing, because the first has ended the lease: that counts as a release, not as a loss. A lease
//!   that was lost before both is then reported as released, since the two cases cannot be distinguished;
//!   whether it was valid until the release follows from the deadline.
//! * *A request of the round is in transit to a member.* It would be granted after the release, to nobody. So
//!   such a member gets an abandon; if it granted an earlier copy, it gets it after the release, since an
//!   abandon that overtook the release would make it find nothing.

use std::sync::Arc;

use futures::future::join_all;

use super::calls::Calls;
use super::rounds::{At, Round};
use super::shared::Shared;
use super::tally::Failures;
use crate::error::{Error, ErrorKind, Result};
use crate::spi::{Abandoned, LeaseKey, Lock, Release, Released};

/// Ends a lease.
pub(super) async fn release(shared: &Arc<Shared>, key: &LeaseKey, how: Release) -> Result<Released> {
    shared.check_open()?;
    let Some(round) = shared.rounds().take(key) else {
        return Ok(Released::NotHeld);
    };
    Ok(match end(shared, key, round, Some(how)).await? {
        true => Released::Released,
        false => Released::NotHeld,
    })
}

/// Undoes requests, whatever became of them, and refuses late copies.
pub(super) async fn abandon(shared: &Arc<Shared>, keys: &[LeaseKey]) -> Vec<Result<Abandoned>> {
    let now = shared.runtime.now();
    let undo = |key| async move {
        shared.check_open()?;
        let round = {
            let mut rounds = shared.rounds();
            rounds.bury(key, now);
            rounds.take(key)
        };
        let Some(round) = round else {
            return Ok(Abandoned::Nothing);
        };
        let was_held = end(shared, key, round.clone(), None).await?;
        Ok(match was_held || round.was_won() {
            true => Abandoned::WasGranted(round.token()),
            false => Abandoned::Nothing,
        })
    };
    join_all(keys.iter().map(undo)).await
}

/// The answer of a member to a release or abandon.
struct Ended {
    /// Whether there was a lease.
    was_held: Result<bool>,
    /// A copy of its request may still arrive, and would be granted.
    late_copy: bool,
}

/// The answers of the members so far.
struct Ending {
    round: Arc<Round>,
    /// For each member, whether it may still have something: it has not answered, or does not know the
    /// outcome.
    open: Vec<bool>,
    failures: Failures,
    /// Whether it has to be known if a majority held it.
    is_release: bool,
}

impl Ending {
    /// The number of members at which this client has ended it, now or before.
    fn ended(&self) -> usize {
        (0..self.open.len())
            .filter(|member| self.round.at(*member).released)
            .count()
    }

    /// Whether it was held, once that is certain and a majority is free of it.
    fn verdict(&self, majority: usize) -> Option<bool> {
        let ended = self.ended();
        let open = self.open.iter().filter(|open| **open).count();
        let is_decided = match self.is_release {
            true => ended >= majority || ended + open < majority,
            false => self.open.len() - open >= majority,
        };
        is_decided.then_some(ended >= majority)
    }
}

/// Ends a round at every member, by a release or by an abandon. `true` if a majority held it.
async fn end(shared: &Arc<Shared>, key: &LeaseKey, round: Arc<Round>, how: Option<Release>) -> Result<bool> {
    let members = shared.members.len();
    let patience = how.map_or(shared.patience, |_| shared.patience_of(round.ttl));
    let mut calls = Calls::new(shared, patience);
    let mut ending = Ending {
        open: (0..members)
            .map(|member| round.at(member).may_be_there())
            .collect(),
        failures: Failures::default(),
        is_release: how.is_some(),
        round: round.clone(),
    };
    for member in (0..members).filter(|member| ending.open[*member]) {
        let at = round.ends(member);
        let (backend, inside) = (shared.members[member].backend.clone(), round.inside.clone());
        calls.send(member, async move { end_at(&*backend, &inside, how, at).await });
    }
    let take = |ending: &mut Ending, member, answer| {
        hear(shared, &round, member, &answer);
        match answer.was_held {
            Ok(was_held) => {
                ending.open[member] = false;
                if ending.is_release && !was_held {
                    round.found_nothing(member);
                }
            }
            Err(e) => ending.failures.add(e),
        }
    };
    calls
        .hear(&mut ending, take, |ending, _| {
            ending.verdict(shared.majority).is_some()
        })
        .await;
    let verdict = ending.verdict(shared.majority);
    if verdict.is_some() {
        shared.rounds().forget(key, &round);
        // Requests in transit are handled when they are answered.
        for member in (0..members).filter(|member| ending.open[*member] && !calls.is_running(*member)) {
            shared.owe(member, &round);
        }
    }
    let all_answered = calls.running().next().is_none();
    let listener = shared.clone();
    calls.linger(move |member, answer| {
        let is_done = answer.as_ref().is_some_and(|answer| answer.was_held.is_ok());
        if let Some(answer) = answer {
            hear(&listener, &round, member, &answer);
        }
        // Otherwise it stays in the table, so that the next try knows the answers that arrive until then.
        if verdict.is_some() && !is_done {
            listener.owe(member, &round);
        }
    });
    verdict.ok_or_else(|| {
        let ended = ending.ended();
        ending
            .failures
            .error(shared, &key.name, "confirmed its end", ended, all_answered)
    })
}

/// Records the answer of a member, while it is waited for or later.
fn hear(shared: &Arc<Shared>, round: &Round, member: usize, answer: &Ended) {
    if answer.late_copy {
        shared.owe(member, round);
    }
    round.hears_of_end(member, &answer.was_held);
}

async fn end_at(backend: &dyn Lock, inside: &LeaseKey, how: Option<Release>, at: At) -> Ended {
    let mut released = None;
    if let Some(how) = how.filter(|_| at.granted) {
        let was_held = backend
            .release(inside, how)
            .await
            .map(|r| r == Released::Released);
        if at.unanswered == 0 || was_held.is_err() {
            return Ended {
                was_held,
                late_copy: false,
            };
        }
        released = Some(was_held);
    }
    let mut answers = backend.abandon(std::slice::from_ref(inside)).await;
    let no_answer = || Error::new(ErrorKind::BackendData, "a member gave no answer to an abandon");
    match (answers.pop().unwrap_or_else(|| Err(no_answer())), released) {
        (Ok(Abandoned::WasGranted(_)), _) => Ended {
            was_held: Ok(true),
            late_copy: false,
        },
        (Ok(_), released) => Ended {
            was_held: released.unwrap_or(Ok(false)),
            late_copy: false,
        },
        (Err(_), Some(was_held)) => Ended {
            was_held,
            late_copy: true,
        },
        (Err(e), None) => Ended {
            was_held: Err(e),
            late_copy: false,
        },
    }
}
