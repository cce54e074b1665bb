//! The interval checker and the search: the same histories for both.

use super::*;

fn quick(events: &[Event], model: &Model) -> Judgement {
    interval::check(&spans(events, model), model)
}

fn full(events: &[Event], model: &Model) -> Judgement {
    wgl::check(&spans(events, model), model, wgl::BUDGET)
}

/// The well-known trap of judging a lock service with leases by the model of a plain mutex: A's lease lapses
/// while it works, B is granted, and A's late unlock fails.
const LAPSED_AND_RELEASED_LATE: &str = "
    0-10    A acquire a ttl=100
    150-160 B acquire b ttl=1000
    170-180 A release a lost
    200-210 B release b";

const GOOD: &[(&str, Ends, &str)] = &[
    (
        "one after the other",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=1
        20-30 A release a
        25-40 B acquire b ttl=100 token=2
        50-60 B release b",
    ),
    (
        "a wait ends when the holder releases",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=1
        5-60  B acquire b ttl=1000 token=2
        40-50 A release a
        70-80 B release b",
    ),
    (
        "a lease lapses and the next is granted",
        Ends::Lease,
        "
        0-10    A acquire a ttl=100 token=1
        20-110  B acquire b ttl=1000 token=2
        120-130 A release a lost",
    ),
    (
        "a guard that is over when it is returned is held no longer than it was",
        Ends::Lease,
        "
        0-50  A acquire a ttl=100 token=2
        50    A believe a ttl=50
        5-90  B acquire b ttl=10 token=1
        90    B believe b ttl=0",
    ),
    (
        "a renewal moves the end",
        Ends::Lease,
        "
        0-10    A acquire a ttl=100 token=1
        80-90   A renew a ttl=100
        20-190  B acquire b ttl=1000 token=2",
    ),
    (
        "a failed release that took effect explains the next grant",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=1
        20-30 A release a unknown
        40-50 B acquire b ttl=1000 token=2",
    ),
    (
        "a dropped guard is released in the background",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=1
        20    A drop a
        15-50 B acquire b ttl=1000 token=2",
    ),
    (
        "burnt tokens are allowed",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=1
        20-30 A release a
        25-35 C acquire c timed_out
        40-50 B acquire b ttl=100 token=9",
    ),
    (
        "an acquire of unknown outcome forbids nothing",
        Ends::Lease,
        "
        0-10  A acquire a unknown
        20-30 B acquire b ttl=100 token=2",
    ),
    (
        "names are apart",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=5
        0-10  B acquire b ttl=100 token=1 name=y",
    ),
    (
        "a lease that lapsed, with a late release",
        Ends::Lease,
        LAPSED_AND_RELEASED_LATE,
    ),
    (
        "readers share",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 mode=reader token=3
        0-10  B acquire b ttl=100 mode=reader token=3
        20-30 A release a
        20-30 B release b
        25-50 C acquire c ttl=100 token=4",
    ),
    (
        "the last reader lets the writer in",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 mode=reader token=3
        0-10  B acquire b ttl=1000 mode=reader token=3
        20-30 A release a
        15-90 W acquire w ttl=1000 token=4
        70-80 B release b",
    ),
    (
        "two of two permits",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 mode=2 token=1
        0-10  B acquire b ttl=1000 mode=2 token=2
        20-30 A release a
        15-40 C acquire c ttl=1000 mode=2 token=3",
    ),
    (
        "a cut ends a session at once",
        Ends::LeaseOrFault,
        "
        0-10  A acquire a ttl=1000 token=1
        20    - fault
        30-40 B acquire b ttl=1000 token=2
        50-60 A release a lost",
    ),
    (
        "concurrent grants in the order of their tokens",
        Ends::Lease,
        "
        0-100 A acquire a ttl=9000 token=2
        0-50  B acquire b ttl=9000 token=1
        60-70 B release b
        110-130 A release a",
    ),
];

const BAD: &[(&str, Ends, &str)] = &[
    (
        "two hold at once",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=1
        20-30 B acquire b ttl=1000 token=2
        40-50 A release a
        60-70 B release b",
    ),
    (
        "a grant inside another's hold, released there",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=1
        20-30 B acquire b ttl=1000 token=2
        31-32 B release b
        90-99 A release a",
    ),
    (
        "a lease is given away too early",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=1
        20-90 B acquire b ttl=100 token=2",
    ),
    (
        "a renewed lease is given away at its first end",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=1
        50-60 A renew a ttl=100
        20-120 B acquire b ttl=100 token=2",
    ),
    (
        "a hold is lost before its lease ran out",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=1
        20-30 A release a lost",
    ),
    (
        "a release found another's grant",
        Ends::Lease,
        "
        0-10    A acquire a ttl=100 token=1
        150-160 B acquire b ttl=1000 token=2
        170-180 A release a",
    ),
    (
        "a renewal resurrects a lease that is over",
        Ends::Lease,
        "
        0-10    A acquire a ttl=100 token=1
        150-160 B acquire b ttl=1000 token=2
        170-180 A renew a ttl=1000",
    ),
    (
        "tokens fall",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=2
        20-30 A release a
        40-50 B acquire b ttl=100 token=1",
    ),
    (
        "tokens repeat",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=2
        20-30 A release a
        25-50 B acquire b ttl=100 token=2",
    ),
    (
        "a reader during a write",
        Ends::Lease,
        "
        0-10  W acquire w ttl=1000 token=1
        20-30 A acquire a ttl=1000 mode=reader token=1
        40-50 W release w",
    ),
    (
        "a writer after the first of two readers",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 mode=reader token=3
        0-10  B acquire b ttl=1000 mode=reader token=3
        20-30 A release a
        15-40 W acquire w ttl=1000 token=4
        70-80 B release b",
    ),
    (
        "three of two permits",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 mode=2 token=1
        0-10  B acquire b ttl=1000 mode=2 token=2
        15-40 C acquire c ttl=1000 mode=2 token=3",
    ),
    (
        "permits of two classes",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 mode=2 token=1
        15-40 C acquire c ttl=1000 mode=3 token=3",
    ),
    (
        "a read token below the last write token",
        Ends::Lease,
        "
        0-10  W acquire w ttl=1000 token=5
        20-30 W release w
        40-50 A acquire a ttl=1000 mode=reader token=4",
    ),
    (
        "a write token that is not above the reads before it",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 mode=reader token=4
        20-30 A release a
        40-50 W acquire w ttl=1000 token=4",
    ),
    (
        "a renewal after the release",
        Ends::Lease,
        "
        0-10  A acquire a ttl=1000 token=4
        20-30 A release a
        40-50 A renew a ttl=1000",
    ),
    (
        "a session is lost with no fault",
        Ends::LeaseOrFault,
        "
        0-10  A acquire a ttl=1000 token=1
        30-40 B acquire b ttl=1000 token=2",
    ),
    (
        "the holder believes longer than its ttl",
        Ends::Lease,
        "
        0-10  A acquire a ttl=100 token=1
        90    A believe a ttl=100
        120-130 B acquire b ttl=100 token=2",
    ),
];

/// Bad ones that no pair of sure holds shows; only the search finds them.
const SUBTLE: &[(&str, Ends, &str)] = &[
    (
        "a third of two permits, given back at once",
        Ends::Lease,
        "
        0-10  A acquire a ttl=9000 mode=2
        0-10  B acquire b ttl=9000 mode=2
        20-30 C acquire c ttl=9000 mode=2
        30-40 C release c
        80-90 A release a
        80-90 B release b",
    ),
    (
        "concurrent grants of which the token order contradicts the ends",
        Ends::Lease,
        "
        0-100   A acquire a ttl=9000 token=2
        0-100   B acquire b ttl=9000 token=1
        100-120 A release a
        130-140 B release b",
    ),
    (
        "a read token from before a write, held after it",
        Ends::Lease,
        "
        0-10  V acquire v ttl=9000 token=1
        20-30 V release v
        15-60 R acquire r ttl=9000 mode=reader token=1
        25-50 W acquire w ttl=9000 token=2
        55-57 W release w
        70-80 R release r",
    ),
];

#[test]
fn good_histories_are_legal_to_both_checkers() {
    for (what, ends, text) in GOOD {
        let (events, model) = (history(text), model(*ends));
        assert_eq!(validate(&events), Ok(()), "{what}");
        assert_eq!(quick(&events, &model), Judgement::Legal, "{what}");
        assert_eq!(full(&events, &model), Judgement::Legal, "{what}");
    }
}

#[test]
fn bad_histories_are_refused_by_both_checkers() {
    for (what, ends, text) in BAD {
        let (events, model) = (history(text), model(*ends));
        assert_eq!(validate(&events), Ok(()), "{what}");
        assert!(is_illegal(&quick(&events, &model)), "{what}: interval");
        assert!(is_illegal(&full(&events, &model)), "{what}: wgl");
    }
}

#[test]
fn what_intervals_show_needs_no_search() {
    for (what, ends, text) in BAD {
        let judgement = judge(&history(text), &model(*ends), 0);
        assert!(is_illegal(&judgement.unwrap()), "{what}");
    }
}

#[test]
fn the_search_finds_what_intervals_miss() {
    for (what, ends, text) in SUBTLE {
        let (events, model) = (history(text), model(*ends));
        assert!(is_illegal(&full(&events, &model)), "{what}");
        assert!(
            is_illegal(&judge(&events, &model, wgl::BUDGET).unwrap()),
            "{what}"
        );
    }
}

#[test]
fn a_search_out_of_budget_is_undecided() {
    let (events, model) = (history(GOOD[0].2), model(Ends::Lease));
    assert!(matches!(
        wgl::check(&spans(&events, &model), &model, 1),
        Judgement::Unknown(_)
    ));
}

#[test]
fn a_malformed_history_is_refused_before_judging() {
    let good = history(GOOD[0].2);
    let mut backwards = good.clone();
    backwards.swap(0, 1);
    let mut twice = good.clone();
    twice.insert(1, twice[0].clone());
    let mut orphan = good.clone();
    orphan.remove(0);
    let mut stranger = good.clone();
    for event in &mut stranger {
        if event.op == Some(Op::Release) {
            event.of = Some(99);
        }
    }
    let mut two_in_a_lane = good.clone();
    for event in &mut two_in_a_lane {
        event.lane = 1;
    }
    for (what, events) in [
        ("times go back", backwards),
        ("an operation is invoked twice", twice),
        ("a return without an invoke", orphan),
        ("a release of a grant that never was", stranger),
        ("two operations in one lane", two_in_a_lane),
    ] {
        assert!(
            judge(&events, &model(Ends::Lease), wgl::BUDGET).is_err(),
            "{what}"
        );
    }
}
