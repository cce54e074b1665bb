//! Every rule on the correct reference backend, in virtual time.

use std::sync::Arc;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{Attempt, Conditions, Effort, Harness, Kind, Need, Rule, rules, run_once};

fn run(rule: &'static Rule, harness: &Arc<dyn Harness>, seed: u64) -> Attempt {
    run_once(
        rule,
        harness,
        format!("dlc-sim-{}-0", rule.id),
        seed,
        Effort::Quick,
        Conditions::default(),
    )
}

/// On one store, or on a quorum of five for the rules about quorums.
fn attempt(rule: &'static Rule, seed: u64) -> (Attempt, u64) {
    if rule.needs.contains(&Need::Quorum) {
        return on_a_quorum(rule, 5, seed);
    }
    let world = Arc::new(Simulated::new(seed));
    let harness: Arc<dyn Harness> = world.clone();
    (run(rule, &harness, seed), world.event_hash())
}

fn on_a_quorum(rule: &'static Rule, members: usize, seed: u64) -> (Attempt, u64) {
    let world = Arc::new(Simulated::quorum(seed, members));
    let harness: Arc<dyn Harness> = world.clone();
    (run(rule, &harness, seed), world.event_hash())
}

#[test]
fn every_rule_that_it_claims_holds_on_a_quorum() {
    let mut broken = Vec::new();
    let (mut passed, mut not_run) = (0, Vec::new());
    let claims = Simulated::quorum(0, 3).claims();
    let claimed = |rule: &&Rule| rule.needs.iter().all(|need| claims.has(*need));
    for rule in rules::all().filter(claimed) {
        for seed in 0..2 {
            let (attempt, _) = on_a_quorum(rule, 3, seed);
            match attempt.outcome.kind() {
                Kind::Pass => passed += 1,
                Kind::NotRun => not_run.push(rule.id),
                _ => broken.push(format!("{rule:?}, seed {seed:#x}: {:?}", attempt.outcome)),
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    // Only what needs a process, or hands at a server.
    assert!(
        passed > 200 && not_run.len() < 60,
        "{passed} passed, not run: {not_run:?}"
    );
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
