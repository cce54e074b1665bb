//! What the interval checker says for itself: it explains what it refuses, and refuses nothing that touches
//! only.

use super::*;

fn judged(events: &[Event], ends: Ends) -> Judgement {
    let model = model(ends);
    assert_eq!(validate(events), Ok(()));
    interval::check(&spans(events, &model), &model)
}

/// Histories in which one time is the other, to the nanosecond: legal to the search too.
const TOUCHING: &[(&str, &str)] = &[
    (
        "told of the loss in the moment in which the lease lapses",
        "0-10   A acquire a ttl=100 token=1
         50-100 A release a lost",
    ),
    (
        "renewed in the moment of the return of the release",
        "0-10  A acquire a ttl=100 token=1
         20-30 A release a
         30-40 A renew a ttl=100",
    ),
    (
        "granted in the moment in which its own lease lapses",
        "0-100   A acquire a ttl=100 token=1
         110-120 B acquire b ttl=100 token=2",
    ),
    (
        "asked for in the moment of the return of another, and held for no time at all",
        "0-20  A acquire a mode=reader ttl=100 token=1
         20-30 B try b ttl=0 token=1",
    ),
    (
        "granted in the moment in which another lease lapses",
        "0-10  A acquire a mode=reader ttl=30 token=1
         15-30 B acquire b ttl=100 token=2",
    ),
    (
        "a smaller token, asked for in the moment of the return of the larger one",
        "0-20  A acquire a ttl=100 token=2
         20-40 B try b ttl=0 token=1",
    ),
    (
        "the token of a reader may be that of the last exclusive grant",
        "0-10  A acquire a ttl=100 token=5
         20-30 A release a
         40-50 B acquire b mode=reader ttl=100 token=5",
    ),
    (
        "tokens of readers may fall, as long as no exclusive one is larger",
        "0-10  A acquire a mode=reader ttl=100 token=5
         20-30 B acquire b mode=reader ttl=100 token=4",
    ),
];

#[test]
fn times_that_touch_are_no_violation() {
    for (what, text) in TOUCHING {
        let events = history(text);
        assert_eq!(judged(&events, Ends::Lease), Judgement::Legal, "{what}");
        let model = model(Ends::Lease);
        assert_eq!(
            judge(&events, &model, wgl::BUDGET),
            Ok(Judgement::Legal),
            "{what}"
        );
    }
}

#[test]
fn each_violation_has_a_sentence_that_names_its_operations() {
    let cases: &[(Ends, &str, &str, &[u64])] = &[
        (
            Ends::Lease,
            "0-10  A acquire a ttl=1000 token=7
             20-30 A release a lost",
            "`x`: operation 1 (lane 1, token 7) was told by 30.000 ms that its lock was lost, but the end \
                of its lease cannot have ended it before 1000.000 ms: either another client ended it, or it \
                was not lost",
            &[1],
        ),
        (
            Ends::Lease,
            "0-10  A acquire a ttl=1000
             20-30 A release a
             40-50 A renew a ttl=1000",
            "`x`: operation 1 (lane 1) was renewed by a call that began at 40.000 ms, after its hold had \
                ended by 30.000 ms",
            &[1],
        ),
        (
            Ends::Lease,
            "0-10  A acquire a ttl=500 token=1
             20-30 B acquire b ttl=1000 token=2",
            "`x`: operation 1 (lane 1, token 1) held it (Exclusive) for sure from 10.000 ms on, and \
                operation 2 (lane 2, token 2) (Exclusive) from 30.000 ms on; both until 500.000 ms",
            &[1, 2],
        ),
        (
            Ends::Lease,
            "1-10  A acquire a mode=reader ttl=18446744073709
             20-30 B acquire b ttl=18446744073709",
            "`x`: operation 1 (lane 1) held it (Reader) for sure from 10.000 ms on, and operation 2 (lane \
                2) (Exclusive) from 30.000 ms on; both until the end of the history",
            &[1, 2],
        ),
        (
            Ends::Lease,
            "0-10  A acquire a mode=2 ttl=500 token=1
             10-20 B acquire b mode=2 ttl=500 token=2
             20-30 C acquire c mode=2 ttl=500 token=3",
            "`x`: operation 3 (lane 3, token 3) made 3 holders at 30.000 ms where 2 are allowed",
            &[1, 2, 3],
        ),
        (
            Ends::Lease,
            "0-10  A acquire a ttl=500 token=1
             20-30 B acquire b ttl=5 token=2",
            "`x`: operation 2 (lane 2, token 2) was granted between 20.000 ms and 30.000 ms, all the while \
                operation 1 (lane 1, token 1) held it for sure (from 10.000 ms to 500.000 ms)",
            &[1, 2],
        ),
        (
            Ends::Lease,
            "0-10  A acquire a ttl=500 token=1
             510-520 B acquire b ttl=500 token=1",
            "`x`: operation 1 (lane 1, token 1) and operation 2 (lane 2, token 1) have the same \
                token. No two holds overlap for sure: the tokens are wrong (rules 7.02 and 7.05)",
            &[1, 2],
        ),
        (
            Ends::Lease,
            "0-10  A acquire a ttl=500 token=2
             510-520 B acquire b ttl=500 token=1",
            "`x`: operation 2 (lane 2, token 1) was granted after operation 1 (lane 1, token 2) had \
                returned, but its token is not larger. No two holds overlap for sure: the tokens are wrong \
                (rules 7.02 and 7.05)",
            &[1, 2],
        ),
    ];
    for (ends, text, sentence, operations) in cases {
        let judgement = judged(&in_millis(text), *ends);
        assert_eq!(
            explained(&judgement),
            ((*sentence).to_owned(), operations.to_vec())
        );
    }
}

#[test]
fn a_grant_inside_several_holds_names_the_longest_of_them() {
    // A writer that is granted inside readers, and of which nothing is sure itself.
    let cases = [
        ("the first lasts longest", 900, 400, 1),
        ("the second lasts longest", 400, 900, 2),
        ("only the second lasts", 25, 900, 2),
        ("both last equally long: the first", 900, 900, 1),
    ];
    for (what, a, b, named) in cases {
        let text = format!(
            "0-10  A acquire a mode=reader ttl={a} token=1
             0-12  B acquire b mode=reader ttl={b} token=1
             20-30 W try w ttl=1 token=2"
        );
        assert_eq!(
            operations(&judged(&history(&text), Ends::Lease)),
            [named, 3],
            "{what}"
        );
    }
}

#[test]
fn a_token_that_falls_is_held_against_the_largest_before_it() {
    let cases = [
        (
            "the last was the largest",
            "0-5   A acquire a ttl=5 token=1
             10-15 B acquire b ttl=5 token=3
             20-25 C acquire c ttl=5 token=2",
            [2, 3],
        ),
        (
            "the first was the largest of readers",
            "0-5   A acquire a mode=reader ttl=5 token=3
             10-15 B acquire b mode=reader ttl=5 token=1
             20-25 C acquire c ttl=5 token=2",
            [1, 3],
        ),
        (
            "a reader, after the last of two exclusive grants",
            "0-5   A acquire a ttl=5 token=1
             10-15 B acquire b ttl=5 token=3
             20-25 C acquire c mode=reader ttl=5 token=2",
            [2, 3],
        ),
        (
            "of equal ones, the later",
            "0-5   A acquire a mode=reader ttl=5 token=4
             10-15 B acquire b mode=reader ttl=5 token=4
             20-25 C acquire c ttl=5 token=4",
            [2, 3],
        ),
    ];
    for (what, text, named) in cases {
        assert_eq!(operations(&judged(&history(text), Ends::Lease)), named, "{what}");
    }
}
