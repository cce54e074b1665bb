//! Downgrade and upgrade in place.
//!
//! A conversion that had no effect (refused, or `Unavailable`) leaves the guard as it was. One whose outcome is not known (dropped
//! future, lost reply) leaves the guard with the *weaker* of the two modes: the store may have the stronger one, which costs others a wait and nobody exclusion. Asking again settles it, since a
//! conversion to the mode that the lease already has is done at once.
//!
//! A conversion names no state to convert *from*, so two of them must never be under way in different directions:
//!
//! * A downgrade that went unanswered may still arrive, after an upgrade that was answered: others would then be let in beside a
//!   guard that believes to be exclusive. So a lease whose downgrade went unanswered is never upgraded again.
//! * Of two upgrades the first one's answer may be read after a downgrade that followed the second, and be believed. So a second
//!   one is not sent while a future waits for the first; one whose future was dropped has no answer that anybody reads.

use std::sync::Arc;

use super::core::Engine;
use super::lease::{DOWNGRADE, Lease, UPGRADE};
use super::validity::Look;
use crate::capabilities::Capability;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::options::need;
use crate::spi::Converted;

pub(crate) async fn convert(engine: &Arc<Engine>, lease: &Arc<Lease>, to: Mode) -> Result<Converted> {
    let named = |e: Error| e.with_name(&lease.key.name);
    engine.check_open().map_err(named)?;
    let (capability, what) = match to {
        Mode::Exclusive => (Capability::Upgrade, "an upgrade"),
        Mode::Shared { .. } => (Capability::Downgrade, "a downgrade"),
    };
    need(&engine.caps, capability, what)?;
    let Some(part) = engine.backend.rwlock_part() else {
        let message = format!(
            "{} claims {capability:?} and has no RwLock part",
            engine.caps.backend
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    };
    if engine.remaining(lease).is_zero() {
        return Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))));
    }
    if let Mode::Shared { limit: Some(_) } = lease.mode()
        && to.is_exclusive()
    {
        let message = "a permit cannot be upgraded: only a reader can";
        return Err(named(Error::new(ErrorKind::InvalidInput, message)));
    }
    let asking = engine.ask(engine.op_timeout, part.convert(&lease.key, to));
    // To the end of this function, when the answer has been acted on.
    let _upgrading;
    let answer = if to.is_exclusive() {
        let before = lease.begin_conversion(UPGRADE);
        if before & UPGRADE != 0 {
            return Ok(Converted::Busy);
        }
        _upgrading = Upgrading(lease);
        if before & DOWNGRADE != 0 {
            let message = "a downgrade of this hold went unanswered and may still take effect: release it, and acquire anew";
            return Err(named(Error::new(ErrorKind::Unknown, message)));
        }
        asking.await
    } else {
        if !lease.weaken(to) {
            let message =
                "this owner holds the lock more than once: a downgrade would take it from the other guards";
            return Err(named(Error::new(ErrorKind::InvalidInput, message)));
        }
        let before = lease.begin_conversion(DOWNGRADE);
        let answer = asking.await;
        let unanswered = matches!(&answer, Err(e) if !had_no_effect(e));
        if !unanswered && before & DOWNGRADE == 0 {
            if answer.is_err() {
                // It had no effect: the hold is what it was. Otherwise an upgrade would find it exclusive, and mint no token.
                lease.set_mode(Mode::Exclusive);
            }
            lease.end_conversion(DOWNGRADE);
        }
        answer
    };
    let converted = match answer {
        Ok(converted) => converted,
        Err(e) => {
            if e.kind() == ErrorKind::Lost {
                engine.lose(lease, LossReason::Refused, false);
            }
            return Err(named(e));
        }
    };
    if let Converted::Done(grant) = &converted {
        match lease.confirm(engine.now(), grant.counted_from, grant.expires_in) {
            Look::Valid(_) => {}
            over => {
                if over == Look::JustExpired {
                    engine.expired(lease);
                }
                return Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))));
            }
        }
        // The token first: whoever sees the exclusive mode sees its token.
        lease.set_token(grant.token);
        lease.set_mode(to);
        lease.schedule_renewal(grant.counted_from, grant.expires_in);
        engine.reschedule(lease);
        engine.poke_poller(&lease.key.name);
    }
    Ok(converted)
}

/// Whether that error proves that the store has not converted.
fn had_no_effect(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Unavailable
            | ErrorKind::LimitReached
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
            | ErrorKind::Unsupported
    )
}

/// A future that waits for the answer to an upgrade.
struct Upgrading<'a>(&'a Lease);

impl Drop for Upgrading<'_> {
    fn drop(&mut self) {
        self.0.end_conversion(UPGRADE);
    }
}
