//! A fenced resource.

use super::*;
use crate::history::fixture::history;

const GOOD: [(&str, &str); 7] = [
    (
        "tokens rise",
        "0-10  A write - token=1
         20-30 B write - token=2
         40-50 B read - token=2",
    ),
    (
        "a stale write is refused",
        "0-10  B write - token=2
         20-30 A write - token=1 refused
         40-50 A read - token=2",
    ),
    (
        "the same token writes again",
        "0-10  A write - token=2
         20-30 A write - token=2
         40-50 B read - token=2",
    ),
    (
        "two at once, in the order of their tokens",
        "0-30  A write - token=2
         5-20  B write - token=1
         40-50 B read - token=2",
    ),
    (
        "a refusal by a write that has not returned yet",
        "0-90  A write - token=2
         5-20  B write - token=1 refused",
    ),
    (
        "a write of unknown outcome came late",
        "0-10  A write - token=5 unknown
         20-30 B write - token=3
         40-50 B read - token=3
         60-70 C read - token=5
         80-90 B write - token=4 refused",
    ),
    (
        "nothing was written yet",
        "0-10  A read - 
         20-30 B write - token=1
         25-40 A read - token=1",
    ),
];

const BAD: [(&str, &str); 8] = [
    (
        "a stale write is accepted",
        "0-10  B write - token=2
         20-30 A write - token=1",
    ),
    (
        "a stale write is accepted beside a third",
        "0-10  B write - token=2
         5-40  C write - token=3
         20-30 A write - token=1",
    ),
    (
        "the holder is refused",
        "0-10  A write - token=1
         20-30 B write - token=2 refused",
    ),
    (
        "the same token is refused",
        "0-10  A write - token=2
         20-30 A write - token=2 refused",
    ),
    (
        "checked first, written later: the older value stands",
        "0-30  A write - token=1
         5-20  B write - token=2
         40-50 B read - token=1",
    ),
    (
        "a value is read that nobody wrote",
        "0-10  A write - token=1
         20-30 B read - token=7",
    ),
    (
        "a refused value is read",
        "0-10  B write - token=2
         20-30 A write - token=1 refused
         40-50 C read - token=1",
    ),
    (
        "a value is read before its write began",
        "0-10  C read - token=2
         20-30 A write - token=2",
    ),
];

#[test]
fn a_resource_that_follows_the_tokens_is_legal() {
    for (what, text) in GOOD {
        let events = history(text);
        assert_eq!(validate(&events), Ok(()), "{what}");
        let judgement = super::super::resource::check(&events);
        assert_eq!(judgement, Judgement::Legal, "{what}");
    }
}

#[test]
fn a_resource_that_does_not_is_refused() {
    for (what, text) in BAD {
        let events = history(text);
        assert_eq!(validate(&events), Ok(()), "{what}");
        let judgement = Check::Resource.judge(&events, &model(Ends::Lease), wgl::BUDGET);
        let judgement = judgement.unwrap();
        assert!(is_illegal(&judgement), "{what}");
        assert!(!operations(&judgement).is_empty(), "{what}");
    }
}

#[test]
fn resources_are_apart() {
    let two = "0-10  B write - token=2 name=x
               20-30 A write - token=1 name=y";
    assert_eq!(super::super::resource::check(&history(two)), Judgement::Legal);
}
