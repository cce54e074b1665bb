//! What watchers were told.

use super::*;
use crate::checker::watch::Coalescing;

const GOOD: [(&str, &str); 7] = [
    (
        "a snapshot, then every change",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         18    W told w granted a token=1
         30-40 A release a
         39    W told w ended a
         50-60 B acquire b ttl=1000 token=2
         61    W told w granted b token=2
         99    W told w over",
    ),
    (
        "the snapshot has the holder",
        "0-10  A acquire a ttl=1000 token=1
         20-25 W watch w
         26    W told w snapshot a
         30-40 A release a
         41    W told w ended a
         99    W told w over",
    ),
    (
        "what races the subscription is in the snapshot or after it",
        "0-10  A acquire a ttl=1000 token=1
         8-25  W watch w
         20-30 A release a
         26    W told w snapshot
         99    W told w over",
    ),
    (
        "what came too late for the settling time may be missing",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         22    W told w over",
    ),
    (
        "an expiry",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=100 token=1
         21    W told w granted a token=1
         115   W told w ended a
         80-140 B acquire b ttl=1000 token=2
         141   W told w granted b token=2",
    ),
    (
        "readers come and go",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a mode=reader ttl=1000 token=1
         10-21 B acquire b mode=reader ttl=1000 token=1
         22    W told w granted b token=1
         23    W told w granted a token=1
         30-40 B release b
         41    W told w ended b",
    ),
    (
        "an acquire of unknown outcome may have been granted",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a unknown
         22    W told w granted f00 token=1",
    ),
];

/// What a stream may do only if it was declared.
const MARKED: &str = "
    0-5   W watch w
    6     W told w snapshot
    10-20 A acquire a ttl=1000 token=1
    30-40 A release a
    50-60 B acquire b ttl=1000 token=2
    65    W told w skipped b
    70-80 B release b
    81    W told w ended b
    99    W told w over";

const BAD: [(&str, &str); 10] = [
    (
        "no snapshot first",
        "0-5   W watch w
         10-20 A acquire a ttl=1000 token=1
         18    W told w granted a token=1",
    ),
    (
        "a change between subscription and snapshot is lost",
        "0-5   W watch w
         10-20 A acquire a ttl=1000 token=1
         25    W told w snapshot
         90    W told w over",
    ),
    (
        "a grant is left out",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         30-40 A release a
         50-60 B acquire b ttl=1000 token=2
         61    W told w granted b token=2
         99    W told w over",
    ),
    (
        "the last change is left out",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         30-40 A release a
         99    W told w over",
    ),
    (
        "an end is left out and the next grant told",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         30-40 A release a
         50-60 B acquire b ttl=1000 token=2
         61    W told w granted b token=2",
    ),
    (
        "changes are told in the wrong order",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         30-40 A release a
         50-60 B acquire b ttl=1000 token=2
         61    W told w granted b token=2
         70-75 B release b
         76    W told w ended b
         77    W told w granted a token=1
         78    W told w ended a",
    ),
    (
        "a holder that never was",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a held
         22    W told w granted f00 token=1",
    ),
    (
        "a holder in the snapshot that was gone before",
        "0-10  A acquire a ttl=1000 token=1
         12-15 A release a
         20-25 W watch w
         26    W told w snapshot a",
    ),
    (
        "an end that had not come",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         25    W told w ended a
         60-70 A release a",
    ),
    (
        "the holder is not in the snapshot",
        "0-10  A acquire a ttl=1000 token=1
         20-25 W watch w
         26    W told w snapshot
         60-70 A release a",
    ),
];

fn judged(text: &str, coalescing: Coalescing) -> Judgement {
    let settle = Duration::from_nanos(10);
    let check = Check::Watch { coalescing, settle };
    check
        .judge(&history(text), &model(Ends::Lease), wgl::BUDGET)
        .unwrap()
}

#[test]
fn streams_that_tell_all_are_legal() {
    for (what, text) in GOOD {
        assert_eq!(judged(text, Coalescing::None), Judgement::Legal, "{what}");
    }
}

#[test]
fn gaps_phantoms_and_wrong_orders_are_refused() {
    for (what, text) in BAD {
        assert!(is_illegal(&judged(text, Coalescing::None)), "{what}");
        assert!(is_illegal(&judged(text, Coalescing::Marked)), "{what}");
    }
}

#[test]
fn what_is_left_out_must_be_declared_and_marked() {
    assert_eq!(judged(MARKED, Coalescing::Marked), Judgement::Legal);
    assert!(is_illegal(&judged(MARKED, Coalescing::None)));
    let silent = MARKED.replace("skipped b", "granted b token=2");
    assert!(is_illegal(&judged(&silent, Coalescing::Marked)));
}
