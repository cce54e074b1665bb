//! Release, and renewal by hand.
//!
//! What could break a release, and why it does not:
//!
//! * *The future is dropped at any poll, or the guard is.* The lease is first marked as releasing, so that
//!   nothing renews it and no guard counts as valid; an `Owed` on the stack hands the rest to the keeper. It
//!   expires with its ttl at the latest.
//! * *The reply is lost.* The error is `Unknown`, and the keeper retries. Every release names this
//!   acquisition's key, so however late it arrives, it cannot end a successor's lease (I5).
//! * *A renewal is in transit.* The order does not matter: after the release there is no lease to renew, and
//!   the answer to the renewal finds the lease ended here and changes nothing.
//! * *The deadline passes first.* Then the lease is lost, not released, and the caller gets `Lost`.
//! * *The client closes meanwhile.* A release counts as in flight from before the keeper gives up the lease
//!   until it is settled or owed. Closing waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt as _;

use super::core::Core;
use super::handle::Engine;
use super::lease::Lease;
use super::validity::Look;
use crate::capabilities::Capability;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::events::GuardEvent;
use crate::observe;
use crate::spi::{Released, RenewItem, RenewOutcome};

/// Releases a lease whose last guard is released, which happens once.
pub(crate) async fn release(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Result<()> {
    let _in_flight = InFlight::new(engine);
    match lease.begin_release(engine.now()) {
        Look::Valid(_) => engine.let_go(lease),
        Look::JustExpired => {
            engine.expired(lease);
            let reason = lease.loss().unwrap_or(LossReason::Expired);
            return Err(Error::lost(reason).with_name(&lease.key.name));
        }
        Look::Ended => {
            let reason = lease.loss().unwrap_or(LossReason::Released);
            return Err(Error::lost(reason).with_name(&lease.key.name));
        }
    }
    let owed = Owed {
        core: engine,
        lease,
        armed: true,
    };
    let how = engine.release_mode(lease);
    let answer = engine
        .ask(engine.op_timeout, engine.backend.release(&lease.key, how))
        .await;
    match answer {
        Ok(released) => {
            owed.disarm();
            engine.settle(lease, released);
            match released {
                Released::Released => Ok(()),
                _ => {
                    let reason = lease.loss().unwrap_or(LossReason::Refused);
                    Err(Error::lost(reason).with_name(&lease.key.name))
                }
            }
        }
        Err(e) => {
            let message = "the release is not confirmed yet: the client continues it in the background";
            Err(Error::new(ErrorKind::Unknown, message)
                .with_name(&lease.key.name)
                .with_source(e))
        }
    }
}

/// A release that was begun and whose outcome is not known. Dropped while armed, the keeper owes it.
struct Owed<'a> {
    core: &'a Core,
    lease: &'a Arc<Lease>,
    armed: bool,
}

impl Owed<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.core.owe_release(self.lease);
        }
    }
}

/// A release that closing has to wait for.
struct InFlight<'a>(&'a Core);

impl<'a> InFlight<'a> {
    fn new(core: &'a Core) -> Self {
        core.in_flight.fetch_add(1, Ordering::AcqRel);
        Self(core)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.landed();
    }
}

/// Handles the drop of the last guard without a release, which the keeper owes then. Neither blocks nor does
/// I/O (I2).
pub(crate) fn drop_lease(core: &Core, lease: &Arc<Lease>) {
    let _in_flight = InFlight::new(core);
    match lease.begin_release(core.now()) {
        Look::Valid(_) => {
            core.let_go(lease);
            core.owe_release(lease);
        }
        Look::JustExpired => core.expired(lease),
        Look::Ended => {}
    }
}

/// Renews by hand. The deadline moves only when the answer arrives: dropped before, nothing has changed.
pub(crate) async fn renew(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Result<()> {
    let named = |e: Error| e.with_name(&lease.key.name);
    engine.check_open().map_err(named)?;
    let Some(part) = engine.backend.renew() else {
        return engine.caps.need(Capability::Renew, "renewing");
    };
    if engine.remaining(lease).is_zero() {
        return Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))));
    }
    let items = [RenewItem::lease(lease.key.clone(), lease.options.ttl)];
    let outcome = match engine.ask(engine.op_timeout, part.renew(&items).map(Ok)).await {
        Ok(mut outcomes) => outcomes.pop(),
        Err(e) => Some(RenewOutcome::Failed(e)),
    };
    match outcome {
        Some(RenewOutcome::Renewed(r)) => {
            let now = engine.now();
            lease.start_anew(r.counted_from);
            match lease.confirm(now, r.counted_from, r.expires_in) {
                Look::Valid(_) => {
                    observe::renewed(&engine.caps, lease, now.since(r.counted_from));
                    lease.schedule_renewal(r.counted_from, r.expires_in);
                    engine.reschedule(lease);
                    lease.emit(GuardEvent::Renewed);
                    return Ok(());
                }
                // The answer came after the deadline: the lease is lost all the same, and given back.
                Look::JustExpired => engine.expired(lease),
                Look::Ended => {}
            }
            Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))))
        }
        Some(RenewOutcome::Gone) => {
            engine.lose(lease, LossReason::Refused, false);
            Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))))
        }
        Some(RenewOutcome::Failed(e)) => {
            observe::renewal_failed(&engine.caps, lease, &e);
            lease.emit(GuardEvent::RenewalFailed(e.clone()));
            Err(named(e))
        }
        _ => Err(named(Error::new(
            ErrorKind::BackendData,
            "the backend gave no answer to a renewal",
        ))),
    }
}
