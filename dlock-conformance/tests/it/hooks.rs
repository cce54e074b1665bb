//! A hook that does nothing earns nothing: the rule is an error that names the hook, and one that is not
//! offered leaves the rule out.

use std::sync::Arc;

use dlock_conformance::hooks::{Hooks, Offer, Restart, Step, Vitals};
use dlock_conformance::network::Network;
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Claims, Clockwork, Conditions, Cx, Effort, Harness, Kind, Outcome, Subject, rules, run_once,
};
use dlock_core::{LockName, Result, Runtime};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

/// The simulator, with other hands.
struct Other {
    world: Simulated,
    hooks: Option<Idle>,
}

impl Harness for Other {
    fn claims(&self) -> Claims {
        self.world.claims().without(dlock_conformance::Need::ForceRelease)
    }
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.world.runtime()
    }
    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        self.world.connect(cx)
    }
    fn hooks(&self) -> Option<&dyn Hooks> {
        self.hooks.as_ref().map(|idle| idle as _)
    }
    fn network(&self, cx: &Cx) -> std::io::Result<Option<Arc<dyn Network>>> {
        self.world.network(cx)
    }
    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.world.clockwork()
    }
}

/// Says that all is done, and does nothing.
struct Idle;

fn nothing<'a, T: Send + 'a>(answer: T) -> Offer<'a, T> {
    Some(ready(Ok(answer)).boxed())
}

impl Hooks for Idle {
    fn vitals(&self) -> Offer<'_, Vitals> {
        let clock = std::time::Duration::from_secs(7200);
        nothing(Vitals::new().run(1).leader("a").clock(clock))
    }
    fn restart(&self, _: Restart) -> Offer<'_> {
        nothing(())
    }
    fn fail_over(&self) -> Offer<'_> {
        nothing(())
    }
    fn step_clock(&self, _: Step) -> Offer<'_> {
        nothing(())
    }
    fn set_counter<'a>(&'a self, _: &'a LockName, _: u64) -> Offer<'a> {
        nothing(())
    }
    fn counter<'a>(&'a self, _: &'a LockName) -> Offer<'a, u64> {
        nothing(3)
    }
    fn spoil<'a>(&'a self, _: &'a LockName, _: &'a str) -> Offer<'a> {
        nothing(())
    }
    fn stored<'a>(&'a self, _: &'a LockName) -> Offer<'a, Vec<u8>> {
        nothing(b"a lock".to_vec())
    }
    fn mend<'a>(&'a self, _: &'a LockName) -> Offer<'a> {
        nothing(())
    }
    fn fill(&self, _: bool) -> Offer<'_> {
        nothing(())
    }
    fn evict<'a>(&'a self, _: &'a LockName) -> Offer<'a> {
        nothing(())
    }
}

const RULES: [(&str, &str); 11] = [
    ("6.02", "evict"),
    ("6.09", "evict"),
    ("7.06", "restart"),
    ("7.07", "step_clock"),
    ("7.08", "set_counter"),
    ("7.14", "restart"),
    ("16.08", "restart"),
    ("16.12", "fail_over"),
    ("16.14", "spoil"),
    ("16.16", "fill"),
    ("16.17", "spoil"),
];

fn outcome(id: &str, hooks: Option<Idle>) -> Outcome {
    let rule = rules::find(id).expect("it has a test");
    let world = Simulated::new(1);
    let harness: Arc<dyn Harness> = Arc::new(Other { world, hooks });
    let name = format!("dlc-hooks-{id}");
    run_once(rule, &harness, name, 1, Effort::Quick, Conditions::default()).outcome
}

#[test]
fn a_hook_that_does_nothing_is_blamed() {
    for (id, hook) in RULES.into_iter().chain([("16.11", "step_clock")]) {
        let outcome = outcome(id, Some(Idle));
        assert_eq!(outcome.kind(), Kind::Error, "{id}: {outcome:?}");
        assert!(outcome.text().contains(&format!("`{hook}`")), "{id}: {outcome:?}");
    }
}

#[test]
fn without_hooks_the_rules_are_not_run_and_say_why() {
    for (id, hook) in RULES.into_iter().chain([("16.11", "step_clock")]) {
        let outcome = outcome(id, None);
        assert_eq!(outcome.kind(), Kind::NotRun, "{id}: {outcome:?}");
        assert!(outcome.text().contains(hook), "{id}: {outcome:?}");
    }
}
