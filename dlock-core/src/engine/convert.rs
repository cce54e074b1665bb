//! Downgrade and upgrade in place.
//!
//! A conversion whose outcome is not known (dropped future, lost reply) leaves the guard with the *weaker* of the two modes:
//! the store may have the stronger one, which costs others a wait and nobody exclusion. Asking again settles it, since a
//! conversion to the mode that the lease already has is done at once.

use std::sync::Arc;

use super::core::Engine;
use super::lease::Lease;
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
    if let Mode::Shared { .. } = to {
        lease.set_mode(to);
    }
    let converted = engine
        .ask(engine.op_timeout, part.convert(&lease.key, to))
        .await
        .and_then(|c| c)
        .map_err(named)?;
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
