//! Observability: tracing under the feature `tracing`, metrics under the feature `metrics`. Without the
//! features none of it is compiled.
//!
//! Lock names are fields of spans and events, but never labels of metrics: there can be any number of names.
//!
//! # Tracing
//!
//! All spans and events have the target `dlock` and the fields `backend` and `lock`.
//!
//! | span | level | fields |
//! |---|---|---|
//! | `dlock.acquire` | debug | `mode`; when it ends, `outcome`, as below, and `wait`, the time since the call |
//!
//! | event | level | further fields |
//! |---|---|---|
//! | `dlock.acquired` | debug | `id`, `token`, `expires_in` as granted by the store, `waited` as in `dlock_wait_seconds` below. Within the span of its acquire |
//! | `dlock.renewed` | trace | `id`, `token`, `lag`: the time from request to answer |
//! | `dlock.renewal_failed` | warn | `id`, `token`, `error`. The lock is held until its deadline |
//! | `dlock.lost` | warn | `id`, `token`, `reason`: a [`LossReason`] |
//! | `dlock.released` | debug | `id`, `token`. The store has confirmed the release |
//!
//! # Metrics
//!
//! All metrics have the label `backend`. [`describe`] registers their help texts and units. From the first
//! client of a backend on, all metrics exist, with every value that a label can have, at zero. Otherwise
//! Prometheus would see no increase in a counter that first appears at one, and no alarm would notice a first
//! loss. So install the recorder before you create the first client. `docs/prometheus` has alarms on these
//! metrics, and a dashboard.
//!
//! | metric | kind | what |
//! |---|---|---|
//! | `dlock_acquires_total{outcome}` | counter | calls that ended: `granted`, `held` by somebody else, `cancelled` (dropped), or the kind of the error: `timeout`, `unknown`, `unavailable` ... |
//! | `dlock_acquired_total` | counter | grants that became guards; a re-entry is none |
//! | `dlock_released_total` | counter | releases that the store confirmed |
//! | `dlock_lost_total{reason}` | counter | losses |
//! | `dlock_renewal_failures_total` | counter | renewals that failed; the lock is held until its deadline |
//! | `dlock_gate_total{answer}` | counter | answers of a fence gate: `admitted`, or `refused`, for a stale token |
//! | `dlock_held` | gauge | leases that are held, as far as the client knows |
//! | `dlock_waiting` | gauge | acquires that wait |
//! | `dlock_wait_seconds` | histogram | waits of acquires that the first request did not settle, from the answer to that request at the latest until the guard |
//! | `dlock_handoff_seconds` | histogram | hand-offs that the store pushed, from when the lease began to count until the waiter runs |
//! | `dlock_hold_seconds` | histogram | from the guard to its confirmed release |
//! | `dlock_renew_lag_seconds` | histogram | from sending a renewal to its answer |
//!
//! The hand-off time is an upper bound. A lease counts from a time on the client's clock that is never after
//! the grant. A backend that cannot report the moment of the grant uses an earlier time, by up to a round
//! trip. Grants that a waiter had to ask for are excluded: they count from that request, which says nothing
//! about the release before it.

#![cfg_attr(not(all(feature = "tracing", feature = "metrics")), allow(unused_variables))]

use std::time::Duration;

use crate::capabilities::Capabilities;
use crate::engine::Lease;
#[cfg(any(feature = "tracing", feature = "metrics"))]
use crate::error::ErrorKind;
use crate::error::{Error, LossReason};
use crate::gate::Admission;
use crate::mode::Mode;
use crate::name::LockName;
use crate::spi::Grant;
use crate::timestamp::Timestamp;

/// Registers all metrics of a new client's backend, at zero.
pub(crate) fn register_metrics(caps: &Capabilities) {
    #[cfg(feature = "metrics")]
    {
        let backend = caps.backend;
        for name in [
            "dlock_acquired_total",
            "dlock_released_total",
            "dlock_renewal_failures_total",
        ] {
            drop(metrics::counter!(name, "backend" => backend));
        }
        for outcome in ["granted", "held", "cancelled"]
            .into_iter()
            .chain(KINDS.map(word))
        {
            drop(metrics::counter!("dlock_acquires_total", "backend" => backend, "outcome" => outcome));
        }
        for reason in REASONS.map(reason) {
            drop(metrics::counter!("dlock_lost_total", "backend" => backend, "reason" => reason));
        }
        for answer in ["admitted", "refused"] {
            drop(metrics::counter!("dlock_gate_total", "backend" => backend, "answer" => answer));
        }
        for name in ["dlock_held", "dlock_waiting"] {
            drop(metrics::gauge!(name, "backend" => backend));
        }
        for name in [
            "dlock_wait_seconds",
            "dlock_handoff_seconds",
            "dlock_hold_seconds",
            "dlock_renew_lag_seconds",
        ] {
            drop(metrics::histogram!(name, "backend" => backend));
        }
    }
}

/// Observes an acquire: its span, and its outcome, also if it is dropped.
#[cfg(any(feature = "tracing", feature = "metrics"))]
pub(crate) async fn acquiring<T>(
    backend: &'static str,
    name: &LockName,
    mode: Mode,
    now: impl Fn() -> Timestamp,
    acquire: impl Future<Output = crate::Result<Option<T>>>,
) -> crate::Result<Option<T>> {
    #[allow(dead_code)] // each of the two features reads some of it
    struct Story<F: Fn() -> Timestamp> {
        backend: &'static str,
        outcome: &'static str,
        now: F,
        since: Timestamp,
        #[cfg(feature = "tracing")]
        span: tracing::Span,
    }

    impl<F: Fn() -> Timestamp> Drop for Story<F> {
        fn drop(&mut self) {
            #[cfg(feature = "tracing")]
            {
                self.span.record("outcome", self.outcome);
                let wait = (self.now)().since(self.since);
                self.span.record("wait", tracing::field::debug(wait));
            }
            #[cfg(feature = "metrics")]
            metrics::counter!("dlock_acquires_total", "backend" => self.backend, "outcome" => self.outcome)
                .increment(1);
        }
    }

    let mut story = Story {
        backend,
        outcome: "cancelled",
        since: now(),
        now,
        #[cfg(feature = "tracing")]
        span: {
            use tracing::field::Empty;
            tracing::debug_span!(
                target: "dlock", "dlock.acquire", backend, lock = %name, %mode, outcome = Empty, wait = Empty
            )
        },
    };
    #[cfg(feature = "tracing")]
    let acquire = tracing::Instrument::instrument(acquire, story.span.clone());
    let answer = acquire.await;
    story.outcome = match &answer {
        Ok(Some(_)) => "granted",
        Ok(None) => "held",
        Err(e) => word(e.kind()),
    };
    answer
}

/// Observes nothing.
#[cfg(not(any(feature = "tracing", feature = "metrics")))]
pub(crate) fn acquiring<F: Future>(
    _: &'static str,
    _: &LockName,
    _: Mode,
    _: impl Fn() -> Timestamp,
    acquire: F,
) -> F {
    acquire
}

#[cfg(any(feature = "tracing", feature = "metrics"))]
fn word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Timeout => "timeout",
        ErrorKind::Lost => "lost",
        ErrorKind::Unknown => "unknown",
        ErrorKind::InvalidInput => "invalid_input",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::LimitReached => "limit_reached",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::BackendData => "backend_data",
        ErrorKind::Closed => "closed",
    }
}

/// Every value.
#[cfg(feature = "metrics")]
const KINDS: [ErrorKind; 10] = [
    ErrorKind::Timeout,
    ErrorKind::Lost,
    ErrorKind::Unknown,
    ErrorKind::InvalidInput,
    ErrorKind::Unsupported,
    ErrorKind::LimitReached,
    ErrorKind::Unavailable,
    ErrorKind::PermissionDenied,
    ErrorKind::BackendData,
    ErrorKind::Closed,
];

#[cfg(feature = "metrics")]
fn reason(of: LossReason) -> &'static str {
    match of {
        LossReason::Expired => "expired",
        LossReason::Refused => "refused",
        LossReason::SessionLost => "session_lost",
        LossReason::MaxHold => "max_hold",
        LossReason::Closed => "closed",
        LossReason::Released => "released",
    }
}

/// Every value.
#[cfg(feature = "metrics")]
const REASONS: [LossReason; 6] = [
    LossReason::Expired,
    LossReason::Refused,
    LossReason::SessionLost,
    LossReason::MaxHold,
    LossReason::Closed,
    LossReason::Released,
];

/// Registers the help text and the unit of each metric with the recorder of this process. Call it once, after
/// the recorder was installed.
#[cfg(feature = "metrics")]
pub fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!("dlock_acquires_total", "acquires that ended, by outcome");
    describe_counter!("dlock_acquired_total", "grants that became guards");
    describe_counter!("dlock_released_total", "releases that the store confirmed");
    describe_counter!("dlock_lost_total", "locks that were lost, by reason");
    describe_counter!(
        "dlock_renewal_failures_total",
        "renewals that failed; the lock is held until its deadline"
    );
    describe_counter!(
        "dlock_gate_total",
        "tokens that a fence gate admitted, or refused because they were stale"
    );
    describe_gauge!("dlock_held", "locks that are held");
    describe_gauge!("dlock_waiting", "acquires that wait");
    let seconds = |name: &'static str, what: &'static str| describe_histogram!(name, Unit::Seconds, what);
    seconds("dlock_wait_seconds", "waits for a lock that was not free");
    seconds(
        "dlock_handoff_seconds",
        "from the grant to a waiter until that waiter runs",
    );
    seconds("dlock_hold_seconds", "from a grant to its confirmed release");
    seconds("dlock_renew_lag_seconds", "from sending a renewal to its answer");
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

/// A grant became a guard. `started` is when its wait began, if the first request did not settle it.
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
        "lock acquired"
    );
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("dlock_acquired_total", "backend" => caps.backend).increment(1);
        metrics::gauge!("dlock_held", "backend" => caps.backend).increment(1.0);
        if let Some(started) = started {
            metrics::histogram!("dlock_wait_seconds", "backend" => caps.backend)
                .record(now.since(started).as_secs_f64());
        }
    }
}

/// A lease is not held any more: it was lost, or its release has register_metrics.
pub(crate) fn ended(caps: &Capabilities) {
    #[cfg(feature = "metrics")]
    metrics::gauge!("dlock_held", "backend" => caps.backend).decrement(1.0);
}

/// A waiting acquire, while this value lives.
pub(crate) struct Waiting(#[cfg(feature = "metrics")] metrics::Gauge);

impl Waiting {
    pub(crate) fn new(caps: &Capabilities) -> Self {
        #[cfg(feature = "metrics")]
        {
            let gauge = metrics::gauge!("dlock_waiting", "backend" => caps.backend);
            gauge.increment(1.0);
            Self(gauge)
        }
        #[cfg(not(feature = "metrics"))]
        Self()
    }
}

#[cfg(feature = "metrics")]
impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A fence gate answered.
pub(crate) fn gated(caps: &Capabilities, admission: &Admission) {
    #[cfg(feature = "metrics")]
    {
        let answer = if admission.is_admitted() {
            "admitted"
        } else {
            "refused"
        };
        metrics::counter!("dlock_gate_total", "backend" => caps.backend, "answer" => answer).increment(1);
    }
}

/// The store pushed a grant, and its waiter runs.
pub(crate) fn handed_over(caps: &Capabilities, grant: &Grant, now: impl FnOnce() -> Timestamp) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("dlock_handoff_seconds", "backend" => caps.backend)
        .record(now().since(grant.counted_from).as_secs_f64());
}

/// The store confirmed a release.
pub(crate) fn released(caps: &Capabilities, lease: &Lease, now: impl FnOnce() -> Timestamp) {
    #[cfg(feature = "tracing")]
    event!(debug, "dlock.released", caps, lease, "lock released");
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
    event!(warn, "dlock.lost", caps, lease, ?reason, "lock lost: {reason}");
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_lost_total", "backend" => caps.backend, "reason" => self::reason(reason))
        .increment(1);
}

/// A renewal was confirmed.
pub(crate) fn renewed(caps: &Capabilities, lease: &Lease, lag: Duration) {
    #[cfg(feature = "tracing")]
    event!(trace, "dlock.renewed", caps, lease, ?lag, "lease renewed");
    #[cfg(feature = "metrics")]
    metrics::histogram!("dlock_renew_lag_seconds", "backend" => caps.backend).record(lag.as_secs_f64());
}

/// A renewal failed; the lock is held until its deadline.
pub(crate) fn renewal_failed(caps: &Capabilities, lease: &Lease, why: &Error) {
    #[cfg(feature = "tracing")]
    event!(warn, "dlock.renewal_failed", caps, lease, error = ?why, "renewal failed");
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_renewal_failures_total", "backend" => caps.backend).increment(1);
}
