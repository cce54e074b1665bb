//! Downgrade and upgrade in place.
//!
//! A conversion that had no effect (refused, or `Unavailable`) leaves the guard as it was. One whose outcome
//! is not known (dropped future, lost reply) leaves the guard with the *weaker* of the two modes: the store
//! may have the stronger one, which costs others a wait and nobody exclusion. Asking again settles it, since
//! a conversion to the mode that the lease already has succeeds at once.
//!
//! A conversion names no state to convert *from*, so what two of them lead to depends on which the store sees
//! last. D is a downgrade, U an upgrade; the store may see them late, and after their futures were dropped.
//!
//! * Two futures wait, for U and D, for two U, or for two D: the store does U, then D; D's answer is read
//!   first, then U's and is believed, so a guard counts as exclusive although the store has it as shared. Or
//!   D1 is answered, U is done, and then D2 arrives. So no conversion is sent while a future waits for the
//!   answer to another. If that future was dropped, nobody reads its answer.
//! * D unanswered, U answered, then D arrives: others would be let in beside a guard that counts as
//!   exclusive. So a lease whose downgrade was not answered is never upgraded again.
//! * U unanswered, then D: the store may have done U, while the guard counts as shared. So D is sent whatever
//!   the guard counts as; otherwise readers would be kept out until the release. U may also arrive *after* D
//!   was answered, and the store is exclusive again: nobody is let in wrongly, and the next D undoes it. So
//!   an unanswered upgrade is remembered for as long as the hold lasts, and each later D is sent. If such a D
//!   is refused, the guard keeps counting as shared.

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
            "the backend {} claims {capability:?} but has no RwLock part: report this to the authors of \
                the backend",
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
        let message = "another task is converting this hold: try again when it is done";
        return Err(named(Error::new(ErrorKind::Unavailable, message)));
    }
    // Until the end of this function, when the answer has been applied.
    let _converting = Converting(lease);
    let answer = if to.is_exclusive() {
        if before & DOWNGRADE != 0 {
            let message = "a downgrade of this hold was not answered and may still take effect: release \
                the lock and acquire it again";
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
                "other guards of this owner share the exclusive hold: release them before the downgrade";
            return Err(named(Error::new(ErrorKind::InvalidInput, message)));
        }
        lease.begin_conversion(DOWNGRADE);
        let answer = asking.await;
        if is_answered(&answer) && before & DOWNGRADE == 0 {
            if answer.is_err() {
                // It had no effect, so the hold keeps its mode. Otherwise an upgrade would find it exclusive
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
        // The token first, so that a reader that sees the exclusive mode also sees its token.
        lease.set_token(grant.token);
        lease.set_mode(to);
        lease.schedule_renewal(grant.counted_from, grant.expires_in);
        engine.reschedule(lease);
        engine.poke_poller(&lease.key.name);
    }
    Ok(converted)
}

/// Whether the answer proves that the conversion will not take effect later: it has taken effect, or the
/// store has refused it.
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
