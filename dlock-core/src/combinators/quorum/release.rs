//! Letting go, and undoing what is not wanted: at every member, and done when a majority has said so.
//!
//! With a majority of the members free of it, nobody is kept from the lock. What is left at the others is
//! nobody's: it is abandoned in the background until they answer, and lapses at the latest.

use std::sync::Arc;

use super::calls::Calls;
use super::rounds::{Remains, Round};
use super::{Shared, only_some};
use crate::error::{Error, ErrorKind, Result};
use crate::spi::{Abandoned, LeaseKey, Lock, Release, Released};

/// What a member said to the end of a lease.
struct Ended {
    /// Whether it had been there.
    was_held: Result<bool>,
    /// A copy of its request may arrive yet, and would be granted.
    strays: bool,
}

/// Ends a lease.
///
/// * *A member's answer is lost.* With a majority of the others it is released all the same. Without, its
///   outcome is not known, and the engine asks again under the same key: those that have answered are not
///   asked twice.
/// * *An answer comes when nobody waits for it any more.* It is heard in the background, and counts the next
///   time.
/// * *It is asked again while the first request is on its way yet*, or was never answered. The second one
///   finds nothing, because the first has ended it: that is taken for an end by us, and not for a loss, as a
///   backend does that has to send a release twice. A lease that was lost before both of them is then called
///   released, which nobody can tell from the other; that it was valid until the release is for the deadline
///   to say.
/// * *A request of the round is on its way to a member.* It would be granted after the release, to nobody. So
///   such a member is sent an abandon, and where it granted an earlier copy, after the release: an abandon
///   that overtook it would make it say that nothing was held.
pub(super) async fn release(shared: &Arc<Shared>, key: &LeaseKey, how: Release) -> Result<Released> {
    shared.check_open()?;
    let Some(round) = shared.rounds().take(key) else {
        return Ok(Released::NotHeld);
    };
    let mut calls = Calls::new(shared, shared.patience_of(round.ttl));
    let mut releasing = Releasing {
        shared,
        unsure: vec![false; shared.members.len()],
        failure: None,
        round,
    };
    for (member, at) in shared.members.iter().enumerate() {
        let remains = releasing.round.remains(member);
        match remains {
            Remains::Nothing | Remains::Released => {}
            _ => {
                releasing.round.ends(member);
                let (backend, inside) = (at.backend.clone(), releasing.round.inside.clone());
                calls.send(member, async move { end(&*backend, &inside, how, remains).await });
            }
        }
    }
    let released = loop {
        while let Some((member, answer)) = calls.ready().await {
            releasing.take(member, answer);
        }
        if let Some(released) = releasing.verdict(&calls) {
            break released;
        }
        if let Some((member, answer)) = calls.next().await {
            releasing.take(member, answer);
        } else if let Some(released) = releasing.verdict(&calls) {
            // By what was heard meanwhile of an earlier one.
            break released;
        } else {
            let (ended, failure) = (releasing.ended(), releasing.failure.take());
            // It stays in the table, for the next time, which is to know what is answered until then.
            let (shared, round) = (shared.clone(), releasing.round.clone());
            let error = not_ended(key, ended, failure, &shared);
            calls.linger(move |member, answer| {
                if let Some(answer) = answer {
                    hear(&shared, &round, member, &answer);
                }
            });
            return Err(error);
        }
    };
    let Releasing { round, unsure, .. } = releasing;
    shared.rounds().forget(key, &round);
    for member in (0..unsure.len()).filter(|member| unsure[*member]) {
        shared.owe(member, &round);
    }
    let shared = shared.clone();
    calls.linger(move |member, answer| {
        if answer.is_none_or(|answer| answer.was_held.is_err() || answer.strays) {
            shared.owe(member, &round);
        }
    });
    Ok(released)
}

struct Releasing<'a> {
    shared: &'a Arc<Shared>,
    round: Arc<Round>,
    /// Of each member, whether its answer left open what became of the lease.
    unsure: Vec<bool>,
    failure: Option<Error>,
}

impl Releasing<'_> {
    fn take(&mut self, member: usize, answer: Ended) {
        hear(self.shared, &self.round, member, &answer);
        match answer.was_held {
            Ok(true) => {}
            Ok(false) => self.round.found_nothing(member),
            Err(e) => {
                self.unsure[member] = true;
                self.failure.get_or_insert(e);
            }
        }
    }

    /// At how many members it has ended by a release of ours, this one or one before.
    fn ended(&self) -> usize {
        let members = 0..self.unsure.len();
        members.filter(|member| self.round.has_ended(*member)).count()
    }

    /// What is sure by now. It was held if a majority held it.
    fn verdict(&self, calls: &Calls<Ended>) -> Option<Released> {
        let ended = self.ended();
        if ended >= self.shared.majority {
            return Some(Released::Released);
        }
        let is_open = |member: &usize| calls.is_running(*member) || self.unsure[*member];
        let open = (0..self.unsure.len()).filter(is_open).count();
        (ended + open < self.shared.majority).then_some(Released::NotHeld)
    }
}

/// What a member answered, while somebody waits for it or later.
fn hear(shared: &Arc<Shared>, round: &Round, member: usize, answer: &Ended) {
    if answer.strays {
        shared.owe(member, round);
    }
    round.hears_of_end(member, &answer.was_held);
}

async fn end(backend: &dyn Lock, inside: &LeaseKey, how: Release, remains: Remains) -> Ended {
    let mut was_held = Ok(false);
    if remains != Remains::Stray {
        was_held = backend
            .release(inside, how)
            .await
            .map(|r| r == Released::Released);
        if remains == Remains::Lease || was_held.is_err() {
            return Ended {
                was_held,
                strays: false,
            };
        }
    }
    match abandon_one(backend, inside).await {
        Ok(Abandoned::WasGranted(_)) => was_held = Ok(true),
        Ok(_) => {}
        Err(_) if remains == Remains::LeaseAndStray => {
            return Ended {
                was_held,
                strays: true,
            };
        }
        Err(e) => was_held = Err(e),
    }
    Ended {
        was_held,
        strays: false,
    }
}

async fn abandon_one(backend: &dyn Lock, inside: &LeaseKey) -> Result<Abandoned> {
    let mut answers = backend.abandon(std::slice::from_ref(inside)).await;
    answers.pop().unwrap_or_else(|| Err(no_answer()))
}

fn no_answer() -> Error {
    Error::new(ErrorKind::BackendData, "a member gave no answer to an abandon")
}

fn not_ended(key: &LeaseKey, ended: usize, failure: Option<Error>, shared: &Shared) -> Error {
    let away = failure
        .as_ref()
        .is_some_and(|e| e.kind() == ErrorKind::Unavailable);
    let kind = match away && ended == 0 {
        true => ErrorKind::Unavailable,
        false => ErrorKind::Unknown,
    };
    let e = Error::new(kind, only_some("confirmed its end", ended, shared)).with_name(&key.name);
    match failure {
        Some(cause) => e.with_source(cause),
        None => e,
    }
}

/// One of several requests that are undone together.
struct Undoing {
    round: Arc<Round>,
    /// At which members something may be yet.
    open: Vec<bool>,
    was_granted: usize,
    failure: Option<Error>,
}

impl Undoing {
    fn is_done(&self, shared: &Shared) -> bool {
        let clear = self.open.iter().filter(|open| !**open).count();
        clear >= shared.majority
    }

    fn take(&mut self, member: usize, answer: Result<Abandoned>) {
        match answer {
            Ok(abandoned) => {
                self.open[member] = false;
                let was_granted = matches!(abandoned, Abandoned::WasGranted(_));
                self.was_granted += usize::from(was_granted);
                self.round.released(member, was_granted);
            }
            Err(e) => drop(self.failure.get_or_insert(e)),
        }
    }
}

/// Undoes requests, whatever became of them, and keeps them from coming back.
pub(super) async fn abandon(shared: &Arc<Shared>, keys: &[LeaseKey]) -> Vec<Result<Abandoned>> {
    if let Err(e) = shared.check_open() {
        return vec![Err(e); keys.len()];
    }
    let now = shared.runtime.now();
    let mut all: Vec<Option<Undoing>> = keys.iter().map(|key| begin_undoing(shared, key, now)).collect();
    let mut calls = Calls::new(shared, shared.patience);
    for (member, at) in shared.members.iter().enumerate() {
        let is_open = |n: &usize| all[*n].as_ref().is_some_and(|undoing| undoing.open[member]);
        let asked: Vec<_> = (0..keys.len()).filter(is_open).collect();
        if asked.is_empty() {
            continue;
        }
        let inside: Vec<_> = asked
            .iter()
            .filter_map(|n| Some(all[*n].as_ref()?.round.inside.clone()))
            .collect();
        let backend = at.backend.clone();
        calls.send(member, async move {
            let answers = backend.abandon(&inside).await;
            asked.into_iter().zip(answers).collect::<Vec<_>>()
        });
    }
    loop {
        while let Some((member, answers)) = calls.ready().await {
            take_answers(&mut all, member, answers);
        }
        if all.iter().flatten().all(|undoing| undoing.is_done(shared)) {
            break;
        }
        match calls.next().await {
            Some((member, answers)) => take_answers(&mut all, member, answers),
            None => break,
        }
    }
    let answers = keys
        .iter()
        .zip(&all)
        .map(|(key, undoing)| match undoing {
            None => Ok(Abandoned::Nothing),
            Some(undoing) => end_undoing(shared, key, undoing, &calls),
        })
        .collect();
    // What could not be undone is asked for again; of the rest, those who have not answered are seen to in
    // the background.
    let done = |undoing: Undoing| undoing.is_done(shared).then_some(undoing.round);
    let rounds: Vec<_> = all.into_iter().map(|undoing| undoing.and_then(done)).collect();
    let shared = shared.clone();
    calls.linger(move |member, answers| {
        let answered: Vec<_> = answers.into_iter().flatten().filter(|(_, a)| a.is_ok()).collect();
        for (n, round) in rounds.iter().enumerate() {
            if let Some(round) = round
                && round.may_be_at(member)
                && !answered.iter().any(|(answered, _)| *answered == n)
            {
                shared.owe(member, round);
            }
        }
    });
    answers
}

fn begin_undoing(shared: &Shared, key: &LeaseKey, now: crate::Timestamp) -> Option<Undoing> {
    let mut rounds = shared.rounds();
    rounds.bury(key, now);
    let round = rounds.take(key)?;
    Some(Undoing {
        open: (0..shared.members.len())
            .map(|member| round.may_be_at(member))
            .collect(),
        round,
        was_granted: 0,
        failure: None,
    })
}

fn take_answers(all: &mut [Option<Undoing>], member: usize, answers: Vec<(usize, Result<Abandoned>)>) {
    for (n, answer) in answers {
        if let Some(undoing) = &mut all[n] {
            undoing.take(member, answer);
        }
    }
}

fn end_undoing<T: Send + 'static>(
    shared: &Arc<Shared>,
    key: &LeaseKey,
    undoing: &Undoing,
    calls: &Calls<T>,
) -> Result<Abandoned> {
    if !undoing.is_done(shared) {
        let clear = undoing.open.iter().filter(|open| !**open).count();
        return Err(not_ended(key, clear, undoing.failure.clone(), shared));
    }
    shared.rounds().forget(key, &undoing.round);
    for member in 0..undoing.open.len() {
        // Those that are on their way are seen to when they have answered.
        if undoing.open[member] && !calls.is_running(member) {
            shared.owe(member, &undoing.round);
        }
    }
    let was_granted = undoing.round.was_won() || undoing.was_granted >= shared.majority;
    Ok(match was_granted {
        true => Abandoned::WasGranted(undoing.round.token()),
        false => Abandoned::Nothing,
    })
}
