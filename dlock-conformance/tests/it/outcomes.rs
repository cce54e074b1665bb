//! What becomes of rules that go wrong in every way.

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Access, Claims, Conditions, Cx, Effort, Evidence, Failure, Harness, Kind, Layer, Level, Options, Outcome,
    Rule, Subject, Test, Verdict, run, run_once,
};
use dlock_core::saboteur::Planted;
use dlock_core::sim::FaultPlan;
use dlock_core::{Capabilities, Error, ErrorKind, Result, Runtime};
use futures::FutureExt;
use futures::future::BoxFuture;

/// A rule of no number.
const fn rule(run: fn(Cx) -> BoxFuture<'static, Verdict>) -> Rule {
    Rule {
        id: "0.00",
        level: Level::Must,
        phase: 1,
        needs: &[],
        layer: Layer::Both,
        access: Access::A,
        test: Test::D,
        title: "a trial",
        statement: "A rule to try the kit with.",
        intent: "",
        check_first: "",
        evidence: &[],
        budget: Duration::from_secs(5),
        bug: None,
        blast: &[],
        run,
    }
}

fn outcome(rule: &'static Rule) -> Outcome {
    let harness: Arc<dyn Harness> = Arc::new(Simulated::new(1));
    run_once(
        rule,
        &harness,
        "dlc-trial".to_owned(),
        1,
        Effort::Quick,
        Conditions::default(),
    )
    .outcome
}

#[test]
fn a_rule_that_hangs_is_stopped_and_fails() {
    static HANGS: Rule = rule(|_| futures::future::pending().boxed());
    let Outcome::Fail { seen } = outcome(&HANGS) else {
        panic!("it must fail")
    };
    assert!(seen.contains("watchdog"), "{seen}");
}

#[test]
fn a_rule_that_waits_for_itself_is_stopped_too() {
    static WAITS: Rule = rule(|cx| {
        async move {
            let client = cx.connect().await?;
            // Waits for its own guard, for ever.
            let held = client.acquire(&cx.name("x"), &cx.ask()).await?;
            let second = client.acquire(&cx.name("x"), &cx.ask().auto_renew()).await?;
            drop((held, second));
            Ok(())
        }
        .boxed()
    });
    assert_eq!(outcome(&WAITS).kind(), Kind::Fail);
}

#[test]
fn a_panic_of_the_rule_itself_is_an_error_of_the_kit() {
    static PANICS: Rule = rule(|_| async { panic!("out of cheese") }.boxed());
    let Outcome::Error { what } = outcome(&PANICS) else {
        panic!("it must be an error")
    };
    assert!(what.contains("out of cheese"), "{what}");
}

#[test]
fn a_panic_in_a_task_reaches_the_rule_that_waits_for_it() {
    static PANICS: Rule = rule(|cx| {
        async move {
            cx.spawn(async { panic!("out of cheese") }).await;
            Ok(())
        }
        .boxed()
    });
    let outcome = outcome(&PANICS);
    assert!(
        outcome.is_red() && outcome.text().contains("out of cheese"),
        "{outcome:?}"
    );
}

#[test]
fn a_pass_that_has_seen_too_little_is_inconclusive() {
    static IDLE: Rule = Rule {
        evidence: &[Evidence {
            counter: "waits",
            least: 2,
        }],
        ..rule(|cx| {
            async move {
                cx.evidence("waits");
                Ok(())
            }
            .boxed()
        })
    };
    let Outcome::Inconclusive { why } = outcome(&IDLE) else {
        panic!("it must be inconclusive")
    };
    assert!(why.contains("only 1 `waits`"), "{why}");
}

#[test]
fn each_failure_has_its_outcome() {
    static BROKEN: Rule = rule(|_| async { Err(Failure::Broken("x".to_owned())) }.boxed());
    static UNCLEAR: Rule = rule(|_| async { Err(Failure::Inconclusive("x".to_owned())) }.boxed());
    static ABSENT: Rule = rule(|_| async { Err(Failure::NotRun("x".to_owned())) }.boxed());
    static KIT: Rule = rule(|_| async { Err(Failure::Kit("x".to_owned())) }.boxed());
    static FINE: Rule = rule(|_| async { Ok(()) }.boxed());
    for (rule, kind) in [
        (&BROKEN, Kind::Fail),
        (&UNCLEAR, Kind::Inconclusive),
        (&ABSENT, Kind::NotRun),
        (&KIT, Kind::Error),
        (&FINE, Kind::Pass),
    ] {
        assert_eq!(outcome(rule).kind(), kind);
    }
}

#[test]
fn cancelling_a_task_drops_its_future_before_it_answers() {
    static CANCELS: Rule = rule(|cx| {
        async move {
            let witness = Arc::new(());
            let kept = Arc::clone(&witness);
            let task = cx.spawn(async move {
                futures::future::pending::<()>().await;
                drop(kept);
            });
            cx.pause().await;
            dlock_conformance::ensure!(Arc::strong_count(&witness) == 2, "the task is gone too soon");
            dlock_conformance::ensure!(task.cancel().await.is_none(), "it cannot have completed");
            dlock_conformance::ensure!(Arc::strong_count(&witness) == 1, "the future is still there");
            Ok(())
        }
        .boxed()
    });
    assert_eq!(outcome(&CANCELS), Outcome::Pass);
}

/// The simulated store, with other claims; it may also be out of reach.
struct Claiming {
    world: Simulated,
    claims: fn(Claims) -> Claims,
    reachable: bool,
}

impl Claiming {
    fn new(claims: fn(Claims) -> Claims) -> Self {
        Self {
            world: Simulated::with(1, Planted::NONE, FaultPlan::healthy()),
            claims,
            reachable: true,
        }
    }
}

impl Harness for Claiming {
    fn claims(&self) -> Claims {
        (self.claims)(self.world.claims())
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.world.runtime()
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        if self.reachable {
            return self.world.connect(cx);
        }
        futures::future::ready(Err(Error::new(ErrorKind::Unavailable, "nobody is there"))).boxed()
    }

    fn clockwork(&self) -> Arc<dyn dlock_conformance::Clockwork> {
        self.world.clockwork()
    }
}

fn only(filter: &str) -> Options {
    let mut options = Options::default();
    options.filters.push(filter.to_owned());
    options
}

#[test]
fn a_run_that_runs_nothing_is_not_green() {
    let nothing = run(Claiming::new(|c| c), &only("no such rule"));
    assert_eq!((nothing.total(), nothing.exit_code()), (None, 4));
    let claims_nothing = Claiming::new(|mut claims| {
        claims.capabilities = Capabilities::new("humble");
        claims
    });
    let report = run(claims_nothing, &only("3.02"));
    assert_eq!((report.count(Kind::Unsupported), report.exit_code()), (1, 4));
}

#[test]
fn a_store_that_is_away_proves_nothing() {
    let mut away = Claiming::new(|c| c);
    away.reachable = false;
    let report = run(away, &only("4.01"));
    assert_eq!(report.count(Kind::NotRun), 1);
    assert_eq!((report.total(), report.exit_code()), (Some(Kind::NotRun), 4));
}

#[test]
fn a_waiver_shows_and_is_no_pass() {
    let mut waived = Claiming::new(|c| c.waive("4.01", "known", "https://acme.example/7"));
    waived.reachable = false;
    let report = run(waived, &only("4.01"));
    assert_eq!(report.total(), Some(Kind::Waived));
    assert!(report.summary().contains("waived (1): 4.01"));
    // What holds needs no waiver.
    let report = run(
        Claiming::new(|c| c.waive("4.01", "known", "https://acme.example/7")),
        &only("4.01"),
    );
    assert_eq!(report.total(), Some(Kind::Pass));
}

#[test]
fn reports_are_written_and_merged() {
    let directory = std::env::temp_dir().join(format!("dlock-conformance-{}", std::process::id()));
    let mut options = only("4.01");
    options.report_to = Some(directory.clone());
    let report = run(Claiming::new(|c| c), &options);
    assert_eq!((report.exit_code(), report.run_count()), (0, 1));
    let read = |path: &str| std::fs::read_to_string(directory.join(path)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("memory-sim/report.json")).unwrap();
    assert_eq!(json["rules"][0]["id"], "4.01");
    assert_eq!(json["rules"][0]["outcome"], "pass");
    assert!(read("memory-sim/junit.xml").contains("must_4_01_released_is_free_at_once"));
    assert!(
        read("memory-sim/summary.md")
            .lines()
            .nth(2)
            .unwrap()
            .contains("Not proven")
    );
    // Another backend's line stays.
    let mut other = Claiming::new(|mut claims| {
        claims.capabilities.backend = "other";
        claims
    });
    other.reachable = false;
    run(other, &options);
    let summary: serde_json::Value = serde_json::from_str(&read("summary.json")).unwrap();
    assert_eq!(summary["runs"]["memory-sim"]["counts"]["pass"], 1);
    assert_eq!(summary["runs"]["other-sim"]["counts"]["not run"], 1);
    std::fs::remove_dir_all(&directory).unwrap();
}
