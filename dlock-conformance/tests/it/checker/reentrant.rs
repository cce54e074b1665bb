//! Levels of one owner.

use super::*;

const GOOD: [(&str, &str); 8] = [
    (
        "two levels, and the next owner after both",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=1
         30-35 A release b
         40-45 A release a
         25-60 B acquire c ttl=1000 token=2",
    ),
    (
        "the outer level goes first",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=1
         30-35 A release a
         40-45 A release b
         25-60 B acquire c ttl=1000 token=2",
    ),
    (
        "two tasks of one owner",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         12-18 D acquire b owner=1/1 ttl=1000 token=1
         20-25 A release a
         30-35 D release b
         22-60 B acquire c ttl=1000 token=2",
    ),
    (
        "a level that was acquired while the last one was released is a hold of its own",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         20-40 A release a
         22-50 D acquire b owner=1/1 ttl=1000 token=2
         60-65 D release b",
    ),
    (
        "another owner of the same client waits",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         12-60 D acquire b owner=1/2 ttl=1000 token=2
         30-35 A release a",
    ),
    (
        "the lease of all levels lapses",
        "0-10    A acquire a owner=1/1 ttl=100 token=1
         15-20   A acquire b owner=1/1 ttl=100 token=1
         25-130  B acquire c ttl=1000 token=2
         140-145 A release b lost
         150-155 A release a lost",
    ),
    (
        "three levels of three",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         11-12 A acquire b owner=1/1 ttl=1000 token=1
         13-14 A acquire c owner=1/1 ttl=1000 token=1
         15-16 A release c
         17-18 A acquire d owner=1/1 ttl=1000 token=1",
    ),
    (
        "a level that may end as the next one returns is not counted beside it",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         11-12 A acquire b owner=1/1 ttl=1000 token=1
         13-14 A acquire c owner=1/1 ttl=1000 token=1
         15-20 A acquire d owner=1/1 ttl=1000 token=1
         20-30 D release c",
    ),
];

const BAD: [(&str, &str); 9] = [
    (
        "the first release frees it",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=1
         30-35 A release b
         25-38 B acquire c ttl=1000 token=2
         40-45 A release a",
    ),
    (
        "the release of the outer level frees it",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=1
         30-35 A release a
         25-38 B acquire c ttl=1000 token=2
         90-95 A release b",
    ),
    (
        "it is re-entrant for all",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 B acquire b owner=2/1 ttl=1000 token=1
         30-35 B release b
         40-45 A release a",
    ),
    (
        "it is re-entrant for another owner of the client",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/2 ttl=1000 token=2
         30-35 A release b",
    ),
    (
        "four levels of three",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         11-12 A acquire b owner=1/1 ttl=1000 token=1
         13-14 A acquire c owner=1/1 ttl=1000 token=1
         15-16 A acquire d owner=1/1 ttl=1000 token=1",
    ),
    (
        "a level has a token of its own",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=2
         30-35 A release b",
    ),
    (
        "a plain acquire comes in at the second level",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=1
         22-25 B try c ttl=1000 token=2
         30-35 A release b",
    ),
    (
        "tokens fall from one hold to the next",
        "0-10  A acquire a owner=1/1 ttl=1000 token=2
         15-20 A acquire b owner=1/1 ttl=1000 token=2
         30-35 A release b
         40-45 A release a
         50-60 B acquire c ttl=1000 token=1",
    ),
    (
        "a level is renewed after the last of them was released",
        "0-10  A acquire a owner=1/1 ttl=1000 token=1
         15-20 A acquire b owner=1/1 ttl=1000 token=1
         30-35 A release b
         40-45 A release a
         50-60 A renew a ttl=1000",
    ),
];

const THREE_LEVELS: Check = Check::Reentrant { depth: 3 };

#[test]
fn levels_of_one_owner_are_one_hold() {
    for (what, text) in GOOD {
        assert_eq!(judged(&THREE_LEVELS, &history(text)), Judgement::Legal, "{what}");
    }
}

#[test]
fn a_hold_that_ends_before_its_last_level_is_refused() {
    for (what, text) in BAD {
        assert!(is_illegal(&judged(&THREE_LEVELS, &history(text))), "{what}");
    }
}

#[test]
fn too_many_levels_and_tokens_that_differ_are_explained() {
    let cases: [(&str, &str, &[u64]); 3] = [
        (
            "0-10  A acquire a owner=1/1 ttl=1000 token=1
             11-12 A acquire b owner=1/1 ttl=1000 token=1
             13-14 B acquire c owner=1/1 ttl=1000 token=1
             15-16 B acquire d owner=1/1 ttl=1000 token=1",
            "`x`: operation 4 (lane 2) made 4 levels of one owner at 16.000 ms where 3 are allowed",
            &[1, 2, 3, 4],
        ),
        (
            "0-10  A acquire a owner=1/1 ttl=1000 token=1
             15-20 A acquire b owner=1/1 ttl=1000 token=1
             25-30 A acquire c owner=1/1 ttl=1000 token=3",
            "`x`: operations 1 and 3 are levels of one hold, and their tokens differ: 1 and 3",
            &[1, 3],
        ),
        (
            "0-10  A acquire a owner=1/1 ttl=1000 token=1
             15-20 A acquire b owner=1/1 ttl=1000",
            "`x`: operations 1 and 2 are levels of one hold, and their tokens differ: 1 and none",
            &[1, 2],
        ),
    ];
    for (text, sentence, operations) in cases {
        let judgement = judged(&THREE_LEVELS, &in_millis(text));
        assert_eq!(explained(&judgement), (sentence.to_owned(), operations.to_vec()));
    }
}

#[test]
fn a_contradiction_of_the_checkers_is_an_error_of_the_kit() {
    let text = "0-10  A acquire a owner=1/1 ttl=1000 token=1
                20-30 A release a";
    let judged = |renewed: &[(u64, u64)]| {
        let mut names = spans(&history(text), &LEASE);
        names.get_mut("x").unwrap()[0].renewed.extend(renewed);
        checker::reentrant::check(&names, &LEASE, 2, wgl::BUDGET)
    };
    assert_eq!(judged(&[]), Ok(Judgement::Legal));
    // The intervals refuse what was renewed after its end; an end that is not known lets the search leave it
    // out. No history has a renewal that is both.
    let why = judged(&[(40, u64::MAX)]).unwrap_err();
    assert!(why.starts_with("the checkers contradict each other"), "{why}");
}
