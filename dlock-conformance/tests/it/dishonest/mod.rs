//! Harnesses and subjects that do not keep what they say: no rule that looks at it passes.

pub(crate) mod agreeing;
mod endless;
mod refusing;
mod restless;

use std::io;
use std::sync::Arc;

use dlock_conformance::network::{Cut, Fault, FaultGuard, Network, Traffic};
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Access, Attempt, Claims, Clockwork, Conditions, Cx, Effort, Engine, Harness, Kind, Need, Options,
    Outcome, Rule, Subject, Test, rules, run, run_once,
};
use dlock_core::{Capabilities, Result, Runtime};
use futures::FutureExt;
use futures::future::BoxFuture;
use restless::Woken;

/// The simulated store behind a harness that does something else than it says.
struct Dishonest {
    world: Simulated,
    trick: Trick,
    first: futures::lock::Mutex<Option<Arc<dyn Subject>>>,
}

#[derive(Clone, Copy, Debug)]
enum Trick {
    /// Claims it, and answers that it is not supported; everything, if that is none.
    Refuses(Option<Need>),
    /// Says yes to all that it is asked, without a store.
    Agrees,
    /// Is no backend of `dlock`, and claims what one does.
    Pretends,
    /// Its networks do nothing.
    IdleNetwork,
    /// The same client whenever it is asked for a new one.
    OneClient,
    /// The same number whenever it is asked what its store keeps.
    CountsNothing,
    /// Somewhere where there is a store.
    NowhereIsSomewhere,
    /// Its waiters are polled without a reason.
    Restless(Woken),
    /// The tries of its first client never end.
    Endless,
}

impl Dishonest {
    fn new(seed: u64, trick: Trick) -> Self {
        Self {
            world: Simulated::new(seed),
            trick,
            first: futures::lock::Mutex::new(None),
        }
    }
}

impl Harness for Dishonest {
    fn claims(&self) -> Claims {
        let mut claims = self.world.claims();
        if let Trick::Agrees = self.trick {
            claims.engine = Engine::Own;
        }
        claims
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.world.runtime()
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move {
            let client: Arc<dyn Subject> = match self.trick {
                Trick::Refuses(what) => Arc::new(refusing::Refusing {
                    inner: self.world.connect(cx).await?,
                    what,
                }),
                Trick::Agrees | Trick::Pretends => Arc::new(agreeing::Agreeing::new(
                    self.claims().capabilities,
                    self.runtime(),
                )),
                Trick::Restless(woken) => Arc::new(restless::Restless {
                    inner: self.world.connect(cx).await?,
                    runtime: self.runtime(),
                    woken,
                }),
                Trick::Endless => {
                    let client = self.world.connect(cx).await?;
                    let mut first = self.first.lock().await;
                    match first.replace(Arc::clone(&client)) {
                        None => Arc::new(endless::Endless { inner: client }),
                        Some(_) => client,
                    }
                }
                Trick::OneClient => {
                    let mut first = self.first.lock().await;
                    match &*first {
                        Some(client) => Arc::clone(client),
                        None => Arc::clone(first.insert(self.world.connect(cx).await?)),
                    }
                }
                _ => self.world.connect(cx).await?,
            };
            Ok(client)
        }
        .boxed()
    }

    fn connect_nowhere<'a>(&'a self, cx: &'a Cx) -> Option<BoxFuture<'a, Result<Arc<dyn Subject>>>> {
        match self.trick {
            Trick::NowhereIsSomewhere => Some(self.world.connect(cx)),
            _ => self.world.connect_nowhere(cx),
        }
    }

    fn footprint<'a>(&'a self, cx: &'a Cx) -> Option<BoxFuture<'a, Result<u64>>> {
        match self.trick {
            Trick::CountsNothing => Some(async { Ok(3) }.boxed()),
            _ => self.world.footprint(cx),
        }
    }

    fn network(&self, cx: &Cx) -> io::Result<Option<Arc<dyn Network>>> {
        match self.trick {
            Trick::IdleNetwork => Ok(Some(Arc::new(Idle))),
            _ => self.world.network(cx),
        }
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.world.clockwork()
    }
}

/// A network on which nothing goes wrong.
#[derive(Debug)]
struct Idle;

impl Network for Idle {
    fn begin(&self, _: Fault) -> FaultGuard {
        FaultGuard::new(Arc::default(), || {})
    }

    fn cut(&self, _: Cut) -> usize {
        0
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

fn attempt(trick: Trick, rule: &'static Rule) -> Attempt {
    let harness: Arc<dyn Harness> = Arc::new(Dishonest::new(1, trick));
    let name = format!("dlc-dishonest-{}-0", rule.id);
    run_once(rule, &harness, name, 1, Effort::Quick, Conditions::default())
}

/// The rules among those that pass all the same.
fn passes(trick: Trick, among: impl Fn(&Rule) -> bool) -> Vec<String> {
    let mut passed = Vec::new();
    for rule in rules::all().filter(|rule| among(rule)) {
        if attempt(trick, rule).outcome.kind() == Kind::Pass {
            passed.push(rule.test_name());
        }
    }
    passed
}

const NOTHING: [&str; 0] = [];

#[test]
fn refusing_everything_passes_no_rule() {
    // Whether types can be sent is a matter of compiling.
    let passed = passes(Trick::Refuses(None), |rule| rule.test != Test::K);
    // Where everything is declared, there is nothing undeclared to probe.
    assert_eq!(passed, ["must_17_02_undeclared_is_refused"]);
}

#[test]
fn refusing_a_claim_passes_no_rule() {
    let needs = [
        Need::Lock,
        Need::Try,
        Need::Wait,
        Need::Renew,
        Need::AutoRenew,
        Need::LossSignal,
        Need::Fence,
        Need::Resource,
        Need::Priority,
        Need::Reentrant,
        Need::Shared,
        Need::Permits,
        Need::Downgrade,
        Need::Upgrade,
        Need::Watch,
        Need::Inspect,
        Need::ForceRelease,
        Need::MinimumHold,
        Need::MaximumHold,
        Need::OwnerLabel,
    ];
    // Rules that say what must not happen; a refusal is no such thing.
    let kept = [
        (Need::Try, "15.05"),
        (Need::Try, "16.02"),
        (Need::Wait, "17.04"),
        (Need::Renew, "6.07"),
        (Need::Renew, "15.05"),
        (Need::Renew, "16.02"),
        (Need::LossSignal, "5.11"),
        (Need::LossSignal, "6.03"),
        (Need::LossSignal, "6.05"),
    ];
    let mut all = Vec::new();
    for need in needs {
        let asks = |rule: &Rule| {
            rule.test != Test::K && rule.needs.contains(&need) && !kept.contains(&(need, rule.id))
        };
        let passed = passes(Trick::Refuses(Some(need)), asks);
        all.extend(passed.into_iter().map(|rule| format!("{need:?}: {rule}")));
    }
    // What no rule is about yet is exercised all the same.
    for need in [
        Need::Inspect,
        Need::ForceRelease,
        Need::MinimumHold,
        Need::OwnerLabel,
    ] {
        let passed = passes(Trick::Refuses(Some(need)), |rule| rule.id == "17.03");
        all.extend(passed.into_iter().map(|rule| format!("{need:?}: {rule}")));
    }
    assert_eq!(all, NOTHING);
}

#[test]
fn always_granting_breaks_exclusion_waiting_and_expiry() {
    // What is left asks nothing but that a free lock is granted, and what a guard says of itself.
    let kept = [
        "2.02", "2.09", "3.01", "3.04", "4.07", "4.08", "4.10", "5.06", "5.08", "6.03", "7.01", "7.03",
        "4.12", "7.04", "7.05", "7.17", "9.03", "17.02", "17.07",
    ];
    let passed = passes(Trick::Agrees, |rule| {
        rule.test != Test::K && !kept.contains(&rule.id)
    });
    assert_eq!(passed, NOTHING);
    let report = run(Dishonest::new(1, Trick::Agrees), &Options::default());
    assert_ne!(report.exit_code(), 0);
    assert!(!report.summary().contains("| proven"), "{}", report.summary());
}

#[test]
fn a_foreign_library_is_not_judged_as_a_backend() {
    let mut options = Options::default();
    options.filters = vec!["1.01".to_owned()];
    let report = run(Dishonest::new(1, Trick::Pretends), &options);
    assert_eq!(report.exit_code(), 3);
    let why = report.rules[0].outcome.text();
    assert!(why.contains("`Claims::foreign`"), "{why}");
    let claims = Claims::foreign("acme", "1.0", Capabilities::new("acme"));
    let taken_for_granted = [
        Need::LossSignal,
        Need::AutoRenew,
        Need::MaximumHold,
        Need::Namespaces,
    ];
    assert!(!taken_for_granted.iter().any(|need| claims.has(*need)));
    assert!(claims.missing_basis().is_empty() && claims.claim(Need::LossSignal).has(Need::LossSignal));
}

#[test]
fn no_rule_about_networks_passes_where_nothing_goes_wrong() {
    // Proxies that nobody connects to are such a network.
    assert_eq!(
        passes(Trick::IdleNetwork, |rule| rule.access == Access::P),
        NOTHING
    );
}

#[test]
fn returning_a_client_twice_is_an_error() {
    assert_eq!(
        passes(Trick::OneClient, |rule| ["1.01", "4.01", "7.05"]
            .contains(&rule.id)),
        NOTHING
    );
}

#[test]
fn a_constant_record_count_proves_nothing() {
    assert_eq!(passes(Trick::CountsNothing, |rule| rule.id == "7.16"), NOTHING);
}

#[test]
fn connect_nowhere_must_not_reach_a_store() {
    assert_eq!(
        passes(Trick::NowhereIsSomewhere, |rule| rule.id == "17.06"),
        NOTHING
    );
}

#[test]
fn tasks_woken_all_the_time_do_not_pass_as_waking_few() {
    let restless = Trick::Restless(Woken::EachMillisecond);
    assert_eq!(passes(restless, |rule| rule.id == "8.10"), NOTHING);
}

#[test]
fn waking_a_replaced_waker_is_no_wake_without_a_reason() {
    let replacing = Trick::Restless(Woken::WhenReplaced);
    assert_eq!(passes(replacing, |rule| rule.id == "9.10").len(), 1);
}

#[test]
fn a_sweep_that_does_not_end_is_inconclusive() {
    let attempt = attempt(Trick::Endless, rules::find("9.01").unwrap());
    let why = "Try, polled with the task's waker: not complete after 200 polls; 199 points were cut, the \
        rest was not seen";
    assert_eq!(attempt.outcome, Outcome::Inconclusive { why: why.to_owned() });
    assert!(attempt.evidence.is_empty(), "{:?}", attempt.evidence);
}
