//! Turning a writer into a reader, and raising the token of a hold: at every member, and done when a majority
//! has done it.
//!
//! *Why a downgrade is safe.* It only ever gives up. Whoever asks for it counts as a reader from before it is
//! sent; a member that does it late, twice or never, or that grants a late copy of the exclusive request
//! afterwards, keeps more of the others out than it has to, until the hold ends. Readers are let in by a
//! majority that was downgraded; those that keep writers out are all members where the lease stands. The
//! token stays, and a majority knows it since the grant.
//!
//! *Why there is no upgrade.* Of two members, one may do it and the other find a second reader. To take the
//! first one back is a downgrade that may arrive late, after an upgrade that was asked for once more and
//! done: then others are let in beside a hold that believes to be exclusive. Release and acquire anew.

use std::sync::Arc;
use std::time::Duration;

use super::calls::Calls;
use super::votes::life_of;
use super::{Shared, only_some};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::spi::{Converted, Grant, LeaseKey, Raised};
use crate::token::Token;

/// Turns a lease into a reader's.
///
/// Where it is not sure that no member has done it, a failure is `Unknown` and nothing else: whoever hears
/// another one takes the hold for what it was.
pub(super) async fn downgrade(shared: &Arc<Shared>, key: &LeaseKey, to: Mode) -> Result<Converted> {
    shared.check_open()?;
    if to != Mode::READER || !shared.capabilities.has(crate::Capability::Downgrade) {
        let message = format!("a quorum of these members cannot turn a hold into one that is {to}");
        return Err(Error::new(ErrorKind::Unsupported, message).with_name(&key.name));
    }
    let lost = || Error::lost(LossReason::Refused).with_name(&key.name);
    let round = shared.rounds().held(key).ok_or_else(lost)?;
    let sent_at = shared.runtime.now();
    round.keep(sent_at);
    let mut calls = Calls::new(shared, shared.patience_of(round.ttl));
    let members = shared.members.len();
    for member in (0..members).filter(|member| round.may_be_at(*member)) {
        let (backend, inside) = (shared.members[member].backend.clone(), round.inside.clone());
        calls.send(member, async move {
            match backend.rwlock() {
                Some(part) => part.convert(&inside, to).await,
                None => Err(Error::new(ErrorKind::Unsupported, "the member has no conversion")),
            }
        });
    }
    let (mut lives, mut gone) = (Vec::<Duration>::new(), members - calls.running().count());
    let mut failures: Vec<Error> = Vec::new();
    loop {
        let answer = match calls.ready().await {
            Some(answer) => Some(answer),
            None if lives.len() >= shared.majority || gone > members - shared.majority => None,
            None => calls.next().await,
        };
        let Some((_, answer)) = answer else { break };
        match answer {
            Ok(Converted::Done(grant)) => {
                lives.push(sent_at.until(grant.counted_from.min(sent_at) + grant.expires_in));
            }
            Err(e) if e.kind() == ErrorKind::Lost => gone += 1,
            Err(e) => failures.push(e),
            Ok(_) => failures.push(Error::new(
                ErrorKind::BackendData,
                "a member did not do a downgrade, which is always possible",
            )),
        }
    }
    let silent = calls.running().next().is_some();
    calls.linger(|_, _| ());
    if lives.len() >= shared.majority {
        let life = life_of(lives, shared.majority);
        return Ok(Converted::Done(Grant::new(
            key.clone(),
            round.token(),
            sent_at,
            life,
        )));
    }
    if gone > members - shared.majority {
        shared.give_back(key, &round);
        return Err(lost());
    }
    let harmless = |e: &Error| e.kind() == ErrorKind::Unavailable;
    let kind = match lives.is_empty() && !silent && failures.iter().all(harmless) {
        true => ErrorKind::Unavailable,
        false => ErrorKind::Unknown,
    };
    let e = Error::new(kind, only_some("were downgraded", lives.len(), shared)).with_name(&key.name);
    Err(match failures.into_iter().next() {
        Some(cause) => e.with_source(cause),
        None => e,
    })
}

/// Raises the token of a hold, for a quorum of quorums: known to a majority, it is known to one member of
/// every other.
pub(super) async fn raise(shared: &Arc<Shared>, key: &LeaseKey, to: Token) -> Result<Raised> {
    shared.check_open()?;
    if !shared.fenced {
        let message = "this quorum is unfenced: one of its members has no tokens that can be raised";
        return Err(Error::new(ErrorKind::Unsupported, message).with_name(&key.name));
    }
    let Some(round) = shared.rounds().held(key) else {
        return Ok(Raised::NotHeld);
    };
    let to = to.max(round.token().unwrap_or(to));
    let mut calls = Calls::new(shared, shared.patience_of(round.ttl));
    let members = shared.members.len();
    for member in (0..members).filter(|member| round.may_be_at(*member)) {
        let (backend, inside) = (shared.members[member].backend.clone(), round.inside.clone());
        calls.send(member, async move {
            match backend.fencing() {
                Some(part) => part.raise(&inside, to).await,
                None => Err(Error::new(ErrorKind::Unsupported, "the member has no tokens")),
            }
        });
    }
    let (mut raised, mut gone) = (0, members - calls.running().count());
    // Members whose lease has a larger token of its own: it was granted late, or anew. They count for that,
    // and not for less.
    let mut beyond = Vec::new();
    let mut failure = None;
    loop {
        let answer = match calls.ready().await {
            Some(answer) => Some(answer),
            None if raised >= shared.majority || gone > members - shared.majority => None,
            None => calls.next().await,
        };
        let Some((_, answer)) = answer else { break };
        match answer {
            Ok(Raised::Raised(token)) if token > to => beyond.push(token),
            Ok(Raised::Raised(_)) => raised += 1,
            Ok(Raised::NotHeld) => gone += 1,
            Err(e) => drop(failure.get_or_insert(e)),
        }
    }
    calls.linger(|_, _| ());
    if raised >= shared.majority {
        round.raise(to);
        return Ok(Raised::Raised(to));
    }
    if raised + beyond.len() >= shared.majority
        && let Some(highest) = beyond.into_iter().max()
    {
        return Box::pin(raise(shared, key, highest)).await;
    }
    if gone > members - shared.majority {
        shared.give_back(key, &round);
        return Ok(Raised::NotHeld);
    }
    let message = only_some("raised the token", raised, shared);
    let e = Error::new(ErrorKind::Unknown, message).with_name(&key.name);
    Err(match failure {
        Some(cause) => e.with_source(cause),
        None => e,
    })
}
