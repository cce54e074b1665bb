//! What stands behind the forms of a report; the forms themselves are tested from outside.

use std::sync::Arc;

use super::*;
use crate::attempt::{Attempt, run_once};
use crate::claims::Need;
use crate::cx::{Conditions, Effort};
use crate::outcome::Outcome;
use crate::rules;
use crate::simulated::Simulated;

/// A rule that came out like that; it needs leases.
fn rule(outcome: Outcome, attempts: Vec<Attempt>) -> RuleReport {
    let rule = rules::find("3.01").unwrap();
    RuleReport::tested(rule, outcome, attempts, false, String::new())
}

fn not_run() -> Outcome {
    let reason = "nobody is there".to_owned();
    Outcome::NotRun { reason }
}

#[test]
fn only_rules_that_could_not_connect_become_errors() {
    let world = Arc::new(Simulated::new(1)) as _;
    let tried = rules::find("4.01").unwrap();
    let name = "dlc-blame".to_owned();
    let mut attempt = run_once(tried, &world, name, 1, Effort::Quick, Conditions::default());
    let mut other_reason = rule(not_run(), vec![attempt.clone()]);
    assert!(!other_reason.blame_connecting());
    assert_eq!(other_reason.outcome, not_run());
    attempt.unconnected = true;
    let seen = String::new();
    let mut failed = rule(Outcome::Fail { seen }, vec![attempt.clone()]);
    assert!(!failed.blame_connecting());
    let mut away = rule(not_run(), vec![attempt]);
    assert!(away.blame_connecting());
    let what = "nobody is there; other rules of this run could".to_owned();
    assert_eq!(away.outcome, Outcome::Error { what });
}

#[test]
fn each_rule_counts_to_one_profile() {
    for (needs, name) in [
        (&[Need::Lock, Need::Lease, Need::Fair, Need::Fence][..], "Fencing"),
        (&[Need::Resource], "Fencing"),
        (&[Need::Fence, Need::Quorum], "Quorum"),
        (&[Need::Fair, Need::Permits], "Shared"),
        (&[Need::Fair, Need::Priority], "Priority"),
        (&[Need::Fair, Need::Reentrant], "Fair"),
        (&[Need::Watch, Need::Reentrant], "Reentrant"),
        (&[Need::Renew, Need::Inspect], "Watch"),
        (&[Need::Lock, Need::Renew], "Lease"),
        (&[Need::Lock, Need::Try, Need::Wait], "Core"),
    ] {
        assert_eq!(profile_of(needs), name, "{needs:?}");
    }
}
