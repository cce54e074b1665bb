//! One run of one rule: the watchdog, the catching of panics, and the outcome.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use serde::Serialize;

use crate::cx::{Conditions, Cx, Effort, Setup};
use crate::harness::{Driven, Harness};
use crate::history::{Asked, Event, Model};
use crate::lock::lock;
use crate::outcome::Outcome;
use crate::panics;
use crate::rule::Rule;
use crate::run_state::RunState;
use crate::verdict::{Failure, Verdict};

/// One run of one rule.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Attempt {
    /// How it came out.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Its seed.
    pub seed: u64,
    /// How long it took, on the runtime's clock.
    pub took: Duration,
    /// What it counted.
    pub evidence: BTreeMap<&'static str, u64>,
    /// Its notes.
    pub notes: Vec<String>,
    /// The worst stall of the machine, or of the store's disk, during the run.
    pub stall: Duration,
    /// Its history, if it was recorded.
    #[serde(skip)]
    pub history: Vec<Event>,
    /// The checks that judged it.
    #[serde(skip)]
    pub(crate) asked: Vec<Asked>,
    /// The model that it is read with.
    #[serde(skip)]
    pub(crate) model: Model,
    /// The file of the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<PathBuf>,
    /// Connecting a client failed.
    #[serde(skip)]
    pub(crate) unconnected: bool,
}

/// Runs one rule once, with that seed, whatever it needs.
pub fn run_once(
    rule: &'static Rule,
    harness: &Arc<dyn Harness>,
    namespace: String,
    seed: u64,
    effort: Effort,
    conditions: Conditions,
) -> Attempt {
    let setup = Setup {
        rule: rule.id.to_owned(),
        namespace,
        seed,
        effort,
        harness: Arc::clone(harness),
        run: Arc::new(RunState::new(harness.claims())),
        conditions,
    };
    attempt(rule, setup)
}

/// The same as a part of a run.
pub(crate) fn attempt(rule: &'static Rule, setup: Setup) -> Attempt {
    panics::watch();
    let (seed, effort, harness) = (setup.seed, setup.effort, Arc::clone(&setup.harness));
    let cx = Cx::new(setup);
    let clockwork = harness.clockwork();
    let started = cx.now();
    let verdict: Arc<Mutex<Option<Verdict>>> = Arc::default();
    let body = {
        let (cx, verdict) = (cx.clone(), Arc::clone(&verdict));
        async move {
            let ended = AssertUnwindSafe(async { (rule.run)(cx.clone()).await })
                .catch_unwind()
                .await;
            let ended = ended.unwrap_or_else(|payload| Err(blame(&panics::caught(&*payload))));
            *lock(&verdict) = Some(ended);
            // What the run created goes with the clients. Rule 9.07 deals with a client that cannot close.
            for client in cx.take_clients() {
                let closing = AssertUnwindSafe(client.close()).catch_unwind();
                let _ = cx.timeout(Duration::from_secs(2), closing).await;
            }
            drop(cx.take_networks());
        }
    };
    let budget = match effort {
        Effort::Quick => rule.budget,
        Effort::Full => rule.budget * 10,
    };
    let driven = clockwork.drive(cx.runtime(), body.boxed(), budget);
    let took = cx.now().since(started);
    let verdict = lock(&verdict).take();
    let evidence = cx.take_evidence();
    let mut outcome = match (verdict, driven) {
        (Some(Ok(())), _) => judge_evidence(rule, &evidence),
        (Some(Err(failure)), _) => failed(failure),
        (None, Driven::TimedOut) => Outcome::Fail {
            seen: format!(
                "the rule did not end: the watchdog stopped it after {budget:?}{}",
                cx.hanging(budget)
            ),
        },
        (None, Driven::Stuck(why)) => Outcome::Fail {
            seen: why + &cx.hanging(took),
        },
        (None, Driven::Done) => Outcome::Error {
            what: "the runtime dropped the rule before it ended".to_owned(),
        },
    };
    if let Outcome::Fail { seen } = &mut outcome {
        seen.push_str(&cx.afterthought());
    }
    let failed = outcome != Outcome::Pass;
    Attempt {
        outcome,
        seed,
        took,
        evidence,
        notes: cx.take_notes(),
        stall: Duration::ZERO,
        history: cx.take_history(failed),
        asked: cx.take_asked(failed),
        model: cx.model(),
        stored: None,
        unconnected: cx.is_unconnected(),
    }
}

fn failed(failure: Failure) -> Outcome {
    match failure {
        Failure::Broken(seen) => Outcome::Fail { seen },
        Failure::Inconclusive(why) => Outcome::Inconclusive { why },
        Failure::NotRun(reason) => Outcome::NotRun { reason },
        Failure::Kit(what) => Outcome::Error { what },
    }
}

/// A panic in the kit's own files is a fault of the kit. Any other panic reached the caller of a lock, which
/// breaks the rule.
fn blame(panic: &panics::Seen) -> Failure {
    let text = format!("a panic at {}:{}: {}", panic.file, panic.line, panic.text);
    if panic.file.contains("dlock-conformance") {
        Failure::Kit(text)
    } else {
        Failure::Broken(text)
    }
}

/// A pass without the required evidence proves nothing.
fn judge_evidence(rule: &Rule, seen: &BTreeMap<&'static str, u64>) -> Outcome {
    for need in rule.evidence {
        let count = seen.get(need.counter).copied().unwrap_or(0);
        let (counter, least) = (need.counter, need.least);
        if count < least {
            let why = format!("the run counted {count} `{counter}`, and {least} are needed");
            return Outcome::Inconclusive { why };
        }
    }
    Outcome::Pass
}
