//! The least of a history that is illegal still.

use super::*;
use crate::history::EventKind;

fn minimal(text: &str) -> Violation {
    let judgement = Check::Exclusion.judge(&history(text), &model(Ends::Lease), wgl::BUDGET);
    let Ok(Judgement::Illegal(violation)) = judgement else {
        panic!("it must be illegal: {judgement:?}")
    };
    let again = Check::Exclusion.judge(&violation.minimal, &model(Ends::Lease), wgl::BUDGET);
    assert!(is_illegal(&again.unwrap()), "the least is not illegal");
    violation
}

/// Sixty hand-overs, and one grant in the middle that is inside another.
fn long() -> String {
    let mut text = String::new();
    for n in 0..60 {
        let at = 100 * n;
        text += &format!("{at}-{} A acquire a{n} ttl=100000 token={}\n", at + 10, n + 1);
        text += &format!("{}-{} A renew a{n} ttl=100000\n", at + 20, at + 25);
        text += &format!("{}-{} A release a{n}\n", at + 60, at + 70);
        text += &format!("{at}-{} C try c{n} held\n", at + 15);
    }
    text + "3030-3035 B acquire b ttl=100000 token=31\n3500-3510 B release b\n"
}

#[test]
fn the_least_of_a_long_history_is_the_pair_that_clashes() {
    let violation = minimal(&long());
    let acquires: Vec<u32> = violation
        .minimal
        .iter()
        .filter(|e| e.kind == EventKind::Return && e.token.is_some())
        .map(|e| e.lane)
        .collect();
    assert_eq!(acquires.len(), 2, "{:#?}", violation.minimal);
    assert!(violation.minimal.len() <= 5, "{:#?}", violation.minimal);
}

#[test]
fn what_only_the_search_refuses_is_made_small_too() {
    let mut text = "
        100000-100010 A acquire a ttl=9000 mode=2
        100000-100010 B acquire b ttl=9000 mode=2
        100020-100030 C acquire c ttl=9000 mode=2
        100030-100040 C release c
        100080-100090 A release a
        100080-100090 B release b\n"
        .to_owned();
    for n in 0..40 {
        let at = 100 * n;
        text += &format!("{at}-{} D acquire d{n} ttl=100000 mode=2\n", at + 10);
        text += &format!("{}-{} D release d{n}\n", at + 60, at + 70);
    }
    let violation = minimal(&text);
    assert!(
        violation.minimal.iter().all(|e| e.t_mono_ns >= 100_000),
        "{:#?}",
        violation.minimal
    );
}

#[test]
fn what_happens_after_the_violation_is_left_out() {
    let text = "
        0-10  A acquire a ttl=1000 token=1
        20-30 B acquire b ttl=1000 token=2
        40-50 A release a
        60-70 B release b";
    let violation = minimal(text);
    assert_eq!(violation.minimal.last().map(|e| e.t_mono_ns), Some(30));
    assert_eq!(violation.operations, [1, 2]);
}

#[test]
fn a_release_is_never_left_out_alone() {
    // Were it, the two holds would clash, and the reason would be another one: the tokens.
    let text = "
        0-10  A acquire a ttl=1000 token=2
        20-30 A release a
        40-50 B acquire b ttl=1000 token=1";
    let violation = minimal(text);
    assert_eq!(violation.minimal.len(), 6, "{:#?}", violation.minimal);
}
