//! What becomes of rules that go wrong in every way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_conformance::network::Fault;
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Access, Claims, Conditions, Cx, Effort, EngineSubject, Evidence, Failure, Harness, Kind, Layer, Level,
    Need, Options, Outcome, Rule, Subject, Test, Verdict, run, run_once,
};
use dlock_core::memory::Config;
use dlock_core::spi::capabilities_of;
use dlock_core::{Capabilities, Capability, Client, Error, ErrorKind, Memory, Result, Runtime};
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
fn the_watchdog_names_the_call_that_hangs() {
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
    let Outcome::Fail { seen } = outcome(&WAITS) else {
        panic!("it must fail")
    };
    assert!(
        seen.contains("acquire of `dlc-trial/x` on lane 2 has not returned for "),
        "{seen}"
    );
}

#[test]
fn a_failure_without_a_history_is_drawn_with_its_faults() {
    static FAILS: Rule = rule(|cx| {
        async move {
            let net = cx.network()?;
            let client = cx.connect_over(&net).await?;
            let held = client.acquire(&cx.name("x"), &cx.ask()).await?;
            let away = net.begin(Fault::Away);
            cx.sleep(Duration::from_millis(5)).await;
            drop(away);
            assert!(held.release().await.is_ok());
            let _last = client.acquire(&cx.name("x"), &cx.ask()).await?;
            Err(Failure::Broken("out of cheese".to_owned()))
        }
        .boxed()
    });
    let Outcome::Fail { seen } = outcome(&FAILS) else {
        panic!("it must fail")
    };
    let rows: Vec<&str> = seen.lines().collect();
    let drawn = |label: &str, part: &str| {
        let row = rows.iter().find(|row| row.trim_start().starts_with(label));
        assert!(row.is_some_and(|row| row.contains(part)), "{label}: {seen}");
    };
    drawn("lane 1", "<");
    drawn("faults", "F Away F");
    // What was dropped since it had failed is not what it failed by.
    assert!(!seen.contains("x dropped"), "{seen}");
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
fn a_pass_without_evidence_is_inconclusive() {
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
    assert!(why.contains("counted 1 `waits`"), "{why}");
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

/// Which rules can connect.
type Reachable = fn(&str) -> bool;

/// The simulated store, with other claims; it may also be out of reach.
struct Claiming {
    world: Simulated,
    claims: fn(Claims) -> Claims,
    reachable: Reachable,
    connects_nowhere: bool,
}

impl Claiming {
    fn new(claims: fn(Claims) -> Claims) -> Self {
        Self {
            world: Simulated::new(1),
            claims,
            reachable: |_| true,
            connects_nowhere: false,
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
        if (self.reachable)(cx.rule()) {
            return self.world.connect(cx);
        }
        futures::future::ready(Err(Error::new(ErrorKind::Unavailable, "nobody is there"))).boxed()
    }

    fn connect_nowhere<'a>(&'a self, cx: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        self.connects_nowhere
            .then(|| self.world.connect_nowhere(cx))
            .flatten()
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
fn a_run_without_rules_is_not_green() {
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
fn an_unreachable_store_proves_nothing() {
    let mut away = Claiming::new(|c| c);
    away.reachable = |_| false;
    let report = run(away, &only("4.01"));
    assert_eq!(report.count(Kind::NotRun), 1);
    assert_eq!((report.total(), report.exit_code()), (Some(Kind::NotRun), 4));
}

#[test]
fn without_a_server_network_rules_are_not_run() {
    let report = run(Claiming::new(|c| c), &only("15.05"));
    assert_eq!(report.total(), Some(Kind::NotRun));
    assert!(report.rules[0].outcome.text().contains("Harness::servers"));
    assert!(report.summary().contains("what happens when the network fails"));
    // The simulated network needs no proxy.
    assert_eq!(run(Simulated::new(1), &only("15.05")).total(), Some(Kind::Pass));
}

#[test]
fn a_store_that_dies_during_the_run_is_an_error() {
    // Rules run in the order of their numbers in a simulation: the one before connects, the one after does
    // not.
    let cases: [(Reachable, &str); 2] = [
        (|id| id != "4.02", "it could before in this run"),
        (|id| id != "4.01", "other rules of this run could"),
    ];
    for (reachable, why) in cases {
        let mut chooses = Claiming::new(|c| c);
        chooses.reachable = reachable;
        let mut options = only("4.01");
        options.filters.push("4.02".to_owned());
        let report = run(chooses, &options);
        let counts = (report.count(Kind::Pass), report.count(Kind::Error));
        assert_eq!((counts, report.exit_code()), ((1, 1), 3), "{report:?}");
        let error = report.rules.iter().find(|r| r.outcome.kind() == Kind::Error);
        let text = error.unwrap().outcome.text();
        assert!(text.contains("nobody is there") && text.ends_with(why), "{text}");
    }
    // Another reason for which a rule is not run stays one.
    let mut options = only("4.01");
    options.filters.push("15.05".to_owned());
    let report = run(Claiming::new(|c| c), &options);
    let counts = (report.count(Kind::Pass), report.count(Kind::NotRun));
    assert_eq!((counts, report.exit_code()), ((1, 1), 0), "{report:?}");
}

#[test]
fn without_the_basis_of_every_profile_no_run_is_green() {
    for need in [Need::Lock, Need::Try, Need::Wait] {
        let claims = match need {
            Need::Lock => |c: Claims| c.without(Need::Lock),
            Need::Try => |c: Claims| c.without(Need::Try),
            _ => |c: Claims| c.without(Need::Wait),
        };
        let mut options = only("17.03");
        options.filters.push("4.01".to_owned());
        let report = run(Claiming::new(claims), &options);
        assert_eq!(
            (report.count(Kind::Pass) > 0, report.exit_code()),
            (true, 4),
            "{need:?}"
        );
        assert!(report.summary().contains("any profile"), "{}", report.summary());
    }
}

/// Claims something else each time that it is asked.
struct Fickle(Claiming, AtomicUsize);

impl Harness for Fickle {
    fn claims(&self) -> Claims {
        let claims = self.0.claims();
        match self.1.fetch_add(1, Ordering::Relaxed) {
            0 => claims,
            _ => claims.slack(Duration::from_secs(3600)),
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.0.runtime()
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        assert!(
            cx.slack() < Duration::from_secs(1),
            "the claims were asked for again"
        );
        self.0.connect(cx)
    }

    fn clockwork(&self) -> Arc<dyn dlock_conformance::Clockwork> {
        self.0.clockwork()
    }
}

#[test]
fn claims_are_read_once_a_run() {
    let report = run(Fickle(Claiming::new(|c| c), AtomicUsize::new(0)), &only("4.01"));
    assert_eq!(report.exit_code(), 0, "{report:?}");
}

#[test]
fn too_wide_bounds_are_refused() {
    let claims: [fn(Claims) -> Claims; 4] = [
        |c| c.slack(Duration::from_secs(60)),
        |c| c.skew(500_000, Duration::ZERO),
        // Longer than the leases of most rules: none of them could end too early.
        |c| c.skew(0, Duration::from_millis(500)),
        |c| c.wake_p99(Duration::from_secs(60)),
    ];
    for claims in claims {
        let report = run(Claiming::new(claims), &only("4.01"));
        assert_eq!((report.rules.len(), report.exit_code()), (0, 3));
        assert!(
            report.problems[0].contains("the maximum is"),
            "{:?}",
            report.problems
        );
    }
    let report = run(Claiming::new(|c| c.slack(Duration::from_secs(1))), &only("4.01"));
    assert_eq!((report.wide_bounds.len(), report.exit_code()), (1, 0));
    assert!(report.summary().contains("slack 1s (usual: 250ms)"));
    for name in [
        "slack",
        "op_bound",
        "give_up",
        "wake_p99",
        "cancel_prompt",
        "drop_prompt",
    ] {
        assert!(
            report.bounds.contains_key(name),
            "{name} is claimed, and not in the report"
        );
    }
}

#[test]
fn declared_claims_cannot_be_withdrawn() {
    let claims: [fn(Claims) -> Claims; 3] = [
        |c| c.without(Need::Renew),
        |c| c.without(Need::FenceDurable).without(Need::Fence),
        |c| c.without(Need::Lease),
    ];
    for claims in claims {
        let report = run(Claiming::new(claims), &only("4.01"));
        assert_eq!((report.rules.len(), report.exit_code()), (0, 3));
        let problem = &report.problems[0];
        assert!(problem.contains("cannot be withdrawn"), "{problem}");
    }
    // What they do not speak of can be withdrawn.
    let claims: [fn(Claims) -> Claims; 2] =
        [|c| c.without(Need::AutoRenew), |c| c.without(Need::FencedReads)];
    for claims in claims {
        assert_eq!(run(Claiming::new(claims), &only("4.01")).exit_code(), 0);
    }
}

#[test]
fn claims_and_waivers_that_mean_nothing_are_refused() {
    type Claim = fn(Claims) -> Claims;
    let claims: [(Claim, &str); 4] = [
        (|c| c.claim(Need::Quorum), "cannot be claimed"),
        (
            |c| c.waive("15.9", "known", "https://acme.example/7"),
            "no such rule",
        ),
        (
            |c| c.waive("15.09", " ", "https://acme.example/7"),
            "needs a reason",
        ),
        (|c| c.waive("15.09", "known", ""), "and a link"),
    ];
    for (claims, why) in claims {
        let report = run(Claiming::new(claims), &only("4.01"));
        assert_eq!((report.rules.len(), report.exit_code()), (0, 3));
        assert!(report.problems[0].contains(why), "{}", report.problems[0]);
    }
}

#[test]
fn a_profile_of_a_filtered_run_is_partial_and_says_so() {
    let report = run(Claiming::new(|c| c), &only("4.01"));
    let line = report.summary();
    let line = line.lines().find(|l| l.starts_with("| Core |")).unwrap();
    assert!(
        line.contains("partly (1 passed") && line.contains("the run was filtered"),
        "{line}"
    );
}

#[test]
fn a_replay_line_repeats_the_attempt_and_its_effort() {
    let mut options = only("4.01");
    options.effort = Effort::Full;
    let first = run(Claiming::new(|c| c), &options);
    let (rule, seed) = (&first.rules[0], first.rules[0].attempts[0].seed);
    assert!(
        rule.replay
            .ends_with(&format!("4.01 --attempt-seed {seed:#x} --full")),
        "{}",
        rule.replay
    );
    options.seed += 1;
    options.attempt_seed = Some(seed);
    assert_eq!(
        run(Claiming::new(|c| c), &options).rules[0].attempts[0].seed,
        seed
    );
}

/// Panics are counted over the process: runs in real time take turns.
static TURN: Mutex<()> = Mutex::new(());

fn run_alone(harness: impl Harness, options: &Options) -> dlock_conformance::Report {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    run(harness, options)
}

/// A store in this process in real time, whose every connection starts a task that panics, or none.
struct Real {
    runtime: Arc<dyn Runtime>,
    store: Memory,
    panics: bool,
}

impl Real {
    fn new(panics: bool) -> Self {
        Self::without(&[], panics)
    }

    fn without(capabilities: &[Capability], panics: bool) -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build();
        let tokio: &'static _ = Box::leak(Box::new(tokio.expect("threads can be started")));
        let runtime = dlock_core::runtime::Tokio::from_handle(tokio.handle().clone()).expect("it has timers");
        let store = capabilities
            .iter()
            .fold(Config::new(), |config, capability| config.without(*capability))
            .connect(runtime.clone());
        Self {
            runtime,
            store,
            panics,
        }
    }
}

impl Harness for Real {
    fn claims(&self) -> Claims {
        let capabilities = capabilities_of(&*self.store.connect());
        Claims::new("dlock memory", env!("CARGO_PKG_VERSION"), capabilities)
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        if self.panics {
            // In the code of `futures`, which does not nest: a panic of the kit's own would be another
            // matter.
            let nested =
                async { futures::executor::block_on(async { futures::executor::block_on(async {}) }) };
            self.runtime.spawn(nested.boxed());
        }
        let client = Client::builder(self.store.connect(), self.runtime.clone()).build();
        futures::future::ready(client.map(|c| Arc::new(EngineSubject::new(c)) as Arc<dyn Subject>)).boxed()
    }
}

#[test]
fn only_undeclared_capabilities_are_probed_and_counted() {
    let attempts = |without: &[Capability]| {
        let options = ["17.02", "17.03"].map(|id| {
            let mut options = only(id);
            options.exact = true;
            options
        });
        options.map(|options| {
            let mut report = run_alone(Real::without(without, false), &options);
            assert_eq!(report.exit_code(), 0, "{report:?}");
            report.rules.remove(0).attempts.remove(0)
        })
    };
    let probed = |attempt: &dlock_conformance::Attempt| attempt.evidence.get("capabilities_probed").copied();
    let [undeclared, declared] = attempts(&[]);
    assert_eq!(probed(&undeclared), None);
    assert!(
        undeclared.notes[0].contains("there is no capability to probe"),
        "{undeclared:?}"
    );
    let served = &declared.notes[0];
    assert!(served.contains("Raise") && served.contains("Upgrade"), "{served}");
    let [undeclared, fewer] = attempts(&[Capability::Priority, Capability::Raise]);
    assert_eq!(probed(&undeclared), Some(2), "{undeclared:?}");
    assert_eq!(probed(&fewer), probed(&declared).map(|n| n - 2));
}

#[test]
fn sweeps_report_their_cut_points() {
    // A store in this process may answer a release at its first poll: then there is nothing to cut, and that
    // is said.
    let here = run_alone(Real::new(false), &only("9.03"));
    let simulated = run(Simulated::new(1), &only("9.03"));
    for report in [here, simulated] {
        let attempt = &report.rules[0].attempts[0];
        assert_eq!(attempt.outcome, Outcome::Pass);
        let cuts = cut_points(attempt);
        assert_eq!(cuts.len(), 3, "{:?}", attempt.notes);
        assert_eq!(attempt.evidence["sweeps_completed"], 3);
        assert_eq!(attempt.evidence["cut_while_pending"], cuts.iter().sum::<u64>());
    }
}

/// Those that the notes tell of each sweep.
fn cut_points(attempt: &dlock_conformance::Attempt) -> Vec<u64> {
    let told = attempt.notes.iter().filter_map(|note| {
        let (before, _) = note.split_once(" cut points")?;
        before.rsplit(' ').next()?.parse().ok()
    });
    told.collect()
}

#[test]
fn the_lateness_of_the_machine_is_measured_in_real_time() {
    assert_eq!(run(Simulated::new(1), &only("4.01")).canary_p999, Duration::ZERO);
    let late = run_alone(Real::new(false), &only("4.01")).canary_p999;
    assert!(!late.is_zero() && late < Duration::from_secs(10), "{late:?}");
}

#[test]
fn a_panic_in_the_background_of_any_rule_is_red() {
    assert_eq!(run_alone(Real::new(false), &only("4.01")).exit_code(), 0);
    let report = run_alone(Real::new(true), &only("4.01"));
    assert_eq!(
        (report.count(Kind::Pass), report.exit_code()),
        (1, 3),
        "{report:?}"
    );
    assert!(
        report.problems[0].contains("panics happened"),
        "{:?}",
        report.problems
    );
}

#[test]
fn a_waiver_shows_and_is_no_pass() {
    // The rule about causes is not run: the harness connects to nobody.
    let waived = Claiming::new(|c| c.waive("17.06", "known", "https://acme.example/7"));
    let report = run(waived, &only("17.06"));
    assert_eq!(report.total(), Some(Kind::Waived));
    assert_eq!((report.run_count(), report.exit_code()), (0, 4));
    assert!(report.summary().contains("waived (1): 17.06"));
    // No waiver covers a store that is away.
    let mut away = Claiming::new(|c| c.waive("4.01", "known", "https://acme.example/7"));
    away.reachable = |_| false;
    assert_eq!(run(away, &only("4.01")).total(), Some(Kind::NotRun));
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
    other.reachable = |_| false;
    run(other, &options);
    let summary: serde_json::Value = serde_json::from_str(&read("summary.json")).unwrap();
    assert_eq!(summary["runs"]["memory-sim"]["counts"]["pass"], 1);
    assert_eq!(summary["runs"]["other-sim"]["counts"]["not run"], 1);
    std::fs::remove_dir_all(&directory).unwrap();
}
