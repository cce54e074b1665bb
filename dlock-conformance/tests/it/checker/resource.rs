//! A fenced resource.

use super::*;

const GOOD: [(&str, &str); 15] = [
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
    (
        "a read that failed has found nothing",
        "0-10  A write - token=1
         20-30 B read - token=7 failed",
    ),
    (
        "a write of unknown outcome was read, and is all that was",
        "0-10  A write - token=5 unknown
         20-30 B read - token=5",
    ),
    (
        "a write of unknown outcome that nobody read may never have come",
        "5-10  A write - token=4
         20-60 B write - token=3 unknown",
    ),
    (
        "a larger token as the smaller one can have come at the earliest",
        "0-20  B write - token=2
         20-30 A write - token=1",
    ),
    (
        "a read as its write can have come at the earliest",
        "0-20  B read - token=1
         20-30 A write - token=1",
    ),
    (
        "a refusal as the larger token can have come at the earliest",
        "5-20  B write - token=1 refused
         20-40 A write - token=2",
    ),
    (
        "a refusal by a write of unknown outcome",
        "0-10  A write - token=2 unknown
         20-30 B write - token=1 refused",
    ),
    (
        "a refusal as a write of unknown outcome began",
        "5-20  B write - token=1 refused
         20-40 A write - token=2 unknown",
    ),
];

const BAD: [(&str, &str); 13] = [
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
    (
        "a refusal beside a smaller token of unknown outcome",
        "0-10  A write - token=1 unknown
         20-30 B write - token=2 refused",
    ),
    (
        "a refusal beside the same token of unknown outcome",
        "0-10  A write - token=2 unknown
         20-30 B write - token=2 refused",
    ),
    (
        "a refusal before the larger token of unknown outcome began",
        "20-30 B write - token=1 refused
         31-40 A write - token=2 unknown",
    ),
    (
        "a refusal before the larger token can have come",
        "20-30 B write - token=1 refused
         31-40 A write - token=2",
    ),
    (
        "a refusal beside a larger token that was refused itself, and one that was only read in vain",
        "0-10  A write - token=2 refused
         20-30 B write - token=1 refused
         0-10  C read - token=3 unknown",
    ),
];

#[test]
fn a_resource_that_follows_the_tokens_is_legal() {
    for (what, text) in GOOD {
        assert_eq!(
            judged(&Check::Resource, &history(text)),
            Judgement::Legal,
            "{what}"
        );
    }
}

#[test]
fn a_resource_that_ignores_tokens_is_refused() {
    for (what, text) in BAD {
        let judgement = judged(&Check::Resource, &history(text));
        assert!(is_illegal(&judgement), "{what}");
        assert!(!operations(&judgement).is_empty(), "{what}");
    }
}

#[test]
fn resources_are_independent() {
    let two = "0-10  B write - token=2 name=x
               20-30 A write - token=1 name=y";
    assert_eq!(judged(&Check::Resource, &history(two)), Judgement::Legal);
}

#[test]
fn resource_violations_are_explained() {
    let cases: [(&str, &str, &[u64]); 6] = [
        (
            "0-10  B write - token=2
             20-30 A write - token=1",
            "the write with token 2 (operation 1, lane 1) was accepted by 10.000 ms, but token 1 (operation \
                2, lane 2) came before it, and cannot have come before 20.000 ms",
            &[2, 1],
        ),
        // The write of the smaller token is not in the way, only the read of it.
        (
            "0-10  A write - token=1
             20-30 B write - token=2
             40-50 C read - token=1",
            "the write with token 2 (operation 2, lane 2) was accepted by 30.000 ms, but token 1 was still \
                read by operation 3 (lane 3), which began at 40.000 ms",
            &[3, 2],
        ),
        // Both are in the way, from the same moment on: the write says more.
        (
            "20-30 A write - token=1
             0-10  B write - token=2
             20-50 C read - token=1",
            "the write with token 2 (operation 2, lane 2) was accepted by 10.000 ms, but token 1 (operation \
                1, lane 1) came before it, and cannot have come before 20.000 ms",
            &[1, 2],
        ),
        (
            "0-10  A write - token=1
             20-30 B write - token=2 refused",
            "the write with token 2 (operation 2, lane 2) was refused by 30.000 ms, when no larger token \
                can have come",
            &[2],
        ),
        (
            "0-10  A write - token=1
             20-30 B read - token=7",
            "operation 2 (lane 2) read token 7 at 30.000 ms, which no accepted write had",
            &[2],
        ),
        (
            "0-10  C read - token=2
             20-30 A write - token=2",
            "operation 1 (lane 1) read token 2 by 10.000 ms, before its write (operation 2, lane 2) can \
                have come at 20.000 ms",
            &[2, 1],
        ),
    ];
    for (text, sentence, operations) in cases {
        let judgement = judged(&Check::Resource, &in_millis(text));
        assert_eq!(
            explained(&judgement),
            (format!("`x`: {sentence}"), operations.to_vec())
        );
    }
}
