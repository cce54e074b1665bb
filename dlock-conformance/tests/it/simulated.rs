//! Every rule on the correct reference backend, in virtual time.

use std::sync::Arc;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{Conditions, Effort, Harness, Kind, rules, run_once};

fn attempt(rule: &'static dlock_conformance::Rule, seed: u64) -> (dlock_conformance::Attempt, u64) {
    let world = Arc::new(Simulated::new(seed));
    let harness: Arc<dyn Harness> = world.clone();
    let attempt = run_once(
        rule,
        &harness,
        format!("dlc-sim-{}-0", rule.id),
        seed,
        Effort::Quick,
        Conditions::default(),
    );
    (attempt, world.event_hash())
}

#[test]
fn every_rule_holds_on_the_reference_backend() {
    let mut broken = Vec::new();
    for rule in rules::all() {
        for seed in 0..3 {
            let (attempt, _) = attempt(rule, seed);
            if attempt.outcome.kind() != Kind::Pass {
                broken.push(format!("{rule:?}, seed {seed:#x}: {:?}", attempt.outcome));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_simulated_run_is_a_function_of_its_seed() {
    for rule in rules::all() {
        assert_eq!(attempt(rule, 7).1, attempt(rule, 7).1, "{rule:?}");
    }
}
