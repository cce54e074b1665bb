//! What tracing and metrics say of locks, in virtual time.
//!
//! A binary of its own, one test at a time: `tracing` keeps for the whole process who is interested in what,
//! and a test beside these that has no subscriber can make it forget theirs.
#![cfg(all(feature = "sim", feature = "tracing", feature = "metrics"))]
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::memory::Config;
use dlock_core::sim::Sim;
use dlock_core::{Capability, Client, Memory, Runtime};
use futures::FutureExt as _;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct World {
    runtime: Arc<dyn Runtime>,
    store: Memory,
}

impl World {
    fn client(&self) -> Client {
        Client::builder(self.store.connect(), self.runtime.clone())
            .build()
            .unwrap()
    }
}

/// One client holds `a` for 100 ms while another waits for it.
async fn hand_over(w: &World) {
    let (one, two) = (w.client(), w.client());
    let held = one.lock("a").unwrap().acquire().await.unwrap();
    let waits = async {
        let guard = two.lock("a").unwrap().acquire().await.unwrap();
        guard.release().await.unwrap();
    };
    let holds = async {
        w.runtime.sleep(ms(100)).await;
        held.release().await.unwrap();
    };
    futures::join!(waits, holds);
}

// ---- metrics ----

/// Everything that was recorded, by `name{labels}`; a counter as one number.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

struct Series(Recorded, String);

impl CounterFn for Series {
    fn increment(&self, by: u64) {
        let mut all = self.0.0.lock().unwrap();
        let values = all.entry(self.1.clone()).or_default();
        let so_far = values.pop().unwrap_or(0.0);
        values.push(so_far + by as f64);
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Series {
    fn increment(&self, by: f64) {
        let mut all = self.0.0.lock().unwrap();
        let values = all.entry(self.1.clone()).or_default();
        // Each value that it had.
        let last = values.last().copied().unwrap_or(0.0);
        values.push(last + by);
    }

    fn decrement(&self, by: f64) {
        GaugeFn::increment(self, -by);
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        let mut all = self.0.0.lock().unwrap();
        all.entry(self.1.clone()).or_default().push(value);
    }
}

impl Recorded {
    fn series(&self, key: &Key) -> Arc<Series> {
        let labels: Vec<_> = key
            .labels()
            .map(|l| format!("{}={}", l.key(), l.value()))
            .collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        self.0.lock().unwrap().entry(name.clone()).or_default();
        Arc::new(Series(self.clone(), name))
    }

    /// All that are there, with a value or not.
    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    fn get(&self, series: &str) -> Vec<f64> {
        self.0.lock().unwrap().get(series).cloned().unwrap_or_default()
    }
}

impl metrics::Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

fn measured<F: Future<Output = ()>>(
    set_up: impl Fn(Config) -> Config,
    test: impl Fn(World) -> F,
) -> Recorded {
    let recorded = Recorded::default();
    metrics::with_local_recorder(&recorded, || {
        let sim = Sim::new(7);
        let runtime = sim.runtime();
        let store = set_up(Config::new()).connect(runtime.clone());
        sim.block_on(test(World { runtime, store }));
    });
    recorded
}

#[test]
fn pushed_grant_is_measured_as_hand_off_and_wait() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = measured(|m| m, |w| async move { hand_over(&w).await });
    assert_eq!(seen.get("dlock_acquired_total{backend=memory}"), [2.0]);
    assert_eq!(seen.get("dlock_released_total{backend=memory}"), [2.0]);
    let [wait] = seen.get("dlock_wait_seconds{backend=memory}")[..] else {
        panic!("the first acquire did not wait");
    };
    assert!((0.1..0.11).contains(&wait), "{wait}");
    let [hand_off] = seen.get("dlock_handoff_seconds{backend=memory}")[..] else {
        panic!("one hand-off");
    };
    assert!(hand_off < 0.01, "{hand_off}");
}

#[test]
fn held_and_waiting_gauges_go_up_and_down() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let held_then_waited = async |w: World| {
        hand_over(&w).await;
        let client = w.client();
        let lock = client.lock("a").unwrap();
        let dropped = lock.acquire().await.unwrap();
        assert!(lock.acquire().now_or_never().is_none());
        drop(dropped);
        // One is ended by an operator, and hears of it; two last until their clients end; one expires.
        let forced = lock.acquire().await.unwrap();
        client.force_release("a").await.unwrap();
        forced.renew().await.unwrap_err();
        let _closed = lock.acquire().await.unwrap();
        client.close().await.unwrap();
        let client = w.client();
        let aborted = client.lock("a").unwrap().acquire().await.unwrap();
        client.abort();
        aborted.lost().await;
        let client = w.client();
        let expires = dlock_core::LockOptions::new().ttl(ms(300));
        let expires = expires.auto_renew(dlock_core::AutoRenew::Off);
        let lock = client.lock("b").unwrap().options(expires).unwrap();
        lock.acquire().await.unwrap().lost().await;
    };
    let seen = measured(|m| m, held_then_waited);
    let held = seen.get("dlock_held{backend=memory}");
    assert_eq!(held.len(), 14, "{held:?}");
    assert_eq!((held[0], held[13]), (1.0, 0.0), "{held:?}");
    let waited = seen.get("dlock_waiting{backend=memory}");
    // Behind the holder, for the one that was dropped, and for the release of the dropped guard.
    assert_eq!(waited, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
}

/// An acquire for each outcome that needs no fault, and a write for each answer of a gate.
async fn each_outcome(w: World) {
    let client = w.client();
    let lock = client.lock("a").unwrap();
    let first = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    lock.acquire_timeout(ms(20)).await.unwrap_err();
    assert!(lock.acquire().now_or_never().is_none());
    let old = first.token().unwrap();
    first.release().await.unwrap();
    let new = lock.acquire().await.unwrap().token().unwrap();
    let gate = client.gate().unwrap();
    assert!(gate.write("r", new, b"").await.unwrap().is_admitted());
    assert!(!gate.write("r", old, b"").await.unwrap().is_admitted());
    client.close().await.unwrap();
    lock.acquire().await.unwrap_err();
}

#[test]
fn acquire_outcomes_and_gate_answers_are_counted() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = measured(|m| m, each_outcome);
    for (outcome, times) in [
        ("granted", 2.0),
        ("held", 1.0),
        ("timeout", 1.0),
        ("cancelled", 1.0),
        ("closed", 1.0),
    ] {
        let series = format!("dlock_acquires_total{{backend=memory,outcome={outcome}}}");
        assert_eq!(seen.get(&series), [times], "{outcome}");
    }
    for answer in ["admitted", "refused"] {
        assert_eq!(
            seen.get(&format!("dlock_gate_total{{backend=memory,answer={answer}}}")),
            [1.0]
        );
    }
}

/// Or the first of its kind would be none to Prometheus, which sees growth only in what it has seen before.
#[test]
fn all_metrics_exist_from_the_first_client_on() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let at_first = measured(|m| m, |w| async move { drop(w.client()) });
    let later = measured(
        |m| m,
        |w| async move {
            hand_over(&w).await;
            let client = w.client();
            let options = dlock_core::LockOptions::new().ttl(ms(300));
            let lock = client.lock("a").unwrap().options(options).unwrap();
            let guard = lock.acquire().await.unwrap();
            w.runtime.sleep(ms(120)).await;
            client.force_release("a").await.unwrap();
            guard.lost().await;
            each_outcome(w).await;
        },
    );
    assert_eq!(at_first.names(), later.names());
    assert!(at_first.0.lock().unwrap().values().all(Vec::is_empty));
}

/// Panics at the first grant that it is told of.
#[derive(Default)]
struct Panics(Arc<AtomicU64>);

struct PanicsOnce(Arc<AtomicU64>);

impl CounterFn for PanicsOnce {
    fn increment(&self, _: u64) {
        assert!(
            self.0.fetch_add(1, Ordering::SeqCst) > 0,
            "this recorder is broken"
        );
    }

    fn absolute(&self, _: u64) {}
}

impl metrics::Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "dlock_acquired_total" => Counter::from_arc(Arc::new(PanicsOnce(self.0.clone()))),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Or it would be renewed for as long as the client lives, and no guard would ever let it go.
#[test]
fn a_grant_of_which_an_observer_panics_is_given_back() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    metrics::with_local_recorder(&Panics::default(), || {
        let sim = Sim::new(7);
        let runtime = sim.runtime();
        let store = Memory::new(runtime.clone());
        let w = World { runtime, store };
        let (one, two) = (w.client(), w.client());
        sim.block_on(async {
            let lock = one.lock("a").unwrap();
            let panicked = AssertUnwindSafe(lock.acquire()).catch_unwind().await;
            assert!(panicked.is_err());
            w.runtime.sleep(ms(50)).await;
            assert!(two.lock("a").unwrap().try_acquire().await.unwrap().is_some());
        });
    });
}

#[test]
fn requested_grant_is_no_hand_off() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = measured(
        |m| m.without(Capability::Queue).without(Capability::Priority),
        |w| async move { hand_over(&w).await },
    );
    assert_eq!(seen.get("dlock_wait_seconds{backend=memory}").len(), 1);
    assert_eq!(
        seen.get("dlock_handoff_seconds{backend=memory}"),
        Vec::<f64>::new()
    );
}

#[test]
fn no_metric_is_labelled_with_a_name() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = measured(
        |m| m,
        |w| async move {
            hand_over(&w).await;
            let client = w.client();
            let _lost = client.lock("a").unwrap().acquire().await.unwrap();
            client.close().await.unwrap();
        },
    );
    assert_eq!(seen.get("dlock_lost_total{backend=memory,reason=closed}"), [1.0]);
    for series in seen.0.lock().unwrap().keys() {
        assert!(
            series.contains("{backend=memory") && !series.contains("=a,") && !series.contains("=a}"),
            "{series}"
        );
    }
}

// ---- tracing ----

/// The spans and events of target `dlock`, each as one line.
#[derive(Default)]
struct Story {
    next: AtomicU64,
    lines: Mutex<BTreeMap<u64, String>>,
    inside: Mutex<Vec<u64>>,
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if !["message", "id", "token", "backend", "expires_in"].contains(&field.name()) {
            write!(self.0, " {}={value:?}", field.name()).unwrap();
        }
    }
}

impl Story {
    fn add(&self, what: &str, record: impl FnOnce(&mut Line<'_>)) -> u64 {
        let n = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let mut text = what.to_owned();
        record(&mut Line(&mut text));
        self.lines.lock().unwrap().insert(n, text);
        n
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().values().cloned().collect()
    }
}

impl Subscriber for Story {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "dlock"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let name = attributes.metadata().name();
        Id::from_u64(self.add(name, |line| attributes.record(line)))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut lines = self.lines.lock().unwrap();
        values.record(&mut Line(lines.get_mut(&span.into_u64()).unwrap()));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let inside = !self.inside.lock().unwrap().is_empty();
        let what = format!("{}{}", if inside { "  " } else { "" }, event.metadata().name());
        self.add(&what, |line| event.record(line));
    }

    fn enter(&self, span: &Id) {
        self.inside.lock().unwrap().push(span.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.inside.lock().unwrap().pop();
    }
}

fn told<F: Future<Output = ()>>(test: impl Fn(World) -> F) -> Vec<String> {
    let story = Arc::new(Story::default());
    tracing::subscriber::with_default(story.clone(), || {
        let sim = Sim::new(7);
        let runtime = sim.runtime();
        let store = Memory::new(runtime.clone());
        sim.block_on(test(World { runtime, store }));
    });
    story.lines()
}

#[test]
fn an_acquire_is_a_span_with_its_outcome_and_wait() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = told(|w| async move {
        let client = w.client();
        let lock = client.lock("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        lock.acquire_timeout(ms(20)).await.unwrap_err();
        assert!(lock.acquire().now_or_never().is_none());
        guard.release().await.unwrap();
    });
    assert_eq!(
        lines,
        [
            "dlock.acquire lock=a mode=exclusive outcome=\"granted\" wait=0ns",
            "  dlock.acquired lock=a",
            "dlock.acquire lock=a mode=exclusive outcome=\"held\" wait=0ns",
            "dlock.acquire lock=a mode=exclusive outcome=\"timeout\" wait=20ms",
            "dlock.acquire lock=a mode=exclusive outcome=\"cancelled\" wait=0ns",
            "dlock.released lock=a",
        ]
    );
}

#[test]
fn renewals_and_losses_are_events() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = told(|w| async move {
        let client = w.client();
        let options = dlock_core::LockOptions::new().ttl(ms(300));
        let lock = client.lock("a").unwrap().options(options).unwrap();
        let guard = lock.acquire().await.unwrap();
        w.runtime.sleep(ms(120)).await;
        client.force_release("a").await.unwrap();
        guard.lost().await;
    });
    assert_eq!(lines[2], "dlock.renewed lock=a lag=0ns");
    assert_eq!(lines[3], "dlock.lost lock=a reason=Refused");
    let lines = told(|w| async move {
        let client = w.client();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        client.abort();
        guard.lost().await;
    });
    assert_eq!(lines[2], "dlock.lost lock=a reason=Closed");
}

#[test]
fn a_renewal_that_fails_is_an_event_by_hand_or_not() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for by_hand in [true, false] {
        let lines = told(|w| async move {
            let backend = w.store.connect();
            let client = Client::builder(backend.clone(), w.runtime.clone())
                .build()
                .unwrap();
            let options = dlock_core::LockOptions::new().ttl(ms(300));
            let lock = client.lock("a").unwrap().options(options).unwrap();
            let guard = lock.acquire().await.unwrap();
            backend.close().await.unwrap();
            match by_hand {
                true => drop(guard.renew().await.unwrap_err()),
                false => w.runtime.sleep(ms(120)).await,
            }
        });
        let told = "dlock.renewal_failed lock=a error=";
        assert!(lines[2].starts_with(told), "by hand: {by_hand}: {lines:?}");
    }
}
