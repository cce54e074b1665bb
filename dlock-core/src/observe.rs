//! What a service is watched with: tracing under the feature `tracing`, metrics under the feature `metrics`.
//! Without them nothing of this is compiled.
//!
//! Lock names are fields of spans and events, and never labels of metrics: there can be any number of them.
//!
//! # Tracing
//!
//! All have the target `dlock` and the fields `backend` and `lock`.
//!
//! | span | level | fields |
//! |---|---|---|
//! | `dlock.acquire` | debug | `mode`; at its end `outcome` (`granted`, `held`, `cancelled` or the kind of the error) and `wait`, the time since the call |
//!
//! | event | level | further fields |
//! |---|---|---|
//! | `dlock.acquired` | debug | `id`, `token`, `expires_in` as the store gave it, `waited` as `dlock_wait_seconds` below. Within the span of its acquire |
//! | `dlock.renewed` | trace | `id`, `token`, `lag` |
//! | `dlock.renewal_failed` | warn | `id`, `token`, `error` |
//! | `dlock.lost` | warn | `id`, `token`, `reason` |
//! | `dlock.released` | debug | `id`, `token`: the store confirmed it |
//!
//! # Metrics
//!
//! All have the label `backend`.
//!
//! | metric | kind | what |
//! |---|---|---|
//! | `dlock_acquired_total` | counter | grants that became guards; a re-entry is none |
//! | `dlock_released_total` | counter | releases that the store confirmed |
//! | `dlock_lost_total{reason}` | counter | losses |
//! | `dlock_renewal_failures_total` | counter | renewals that failed; the lease stands until its deadline |
//! | `dlock_wait_seconds` | histogram | of acquires that the first request did not settle: from its answer at the latest, to the guard |
//! | `dlock_handoff_seconds` | histogram | of grants that the store pushed to a waiter: from when the lease began to count until that waiter runs |
//! | `dlock_hold_seconds` | histogram | from the guard to its confirmed release |
//! | `dlock_renew_lag_seconds` | histogram | from sending a renewal to having its answer |
//!
//! The hand-off is an upper bound. A lease counts from a time on the client's clock that is never after the
//! grant; a backend that cannot tell the moment of the grant takes an earlier one, by up to a round trip.
//! Grants that a waiter had to ask for are left out: they count from that request, which says nothing of the
//! release before it.

#![cfg_attr(not(all(feature = "tracing", feature = "metrics")), allow(unused_variables))]

use std::time::Duration;

use crate::capabilities::Capabilities;
use crate::engine::Lease;
use crate::error::{Error, LossReason};
use crate::mode::Mode;
use crate::name::LockName;
use crate::spi::Grant;
use crate::timestamp::Timestamp;

/// An acquire in its span.
#[cfg(feature = "tracing")]
pub(crate) async fn acquiring<T>(
    backend: &'static str,
    name: &LockName,
    mode: Mode,
    now: impl Fn() -> Timestamp,
    acquire: impl Future<Output = crate::Result<Option<T>>>,
) -> crate::Result<Option<T>> {
    use tracing::Instrument as _;
    use tracing::field::{Empty, debug};

    /// Says how it ended, if only by being dropped.
    struct Story<F: Fn() -> Timestamp> {
        now: F,
        span: tracing::Span,
        since: Timestamp,
        told: bool,
    }

    impl<F: Fn() -> Timestamp> Story<F> {
        fn end(&mut self, outcome: impl tracing::Value) {
            self.told = true;
            self.span.record("outcome", outcome);
            self.span.record("wait", debug((self.now)().since(self.since)));
        }
    }

    impl<F: Fn() -> Timestamp> Drop for Story<F> {
        fn drop(&mut self) {
            if !self.told {
                self.end("cancelled");
            }
        }
    }

    let span = tracing::debug_span!(
        target: "dlock", "dlock.acquire", backend, lock = %name, %mode, outcome = Empty, wait = Empty
    );
    if span.is_disabled() {
        return acquire.await;
    }
    let mut story = Story {
        since: now(),
        now,
        span: span.clone(),
        told: false,
    };
    let answer = acquire.instrument(span).await;
    match &answer {
        Ok(Some(_)) => story.end("granted"),
        Ok(None) => story.end("held"),
        Err(e) => story.end(debug(e.kind())),
    }
    answer
}

/// An acquire, as it is.
#[cfg(not(feature = "tracing"))]
pub(crate) fn acquiring<F: Future>(
    _: &'static str,
    _: &LockName,
    _: Mode,
    _: impl Fn() -> Timestamp,
    acquire: F,
) -> F {
    acquire
}

/// An event of one lease.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $name:literal, $caps:ident, $lease:ident, $($rest:tt)*) => {
        tracing::$level!(
            name: $name, target: "dlock", backend = $caps.backend, lock = %$lease.key.name,
            id = %$lease.key.id, token = $lease.token().map(crate::Token::get), $($rest)*
        )
    };
}

/// A grant became a guard. `started` is since when it waits, if the first request did not settle it.
pub(crate) fn acquired(
    caps: &Capabilities,
    lease: &Lease,
    expires_in: Duration,
    started: Option<Timestamp>,
    now: Timestamp,
) {
    #[cfg(feature = "tracing")]
    event!(
        debug,
        "dlock.acquired",
        caps,
        lease,
        ?expires_in,
        waited = started.map(|s| tracing::field::debug(now.since(s))),
        "acquired"
    );
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("dlock_acquired_total", "backend" => caps.backend).increment(1);
        if let Some(started) = started {
            metrics::histogram!("dlock_wait_seconds", "backend" => caps.backend)
                .record(now.since(started).as_secs_f64());
        }
    }
}

/// The store pushed a grant, and the waiter that it is for runs.
pub(crate) fn handed_over(caps: &Capabilities, grant: &Grant, now: impl FnOnce() -> Timestamp) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("dlock_handoff_seconds", "backend" => caps.backend)
        .record(now().since(grant.counted_from).as_secs_f64());
}

/// The store confirmed a release.
pub(crate) fn released(caps: &Capabilities, lease: &Lease, now: impl FnOnce() -> Timestamp) {
    #[cfg(feature = "tracing")]
    event!(debug, "dlock.released", caps, lease, "released");
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("dlock_released_total", "backend" => caps.backend).increment(1);
        metrics::histogram!("dlock_hold_seconds", "backend" => caps.backend)
            .record(now().since(lease.acquired_at).as_secs_f64());
    }
}

/// A lease was lost.
pub(crate) fn lost(caps: &Capabilities, lease: &Lease, reason: LossReason) {
    #[cfg(feature = "tracing")]
    event!(warn, "dlock.lost", caps, lease, ?reason, "lost");
    #[cfg(feature = "metrics")]
    {
        let reason = match reason {
            LossReason::Expired => "expired",
            LossReason::Refused => "refused",
            LossReason::SessionLost => "session_lost",
            LossReason::MaxHold => "max_hold",
            LossReason::Closed => "closed",
            LossReason::Released => "released",
        };
        metrics::counter!("dlock_lost_total", "backend" => caps.backend, "reason" => reason).increment(1);
    }
}

/// A renewal was confirmed.
pub(crate) fn renewed(caps: &Capabilities, lease: &Lease, lag: Duration) {
    #[cfg(feature = "tracing")]
    event!(trace, "dlock.renewed", caps, lease, ?lag, "renewed");
    #[cfg(feature = "metrics")]
    metrics::histogram!("dlock_renew_lag_seconds", "backend" => caps.backend).record(lag.as_secs_f64());
}

/// A renewal failed; the lease stands until its deadline.
pub(crate) fn renewal_failed(caps: &Capabilities, lease: &Lease, why: &Error) {
    #[cfg(feature = "tracing")]
    event!(warn, "dlock.renewal_failed", caps, lease, error = %why, "renewal failed");
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_renewal_failures_total", "backend" => caps.backend).increment(1);
}
