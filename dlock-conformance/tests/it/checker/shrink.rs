//! The least of a history that is illegal still.

use super::*;

fn minimal(text: &str) -> Violation {
    let judgement = judged(&Check::Exclusion, &history(text));
    let Judgement::Illegal(violation) = judgement else {
        panic!("it must be illegal: {judgement:?}")
    };
    let again = judged(&Check::Exclusion, &violation.minimal);
    assert!(is_illegal(&again), "the least is not illegal");
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
fn a_long_history_shrinks_to_the_clashing_pair() {
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
fn violations_of_the_search_are_shrunk_too() {
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
fn shrinking_drops_events_after_the_violation() {
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

/// The least of it, where it is illegal as long as all of those events are in it, and those operations were
/// named.
fn least(events: &[Event], needed: &[u64], named: &[u64], id: fn(&Event) -> u64) -> Vec<Event> {
    let illegal = |part: &[Event]| needed.iter().all(|n| part.iter().any(|e| id(e) == *n));
    let violation = Violation::new("x", String::new(), named.to_vec());
    checker::shrink::minimal(events, &violation, &illegal)
}

fn ids(events: &[Event]) -> Vec<u64> {
    let mut ids: Vec<u64> = events.iter().map(|e| e.op_id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[test]
fn a_prefix_is_cut_where_it_begins_to_be_illegal() {
    let events = history("0-1 A try a held\n2-3 A try b held\n4-5 A try c held\n6-7 A try d held");
    for len in 1..=events.len() {
        for bad in 1..=len {
            let illegal = |part: &[Event]| part.len() >= bad;
            let found = checker::shrink::prefix(&events[..len], &illegal);
            assert_eq!(found, bad, "of {len}");
        }
    }
}

#[test]
fn shrinking_keeps_the_illegal_grants() {
    let text = "
        0-1   A try a held
        2-3   A try b held
        4-5   A try c held
        6-7   A try d held
        8-9   A try e held
        10-11 A try f held
        1-9   B try g held name=y";
    let events = history(text);
    for set in 1..64_u64 {
        let needed: Vec<u64> = (1..=6).filter(|n| set & (1 << (n - 1)) != 0).collect();
        let least = least(&events, &needed, &[], |e| e.op_id);
        assert_eq!(ids(&least), needed);
    }
}

#[test]
fn operations_named_by_the_checker_are_kept_first() {
    let violation = minimal(
        "0-10  A acquire a mode=reader ttl=1000 token=1
         0-11  B acquire b mode=reader ttl=1000 token=1
         0-12  C acquire c mode=reader ttl=1000 token=1
         20-30 D acquire d ttl=1000 token=2",
    );
    assert_eq!(violation.operations, ids(&violation.minimal));
}

#[test]
fn a_fault_is_never_left_out() {
    let text = "
        0-1   A try a held
        2     - fault name=-
        4-5   A try b held
        6     - healed name=-
        7-8   A try c held";
    let events = history(text);
    for named in [&[1, 5][..], &[]] {
        let least = least(&events, &[1, 5], named, |e| e.op_id);
        assert_eq!(ids(&least), [1, 2, 4, 5], "{named:?}");
    }
}

#[test]
fn renewals_and_beliefs_are_left_out_singly_and_grants_never() {
    let text = "
        0-10  A acquire a ttl=100
        12    A believe a ttl=90
        20-25 A renew a ttl=100
        30-35 A renew a ttl=100
        40    A believe a ttl=90
        50-60 A release a";
    let events = history(text);
    let cases: [(&[u64], &[u64]); 7] = [
        (&[10], &[0, 10]),
        (&[60], &[0, 10, 50, 60]),
        (&[12, 60], &[0, 10, 12, 50, 60]),
        (&[40, 60], &[0, 10, 40, 50, 60]),
        (&[20, 60], &[0, 10, 20, 25, 50, 60]),
        (&[35, 60], &[0, 10, 30, 35, 50, 60]),
        (&[25, 30, 60], &[0, 10, 20, 25, 30, 35, 50, 60]),
    ];
    for (needed, left) in cases {
        let least = least(&events, needed, &[], |e| e.t_mono_ns);
        let times: Vec<u64> = least.iter().map(|e| e.t_mono_ns).collect();
        assert_eq!(times, left, "{needed:?}");
    }
}

#[test]
fn judgements_are_no_more_than_halving_needs_and_the_limit() {
    let of = |n: u64| {
        let text: Vec<String> = (0..n)
            .map(|n| format!("{}-{} A try a{n} held", 2 * n, 2 * n + 1))
            .collect();
        let events = history(&text.join("\n"));
        let asked = std::cell::Cell::new(0);
        let illegal = |part: &[Event]| {
            asked.set(asked.get() + 1);
            part.len() == events.len()
        };
        let violation = Violation::new("x", String::new(), Vec::new());
        checker::shrink::minimal(&events, &violation, &illegal);
        asked.get()
    };
    // The whole, its prefixes, what was named, and runs of 32, 16, 8, 4, 2 and 1.
    assert_eq!(of(64), 1 + 7 + 1 + 126);
    // The whole and its prefixes are beside the limit.
    assert!(of(400) <= 1 + 10 + 600);
}

#[test]
fn a_violation_that_needs_another_lock_shows_its_operations() {
    let text = "
        0-10  A acquire a ttl=100
        5     - fault name=-
        12-15 A renew a ttl=100
        20-30 B acquire b ttl=100
        20-30 C acquire c ttl=100 name=y
        40-50 B release b";
    let least = least(&history(text), &[5], &[1, 5], |e| e.op_id);
    assert_eq!(ids(&least), [1, 2, 3]);
}

#[test]
fn context_is_what_overlaps_an_operation_in_time() {
    let text = "
        0-9   A write - token=1
        2-10  B write - token=1
        10-20 C write - token=1
        12-14 D write - token=1 name=y
        15    - fault name=-
        21-22 D write - token=1
        30-40 E write - token=1
        35-   F read -
        40-50 G read -
        41-51 H read -
        60    - healed name=-
        3-70  I read -
        1-    J read -
        43-   K read -";
    for named in [[3, 7], [7, 3]] {
        let violation = Violation::new("x", String::new(), named.to_vec());
        let around = checker::shrink::around(&history(text), &violation);
        assert_eq!(ids(&around), [2, 3, 5, 6, 7, 8, 9, 11, 12, 13]);
    }
}
