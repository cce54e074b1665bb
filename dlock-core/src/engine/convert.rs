//! Downgrade and upgrade in place.
//!
//! A conversion that had no effect (refused, or `Unavailable`) leaves the guard as it was. One whose outcome
//! is not known (dropped future, lost reply) leaves the guard with the *weaker* of the two modes: the store
//! may have the stronger one, which costs others a wait and nobody exclusion. Asking again settles it, since
//! a conversion to the mode that the lease already has is done at once.
//!
//! A conversion names no state to convert *from*, so what two of them lead to depends on which the store sees
//! last. D is a downgrade, U an upgrade; the store may see them late, and after their futures were dropped.
//!
//! * Two futures wait, for U and D, for two U, or for two D: the store does U, then D; D's answer is read
//!   first, then U's and is believed, so a guard that is shared in the store counts as exclusive. Or D1 is
//!   answered, U is done, and then D2 arrives. So while a future waits for the answer to a conversion no
//!   other one is sent. One whose future was dropped has no answer that anybody reads.
//! * D unanswered, U answered, then D arrives: others would be let in beside a guard that believes to be
//!   exclusive. So a lease whose downgrade went unanswered is never upgraded again.
//! * U unanswered, then D: the store may have done U before, while the guard counts as shared. So D is sent
//!   whatever the guard counts as, or readers would stay out until the release. U may also arrive *after* D
//!   was answered, and the store is exclusive again: nobody is let in who should not be, and the next D takes
//!   it back. So an unanswered upgrade is remembered for as long as the hold lasts, and each later D is sent.
//!   If such a D is refused, the guard stays what it counted as, and that is not exclusive.

use std::sync::Arc;

use super::handle::Engine;
use super::lease::{CONVERTING, DOWNGRADE, Lease, UPGRADE};
use super::validity::Look;
use crate::capabilities::Capability;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::spi::Converted;

pub(crate) async fn convert(engine: &Arc<Engine>, lease: &Arc<Lease>, to: Mode) -> Result<Converted> {
    let named = |e: Error| e.with_name(&lease.key.name);
    engine.check_open().map_err(named)?;
    let (capability, what) = match to {
        Mode::Exclusive => (Capability::Upgrade, "an upgrade"),
        Mode::Shared { .. } => (Capability::Downgrade, "a downgrade"),
    };
    engine.caps.need(capability, what)?;
    let Some(part) = engine.backend.rwlock() else {
        let message = format!(
            "{} claims {capability:?} and has no RwLock part",
            engine.caps.backend
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    };
    if engine.remaining(lease).is_zero() {
        return Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))));
    }
    let asking = engine.ask(engine.op_timeout, part.convert(&lease.key, to));
    let before = lease.begin_conversion(CONVERTING);
    if before & CONVERTING != 0 {
        if to.is_exclusive() {
            return Ok(Converted::Busy);
        }
        let message = "another task converts this hold: ask again when it has its answer";
        return Err(named(Error::new(ErrorKind::Unavailable, message)));
    }
    // To the end of this function, when the answer has been acted on.
    let _converting = Converting(lease);
    let answer = if to.is_exclusive() {
        if before & DOWNGRADE != 0 {
            let message = "a downgrade of this hold went unanswered and may still take effect: release it, \
                and acquire anew";
            return Err(named(Error::new(ErrorKind::Unknown, message)));
        }
        lease.begin_conversion(UPGRADE);
        let answer = asking.await;
        if is_answered(&answer) && before & UPGRADE == 0 {
            lease.end_conversion(UPGRADE);
        }
        answer
    } else {
        let mode = lease.mode();
        if !lease.weaken(to) {
            let message =
                "this owner holds the lock more than once: a downgrade would take it from the other guards";
            return Err(named(Error::new(ErrorKind::InvalidInput, message)));
        }
        lease.begin_conversion(DOWNGRADE);
        let answer = asking.await;
        if is_answered(&answer) && before & DOWNGRADE == 0 {
            if answer.is_err() {
                // It had no effect: the hold is what it was. Otherwise an upgrade would find it exclusive,
                // and mint no token.
                lease.set_mode(mode);
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
        lease.start_anew(grant.counted_from);
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

/// Whether that proves that the conversion will not take effect any more: it has, or the store has refused
/// it.
fn is_answered(answer: &Result<Converted>) -> bool {
    let Err(e) = answer else { return true };
    matches!(
        e.kind(),
        ErrorKind::Unavailable
            | ErrorKind::LimitReached
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
            | ErrorKind::Unsupported
    )
}

/// A future that waits for the answer to a conversion.
struct Converting<'a>(&'a Lease);

impl Drop for Converting<'_> {
    fn drop(&mut self) {
        self.0.end_conversion(CONVERTING);
    }
}
