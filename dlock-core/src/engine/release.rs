//! Letting go, and renewing by hand.
//!
//! What could break a release, and why it does not:
//!
//! * *The future is dropped at any poll, or the guard is.* The lease is first marked as releasing, so that nothing renews
//!   it and no guard calls it valid; an `Owed` on the stack hands the rest to the keeper. At the latest it lapses.
//! * *The reply is lost.* `Unknown`, and the keeper goes on. Every release names this acquisition's key, so however
//!   late it arrives it cannot end a successor's lease (I5).
//! * *A renewal is on its way.* Whichever reaches the store first: after the release there is no lease to renew, and the
//!   renewal's answer finds the lease ended here and changes nothing.
//! * *The deadline passes first.* Then it is lost, not released, and the caller is told `Lost`.
//! * *The client closes meanwhile.* A release counts as in flight from before the lease leaves the keeper's care until it is settled or
//!   owed: closing waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;

use super::core::{Core, Engine};
use super::lease::{End, Lease};
use super::planted::{Assumed, keep_renewing};
use super::validity::Look;
use crate::capabilities::Capability;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::events::GuardEvent;
use crate::observe;
use crate::options::need;
use crate::saboteur::Bug;
use crate::spi::{Released, RenewItem, RenewOutcome};

/// Releases a lease whose last guard lets go, which happens once.
pub(crate) async fn release(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Result<()> {
    // planted: 14.03
    while engine.bug.is(Bug::ReleaseBehindWaiter) && engine.waits_for(&lease.key.name) {
        Box::pin(engine.pause(Duration::from_millis(5))).await?;
    }
    // planted: 9.03
    if engine.bug.is(Bug::CancelledReleaseRenews) {
        Box::pin(engine.pause(Duration::from_millis(1))).await?;
    }
    let _in_flight = InFlight::new(engine);
    match lease.begin_release(engine.now()) {
        Look::Valid(_) => engine.let_go(lease),
        Look::JustExpired => {
            engine.expired(lease);
            // planted: 4.05
            if engine.bug.is(Bug::ReleaseSwallowsNotHeld) {
                return Ok(());
            }
            let reason = lease.loss().unwrap_or(LossReason::Expired);
            return Err(Error::lost(reason).with_name(&lease.key.name));
        }
        // planted: 4.05
        Look::Ended if engine.bug.is(Bug::ReleaseSwallowsNotHeld) => return Ok(()),
        Look::Ended => {
            let reason = lease.loss().unwrap_or(LossReason::Released);
            return Err(Error::lost(reason).with_name(&lease.key.name));
        }
    }
    lease.awaits_release();
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
            settle(engine, lease, released);
            // planted: 5.10
            if engine.bug.is(Bug::ZombieRenewer) && lease.options.renew_period(lease.span()).is_some() {
                keep_renewing(engine, &lease.key, lease.mode(), &lease.options);
            }
            match released {
                Released::Released => Ok(()),
                // planted: 4.05
                _ if engine.bug.is(Bug::ReleaseSwallowsNotHeld) => Ok(()),
                _ => {
                    let reason = lease.loss().unwrap_or(LossReason::Refused);
                    Err(Error::lost(reason).with_name(&lease.key.name))
                }
            }
        }
        // planted: 4.06
        Err(e) if engine.bug.is(Bug::RenewerSurvivesFailedRelease) => {
            owed.disarm();
            keep_renewing(engine, &lease.key, lease.mode(), &lease.options);
            Err(Error::new(ErrorKind::Unknown, "the release failed").with_source(e))
        }
        // planted: 15.05
        Err(_) if engine.bug.is(Bug::IoErrorIsOk) => Ok(()),
        Err(e) => {
            let message = "whether the lock was released is not known yet; the client goes on releasing it in the background";
            Err(Error::new(ErrorKind::Unknown, message)
                .with_name(&lease.key.name)
                .with_source(e))
        }
    }
}

/// Notes the outcome of a release.
pub(super) fn settle(core: &Core, lease: &Lease, released: Released) {
    // planted: 6.03
    let end = if released == Released::Released && !core.bug.is(Bug::LostOnRelease) {
        End::Released
    } else {
        End::Lost(LossReason::Refused)
    };
    // The keeper and a user who asks again may both hear of it: it is counted once.
    if lease.end_release(end) {
        match end {
            // planted: 17.08
            End::Released if core.bug.is(Bug::NoEvents) => {}
            End::Released => observe::released(&core.caps, lease, || core.now()),
            _ => observe::lost(&core.caps, lease, LossReason::Refused),
        }
    }
    core.bury_stray(lease);
    core.poke_poller(&lease.key.name);
}

/// A release that was begun and of which the outcome is not known. Dropped while armed, the keeper owes it.
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

/// The last guard was dropped without a release: the keeper owes it. Neither blocks nor does I/O (I2).
pub(crate) fn drop_lease(core: &Core, lease: &Arc<Lease>) {
    // planted: 4.08
    #[cfg(dlock_saboteur)]
    if core.bug.is(Bug::DropNeedsRuntime) && std::thread::current().id() != core.home {
        // As a panic, without its message: nobody reads a hundred of them.
        std::panic::resume_unwind(Box::new("no runtime is running on this thread"));
    }
    // planted: 4.09
    if core.bug.is(Bug::DropKeepsRenewing) && lease.options.renew_period(lease.span()).is_some() {
        return;
    }
    // planted: 17.04
    if core.bug.is(Bug::PanicInDrop) && core.check_open().is_err() && !std::thread::panicking() {
        panic!("the client of this guard is closed");
    }
    let _in_flight = InFlight::new(core);
    match lease.begin_release(core.now()) {
        // planted: 4.10
        Look::Valid(_) if core.bug.is(Bug::DropWaitsTtl) => core.let_go(lease),
        Look::Valid(_) => {
            core.let_go(lease);
            core.owe_release(lease);
        }
        Look::JustExpired => core.expired(lease),
        Look::Ended => {}
    }
}

/// Renews by hand. The deadline moves only when the answer is here: dropped before, nothing has changed.
pub(crate) async fn renew(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Result<()> {
    let named = |e: Error| e.with_name(&lease.key.name);
    engine.check_open().map_err(named)?;
    let Some(part) = engine.backend.renew() else {
        return need(&engine.caps, Capability::Renew, "renewing");
    };
    if engine.remaining(lease).is_zero() {
        return Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))));
    }
    let items = [RenewItem::lease(lease.key.clone(), lease.options.ttl)];
    // planted: 9.04
    let assumed = engine
        .bug
        .is(Bug::CancelledRenewExtends)
        .then(|| Assumed::new(engine, lease));
    // planted: 5.07
    if engine.bug.is(Bug::OptimisticRenew) {
        lease.confirm(engine.now(), engine.now(), lease.span());
    }
    let outcome = match engine.ask(engine.op_timeout, part.renew(&items).map(Ok)).await {
        Ok(mut outcomes) => {
            if let Some(assumed) = assumed {
                assumed.answered();
            }
            outcomes.pop()
        }
        Err(e) => Some(RenewOutcome::Failed(e)),
    };
    match outcome {
        Some(RenewOutcome::Renewed(r)) => {
            let now = engine.now();
            // planted: 6.07
            #[cfg(dlock_saboteur)]
            if engine.bug.is(Bug::LostRecovers) {
                lease.recover(now + r.expires_in);
            }
            // planted: 16.10
            if engine.bug.is(Bug::IgnoresLatency) {
                lease.confirm(now, now, r.expires_in);
            }
            lease.start_anew(r.counted_from);
            match lease.confirm(now, r.counted_from, r.expires_in) {
                Look::Valid(_) => {
                    observe::renewed(&engine.caps, lease, now.since(r.counted_from));
                    lease.schedule_renewal(r.counted_from, r.expires_in);
                    engine.reschedule(lease);
                    lease.emit(GuardEvent::Renewed);
                    return Ok(());
                }
                // The answer came after the deadline: lost all the same, and given back.
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
