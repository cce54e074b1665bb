//! What watchers were told.

use dlock_conformance::checker::watch::Coalescing;

use super::*;

const GOOD: &[(&str, &str)] = &[
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
    (
        "a subscription that failed is owed nothing",
        "0-5   W watch w failed
         10-20 A acquire a ttl=1000 token=1
         99    - healed",
    ),
    (
        "a stream that was over at once",
        "0-5   W watch w
         6     W told w over
         10-20 A acquire a ttl=1000 token=1
         99    - healed",
    ),
    (
        "the first snapshot may say that it skips what was before it",
        "0-5   W watch w
         6     W told w skipped
         7     W told w over",
    ),
    (
        "what ended while it subscribed may be in the snapshot",
        "0-4   A acquire a ttl=1000 token=1
         8-12  A release a
         10-20 W watch w
         21    W told w snapshot a
         22    W told w ended a",
    ),
    (
        "what ended in the moment in which it subscribed may be in the snapshot",
        "0-4   A acquire a ttl=1000 token=1
         8-12  A release a
         12-20 W watch w
         21    W told w snapshot a
         22    W told w ended a",
    ),
    (
        "what ended in the moment in which it subscribed may be told",
        "0-4   A acquire a ttl=1000 token=1
         8-12  A release a
         12-20 W watch w
         21    W told w snapshot
         22    W told w granted a token=1
         23    W told w ended a",
    ),
    (
        "what was granted in the moment in which it subscribed may be missing in the snapshot",
        "0-20  A acquire a ttl=1000 token=1
         20-25 W watch w
         26    W told w snapshot",
    ),
    (
        "what may have ended in the moment of the snapshot may be missing in it",
        "0-10  A acquire a ttl=1000 token=1
         20-25 W watch w
         26    W told w snapshot
         26-30 A release a",
    ),
    (
        "a grant that was asked for in the moment of the return of the subscription may be missing",
        "0-5   W watch w
         5-8   A acquire a ttl=1000 token=1
         9-10  A release a
         12    W told w snapshot
         99    W told w over",
    ),
    (
        "a grant that returned the settling time before the end may be missing",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         30    W told w over",
    ),
    (
        "an end that came the settling time before the end of the stream may be missing",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         30-40 A release a
         50    W told w over",
    ),
    (
        "a grant may be told in the moment in which it is asked for, and its end as its release is",
        "0-5   W watch w
         6     W told w snapshot
         10    W told w granted a token=1
         10-20 A acquire a ttl=1000 token=1
         30    W told w ended a
         30-40 A release a",
    ),
    (
        "a grant may be told twice",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         22    W told w granted a token=1",
    ),
    (
        "readers are told in any order",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a mode=reader ttl=1000 token=2
         10-20 B acquire b mode=reader ttl=1000 token=1
         21    W told w granted a token=2
         22    W told w granted b token=1",
    ),
    (
        "an acquire in flight for ever may have been granted",
        "0-5   W watch w
         6     W told w snapshot
         10-   A acquire a
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

const BAD: &[(&str, &str, &str)] = &[
    (
        "no snapshot first",
        "0-5   W watch w
         10-20 A acquire a ttl=1000 token=1
         18    W told w granted a token=1",
        "its first item, at 18.000 ms, was no snapshot",
    ),
    (
        "a change between subscription and snapshot is lost",
        "0-5   W watch w
         10-20 A acquire a ttl=1000 token=1
         25    W told w snapshot
         90    W told w over",
        "it never saw the grant of operation 2, made by 20.000 ms",
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
        "it never saw the grant of operation 3, made by 20.000 ms",
    ),
    (
        "the last change is left out",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         30-40 A release a
         99    W told w over",
        "it never saw the end of operation 3, which had come by 40.000 ms: the final state is missing",
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
        "it saw at 61.000 ms the grant of operation 6 and never the end of operation 3 before it",
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
        "it saw at 77.000 ms token 1, after token 2: not the order of the grants",
    ),
    (
        "a holder that never was",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a held
         22    W told w granted f00 token=1",
        "it saw at 22.000 ms a holder (f00) that never existed",
    ),
    (
        "a holder in the snapshot that was gone before",
        "0-10  A acquire a ttl=1000 token=1
         12-15 A release a
         20-25 W watch w
         26    W told w snapshot a",
        "the snapshot at 26.000 ms shows operation 1 as a holder, whose hold was over by 15.000 ms",
    ),
    (
        "an end that had not come",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         21    W told w granted a token=1
         25    W told w ended a
         60-70 A release a",
        "it saw at 25.000 ms the end of operation 3, which held it for sure until 60.000 ms",
    ),
    (
        "the holder is not in the snapshot",
        "0-10  A acquire a ttl=1000 token=1
         20-25 W watch w
         26    W told w snapshot
         60-70 A release a",
        "the snapshot at 26.000 ms omits operation 1, which held it since 10.000 ms",
    ),
    (
        "a grant that is owed at the end of the history, where the stream is not over",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         99    - healed",
        "it never saw the grant of operation 3, made by 20.000 ms",
    ),
    (
        "a holder that never was, where another lock has an acquire of unknown outcome",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a name=y unknown
         22    W told w granted f00 token=1",
        "it saw at 22.000 ms a holder (f00) that never existed",
    ),
    (
        "a second snapshot that does not say that it skips",
        "0-5   W watch w
         6     W told w snapshot
         7     W told w snapshot",
        "a second snapshot at 7.000 ms although no change may be left out",
    ),
    (
        "the grant of a hold that was over before it subscribed",
        "0-10  A acquire a ttl=1000 token=1
         12-15 A release a
         20-25 W watch w
         26    W told w snapshot
         27    W told w granted a token=1
         28    W told w ended a",
        "it saw at 27.000 ms the grant of operation 1, which was over by 15.000 ms, before it subscribed",
    ),
    (
        "a grant before it was asked for",
        "0-5   W watch w
         6     W told w snapshot
         9     W told w granted a token=1
         10-20 A acquire a ttl=1000 token=1",
        "it saw at 9.000 ms the grant of operation 4, which began at 10.000 ms",
    ),
    (
        "an end without a grant",
        "0-5   W watch w
         6     W told w snapshot
         10-20 A acquire a ttl=1000 token=1
         30-40 A release a
         41    W told w ended a",
        "it saw at 41.000 ms the end of a hold (a) whose grant it did not see",
    ),
];

fn judged(text: &str, coalescing: Coalescing) -> Judgement {
    let settle = Duration::from_millis(10);
    super::judged(&Check::Watch { coalescing, settle }, &in_millis(text))
}

#[test]
fn complete_streams_are_legal() {
    for (what, text) in GOOD {
        assert_eq!(judged(text, Coalescing::None), Judgement::Legal, "{what}");
    }
}

#[test]
fn gaps_phantoms_and_wrong_orders_are_refused() {
    for (what, text, why) in BAD {
        for coalescing in [Coalescing::None, Coalescing::Marked] {
            let (sentence, _) = explained(&judged(text, coalescing));
            let (_, told) = sentence.split_once(": the watcher in lane ").unwrap_or_default();
            let (_, told) = told.split_once(": ").unwrap_or_default();
            assert_eq!(told, *why, "{what}");
        }
    }
}

#[test]
fn skipped_changes_must_be_declared_and_marked() {
    assert_eq!(judged(MARKED, Coalescing::Marked), Judgement::Legal);
    assert!(is_illegal(&judged(MARKED, Coalescing::None)));
    let silent = MARKED.replace("skipped b", "granted b token=2");
    assert!(is_illegal(&judged(&silent, Coalescing::Marked)));
}

#[test]
fn a_violation_names_watcher_lane_and_operations_with_events() {
    let text = "
        0-5   W watch w
        6     W told w snapshot
        10-20 A acquire a ttl=1000 token=1
        15    - fault name=-
        21    W told w granted a token=1
        22-23 C try c held
        30-40 A release a
        50-60 B acquire b ttl=1000 token=2
        61    W told w granted b token=2";
    let judgement = judged(text, Coalescing::None);
    let (sentence, operations) = explained(&judgement);
    assert_eq!(operations, [3, 8, 1]);
    assert!(sentence.starts_with("`x`: the watcher in lane 1: "), "{sentence}");
    let Judgement::Illegal(violation) = judgement else {
        panic!("it must be illegal")
    };
    let times = violation.minimal.iter().map(|e| e.t_mono_ns / 1_000_000);
    assert_eq!(
        times.collect::<Vec<_>>(),
        [0, 5, 6, 10, 15, 20, 21, 30, 40, 50, 60, 61]
    );
}

#[test]
fn a_snapshot_that_skips_must_be_true_up_to_its_own_moment() {
    let forgotten = "
        0-5   W watch w
        6     W told w snapshot
        10-20 A acquire a ttl=1000 token=1
        35    W told w granted a token=1
        50    W told w skipped
        60    W told w over";
    // Granted right before the event that was told last, less the settling time, it may have come after the
    // snapshot's moment.
    let may_be_late = forgotten.replace("35  ", "30  ");
    let after = "
        0-5   W watch w
        6     W told w snapshot
        65    W told w skipped
        65-70 A acquire a ttl=1000 token=1
        99    W told w over";
    let cases = [
        (
            forgotten,
            "`x`: the watcher in lane 1: the snapshot at 50.000 ms omits operation 3, which held it since \
                20.000 ms",
        ),
        (&may_be_late, "Legal"),
        (
            after,
            "`x`: the watcher in lane 1: it never saw the grant of operation 4, made by 70.000 ms",
        ),
    ];
    for (text, sentence) in cases {
        assert_eq!(explained(&judged(text, Coalescing::Marked)).0, sentence);
    }
}
