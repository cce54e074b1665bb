//! What stands behind the forms of a report; the forms themselves are tested from outside.

use std::sync::Arc;

use dlock_core::Capabilities;

use super::*;
use crate::attempt::run_once;
use crate::catalogue;
use crate::cx::Conditions;
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
fn only_what_could_not_connect_is_blamed_where_others_could() {
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
fn rules_are_in_the_order_of_their_numbers() {
    let mut ids = ["10.01", "x.1", "3.10", "3.02", "4", "3"];
    ids.sort_by_key(|id| order(id));
    assert_eq!(ids, ["3", "3.02", "3.10", "4", "10.01", "x.1"]);
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
        assert_eq!(profile(needs), name, "{needs:?}");
    }
    for (id, name) in [
        ("1.01", "Core"),
        ("3.01", "Lease"),
        ("5.01", "Lease"),
        ("6.01", "Lease"),
        ("7.01", "Fencing"),
        ("8.01", "Fair"),
        ("10.01", "Reentrant"),
        ("11.01", "Shared"),
        ("12.01", "Watch"),
        ("18.01", "Quorum"),
    ] {
        assert_eq!(profile_of_section(id), name, "{id}");
    }
}

#[test]
fn a_profile_is_a_success_only_if_every_rule_of_its_first_phase_has_a_test() {
    let report = |outcomes: &[Outcome]| {
        let rules = outcomes.iter().map(|o| rule(o.clone(), Vec::new())).collect();
        let claims = Claims::new("acme", "1.2", Capabilities::new("store"));
        let none = Duration::ZERO;
        Report::new(&claims, "sim", &Options::default(), none, none, rules)
    };
    let state = |outcomes: &[Outcome], open: &[&'static str]| {
        let report = report(outcomes);
        let mut text = String::new();
        summary::profiles(&mut text, &report, open.iter().copied());
        let line = text.lines().find_map(|l| l.strip_prefix("| Lease | "));
        line.map(|l| l.trim_end_matches(" |").to_owned())
    };
    let (passed, partly) = ([Outcome::Pass], [Outcome::Pass, not_run()]);
    let cases: [(&[Outcome], &[&str], &str); 4] = [
        (&passed, &["7.01"], "success (1 passed)"),
        (
            &passed,
            &["3.98", "5.99"],
            "partial (1 passed, 2 of the first phase have no test yet)",
        ),
        (
            &partly,
            &["3.99"],
            "partial (1 passed, 1 not run or waived, 1 of the first phase have no test yet)",
        ),
        (&partly, &[], "partial (1 passed, 1 not run or waived)"),
    ];
    for (outcomes, open, says) in cases {
        assert_eq!(state(outcomes, open).as_deref(), Some(says), "{open:?}");
    }
    // The summary asks the catalogue which these are.
    let is_of_lease = |id: &str| profile_of_section(id) == "Lease";
    let open: Vec<&str> = catalogue::open()
        .map(|e| e.id)
        .filter(|id| is_of_lease(id))
        .collect();
    let says = format!("| Lease | {} |", state(&passed, &open).unwrap());
    let summary = report(&passed).summary();
    assert!(summary.lines().any(|l| l == says), "{summary}");
}
