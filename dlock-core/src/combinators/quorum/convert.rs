//! Downgrade of a writer to a reader: sent to every member, and done when a majority has done it.
//!
//! *Why a downgrade is safe.* It only gives up rights. The holder counts as a reader from before it is sent.
//! A member that does it late, twice or never, or that grants a late copy of the exclusive request
//! afterwards, keeps more clients out than it has to, until the hold ends. Other readers need a majority that
//! was downgraded; writers are kept out by every member that has the lease. The token stays, and a majority
//! has known it since the grant.
//!
//! *Why there is no upgrade.* One member may do it while another finds a second reader. Undoing the first one
//! is a downgrade that may arrive late, after a repeated upgrade that succeeded. Then others are let in
//! beside a hold that counts as exclusive. Release and acquire again instead.

use std::sync::Arc;

use super::calls::Calls;
use super::shared::Shared;
use super::tally::{Kept, Tally};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::spi::{Converted, Grant, LeaseKey};

/// Downgrades a lease to a reader's. If a member may have done it, a failure is always `Unknown`: after any
/// other error the caller considers the mode unchanged.
pub(super) async fn downgrade(shared: &Arc<Shared>, key: &LeaseKey, to: Mode) -> Result<Converted> {
    shared.check_open()?;
    if to != Mode::READER || !shared.capabilities.has(crate::Capability::Downgrade) {
        let message = format!("a quorum of these members cannot convert a hold to {to}");
        return Err(Error::new(ErrorKind::Unsupported, message).with_name(&key.name));
    }
    let lost = || Error::lost(LossReason::Refused).with_name(&key.name);
    let round = shared.rounds().held(key).ok_or_else(lost)?;
    let sent_at = shared.runtime.now();
    let mut tally = Tally::new(shared, round.clone(), sent_at);
    let mut calls = Calls::new(shared, shared.patience_of(round.ttl));
    for member in (0..shared.members.len()).filter(|member| round.may_be_at(*member)) {
        let (backend, inside) = (shared.members[member].backend.clone(), round.inside.clone());
        calls.send(member, async move {
            match backend.rwlock() {
                Some(part) => part.convert(&inside, to).await,
                None => Err(Error::new(
                    ErrorKind::Unsupported,
                    "the member cannot convert a lease",
                )),
            }
        });
    }
    let take = |tally: &mut Tally, member, answer| match answer {
        Ok(Converted::Done(grant)) => tally.lives(grant.counted_from, grant.expires_in),
        Err(e) if Error::kind(&e) == ErrorKind::Lost => tally.gone(member),
        Err(e) => tally.failed(e),
        Ok(_) => tally.failed(Error::new(
            ErrorKind::BackendData,
            "a member refused a downgrade, which is always possible",
        )),
    };
    calls
        .hear(&mut tally, take, |tally, calls| tally.is_decided(calls.running()))
        .await;
    let all_answered = calls.running().next().is_none();
    calls.linger(|_, _| ());
    match tally.outcome(shared, &key.name, "were downgraded", all_answered) {
        Kept::For(life) => Ok(Converted::Done(Grant::new(
            key.clone(),
            round.token(),
            sent_at,
            life,
        ))),
        Kept::Gone => {
            shared.give_back(key, &round);
            Err(lost())
        }
        Kept::Failed(e) => Err(e),
    }
}
