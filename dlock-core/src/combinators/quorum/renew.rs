//! Renewal: by a majority of all members, however many granted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};

use super::calls::Calls;
use super::shared::Shared;
use super::tally::{Kept, Tally};
use crate::error::{Error, ErrorKind};
use crate::spi::{RenewItem, RenewKind, RenewOutcome, Renewal};

/// The minimum wait for renewals of very short leases; the engine waits a little longer.
const SHORTEST_WAIT: Duration = Duration::from_millis(75);

/// Renews each lease at every member that may have it, in one call per member.
///
/// * *Only a minority could be renewed.* That is a failure: the deadline does not move, and the engine
///   retries. A lease there that lives longer than the deadline is released with the hold, or expires.
/// * *So many members have lost it that no majority is left.* Then the hold is lost, and the rest of it is
///   given back.
/// * *A member granted late and was never raised to the token.* It counts: while it holds, nobody else has a
///   majority, and the token is known to the members of the majority that granted, whichever members renew.
pub(super) async fn renew(shared: &Arc<Shared>, items: &[RenewItem]) -> Vec<RenewOutcome> {
    if let Err(e) = shared.check_open() {
        return vec![RenewOutcome::Failed(e); items.len()];
    }
    let sent_at = shared.runtime.now();
    let mut tallies: Vec<_> = items.iter().map(|item| tally(shared, item, sent_at)).collect();
    let shortest = items.iter().map(|item| item.ttl).min().unwrap_or_default();
    let mut calls = Calls::new(shared, shared.patience_of(shortest));
    for (member, at) in shared.members.iter().enumerate() {
        let (mut asked, mut batch) = (Vec::new(), Vec::new());
        for (n, item) in items.iter().enumerate() {
            if let Ok(tally) = &tallies[n]
                && tally.round.may_be_at(member)
            {
                asked.push(n);
                batch.push(RenewItem::lease(tally.round.inside.clone(), item.ttl));
            }
        }
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
    let take = |tallies: &mut Vec<Result<Tally, _>>, member, outcomes| {
        for (n, outcome) in outcomes {
            if let Ok(tally) = &mut tallies[n] {
                add(tally, member, outcome);
            }
        }
    };
    let decided = |tallies: &Vec<Result<Tally, _>>, calls: &Calls<_>| {
        let tallies = tallies.iter().flatten();
        tallies
            .map(|tally| tally.is_decided(calls.running()))
            .collect::<Vec<_>>()
    };
    // While nothing is decided, waiting costs nothing.
    calls
        .hear(&mut tallies, take, |tallies, calls| {
            decided(tallies, calls).contains(&true)
        })
        .await;
    if decided(&tallies, &calls).contains(&false) {
        // Well within the engine's time limit for a batch: an item that needs a hanging member fails alone.
        let wait = shared
            .patience
            .min((shortest / 8).max(SHORTEST_WAIT.min(shortest / 4)));
        let waited = sent_at.until(shared.runtime.now());
        let late = shared.runtime.sleep(wait.saturating_sub(waited));
        let all = |tallies: &_, calls: &_| !decided(tallies, calls).contains(&false);
        let is_late = matches!(
            select(pin!(calls.hear(&mut tallies, take, all)), late).await,
            Either::Right(_)
        );
        if is_late {
            calls.fall_silent();
        }
    }
    let all_answered = calls.running().next().is_none();
    calls.linger(|_, _| ());
    let outcome = |(item, tally): (&RenewItem, Result<Tally, RenewOutcome>)| {
        let tally = match tally {
            Ok(tally) => tally,
            Err(outcome) => return outcome,
        };
        let round = tally.round.clone();
        match tally.outcome(shared, &item.key.name, "renewed", all_answered) {
            Kept::For(life) => RenewOutcome::Renewed(Renewal::new(sent_at, life)),
            Kept::Gone => {
                shared.give_back(&item.key, &round);
                RenewOutcome::Gone
            }
            Kept::Failed(e) => RenewOutcome::Failed(e),
        }
    };
    items.iter().zip(tallies).map(outcome).collect()
}

fn tally(shared: &Shared, item: &RenewItem, now: crate::Timestamp) -> Result<Tally, RenewOutcome> {
    if item.kind != RenewKind::Lease {
        let e = Error::new(ErrorKind::Unsupported, "a quorum has no queue");
        return Err(RenewOutcome::Failed(e.with_name(&item.key.name)));
    }
    let round = shared.rounds().held(&item.key).ok_or(RenewOutcome::Gone)?;
    Ok(Tally::new(shared, round, now))
}

fn add(tally: &mut Tally, member: usize, outcome: RenewOutcome) {
    match outcome {
        RenewOutcome::Renewed(renewal) => tally.lives(renewal.counted_from, renewal.expires_in),
        RenewOutcome::Gone => tally.gone(member),
        RenewOutcome::Failed(e) => tally.failed(e),
        _ => tally.failed(Error::new(
            ErrorKind::BackendData,
            "a member answered the renewal of a lease as that of a waiter",
        )),
    }
}
