//! Tracing events and metrics, behind the features of those names.
//!
//! Lock names are fields of tracing events and never labels of metrics: there can be any number of them.
//!
//! | metric | kind | what |
//! |---|---|---|
//! | `dlock_acquired_total` | counter | grants that became guards |
//! | `dlock_released_total` | counter | releases that the store confirmed |
//! | `dlock_lost_total{reason}` | counter | losses |
//! | `dlock_renewal_failures_total` | counter | renewals that failed and are tried again |
//! | `dlock_wait_seconds` | histogram | from the call of a contended acquire to its guard |
//! | `dlock_handoff_seconds` | histogram | from the time that the store began to count a contended grant to its guard |
//! | `dlock_hold_seconds` | histogram | from the guard to its confirmed release |
//! | `dlock_renew_lag_seconds` | histogram | from sending a renewal to having its answer |
//!
//! All carry the label `backend`.

#![cfg_attr(not(any(feature = "tracing", feature = "metrics")), allow(unused_variables))]

use std::time::Duration;

use crate::capabilities::Capabilities;
use crate::engine::Lease;
use crate::error::{Error, LossReason};
use crate::spi::Grant;
use crate::timestamp::Timestamp;

/// A grant became a guard. `started` is when a contended acquire was called.
pub(crate) fn acquired(
    caps: &Capabilities,
    lease: &Lease,
    grant: &Grant,
    started: Option<Timestamp>,
    now: Timestamp,
) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        name: "dlock.acquired", target: "dlock", backend = caps.backend, lock = %lease.key.name, id = %lease.key.id,
        token = lease.token().map(crate::Token::get), waited = ?started.map(|s| now.since(s)), "acquired"
    );
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("dlock_acquired_total", "backend" => caps.backend).increment(1);
        if let Some(started) = started {
            metrics::histogram!("dlock_wait_seconds", "backend" => caps.backend)
                .record(now.since(started).as_secs_f64());
            metrics::histogram!("dlock_handoff_seconds", "backend" => caps.backend)
                .record(now.since(grant.counted_from).as_secs_f64());
        }
    }
}

/// The store confirmed a release.
pub(crate) fn released(caps: &Capabilities, lease: &Lease, now: impl FnOnce() -> Timestamp) {
    #[cfg(feature = "tracing")]
    tracing::debug!(
        name: "dlock.released", target: "dlock", backend = caps.backend, lock = %lease.key.name, id = %lease.key.id,
        token = lease.token().map(crate::Token::get), "released"
    );
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
    tracing::warn!(
        name: "dlock.lost", target: "dlock", backend = caps.backend, lock = %lease.key.name, id = %lease.key.id,
        token = lease.token().map(crate::Token::get), ?reason, "lost"
    );
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
    tracing::trace!(
        name: "dlock.renewed", target: "dlock", backend = caps.backend, lock = %lease.key.name, id = %lease.key.id,
        token = lease.token().map(crate::Token::get), ?lag, "renewed"
    );
    #[cfg(feature = "metrics")]
    metrics::histogram!("dlock_renew_lag_seconds", "backend" => caps.backend).record(lag.as_secs_f64());
}

/// A renewal failed and is tried again.
pub(crate) fn renewal_failed(caps: &Capabilities, lease: &Lease, why: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        name: "dlock.renewal_failed", target: "dlock", backend = caps.backend, lock = %lease.key.name,
        id = %lease.key.id, error = %why, "renewal failed"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_renewal_failures_total", "backend" => caps.backend).increment(1);
}
