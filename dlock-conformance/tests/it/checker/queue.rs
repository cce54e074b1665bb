//! The order of the queue.

use super::*;

const SETTLE: Duration = Duration::from_nanos(5);

const GOOD: [(&str, &str); 14] = [
    (
        "first come, first served",
        "0-10   A acquire a ttl=1000 token=1
         11-50  B acquire b ttl=1000 token=2
         15     B queued b
         20-70  C acquire c ttl=1000 token=3
         40-45  A release a
         60-65  B release b",
    ),
    (
        "the order of two that came at the same time is open",
        "0-10   A acquire a ttl=1000 token=1
         11-70  B acquire b ttl=1000 token=3
         12-50  C acquire c ttl=1000 token=2
         15     B queued b
         40-45  A release a
         60-65  C release c",
    ),
    (
        "who timed out was not overtaken",
        "0-10   A acquire a ttl=1000 token=1
         11-50  B acquire b timed_out
         15     B queued b
         20-52  C acquire c ttl=1000 token=2
         40-45  A release a",
    ),
    (
        "who left in the moment of the grant was not overtaken either",
        "0-10   A acquire a ttl=1000 token=1
         11-53  B acquire b timed_out
         15     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a",
    ),
    (
        "the higher priority goes first",
        "0-10   A acquire a ttl=1000 token=1
         11-90  B acquire b ttl=1000 token=3
         15     B queued b
         20-50  C acquire c prio=9 ttl=1000 token=2
         25     C queued c
         40-45  A release a
         60-65  C release c",
    ),
    (
        "a higher priority that comes too late waits",
        "0-10   A acquire a ttl=1000 token=1
         11-50  B acquire b ttl=1000 token=2
         15     B queued b
         40-45  A release a
         42-90  C acquire c prio=9 ttl=1000 token=3
         47     C queued c
         60-65  B release b",
    ),
    (
        "readers that go in together may return in any order",
        "0-10   A acquire a ttl=1000 token=1
         11-52  B acquire b mode=reader ttl=1000 token=1
         15     B queued b
         20-50  C acquire c mode=reader ttl=1000 token=1
         40-45  A release a",
    ),
    (
        "a waiter that died may be passed over",
        "0-10   A acquire a ttl=1000 token=1
         11-    B acquire b
         15     B queued b
         18     B fault
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a",
    ),
    (
        "who was seen in line in the moment in which the other asked may have come after it",
        "0-10   A acquire a ttl=1000 token=1
         11-70  B acquire b ttl=1000 token=3
         20     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a
         60-65  C release c",
    ),
    (
        "a higher priority that is seen in the moment from which on the grant can have been made",
        "0-10   A acquire a ttl=1000 token=1
         38-70  B acquire b prio=9 ttl=1000 token=3
         40     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a
         60-65  C release c",
    ),
    (
        "who left the settling time after the grant was not overtaken",
        "0-10   A acquire a ttl=1000 token=1
         11-55  B acquire b timed_out
         15     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a",
    ),
    (
        "a hold that ended as it began puts off no grant",
        "0-30   A acquire a ttl=30 token=1
         18-70  B acquire b prio=9 ttl=1000 token=3
         20     B queued b
         5-50   C acquire c ttl=1000 token=2
         60-65  C release c",
    ),
    (
        "a hold that may end in the moment of the return puts it off no more",
        "0-10   A acquire a ttl=50 token=1
         28-70  B acquire b prio=9 ttl=1000 token=3
         30     B queued b
         20-50  C acquire c ttl=1000 token=2
         60-65  C release c",
    ),
    (
        "a reader need not wait for the end of a reader",
        "0-10   A acquire a mode=reader ttl=1000 token=1
         28-70  B acquire b prio=9 ttl=1000 token=2
         30     B queued b
         20-50  C acquire c mode=reader ttl=1000 token=1
         40-45  A release a
         60-65  C release c",
    ),
];

const BAD: [(&str, &str); 9] = [
    (
        "last come, first served",
        "0-10   A acquire a ttl=1000 token=1
         11-70  B acquire b ttl=1000 token=3
         15     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a
         60-65  C release c",
    ),
    (
        "a try barges in",
        "0-10   A acquire a ttl=1000 token=1
         11-70  B acquire b ttl=1000 token=3
         15     B queued b
         40-45  A release a
         44-50  C try c ttl=1000 token=2
         60-65  C release c",
    ),
    (
        "the priority is ignored",
        "0-10   A acquire a ttl=1000 token=1
         11-50  B acquire b ttl=1000 token=2
         15     B queued b
         20-90  C acquire c prio=9 ttl=1000 token=3
         25     C queued c
         40-45  A release a
         60-65  B release b",
    ),
    (
        "equals of a high priority are not in order",
        "0-10   A acquire a ttl=1000 token=1
         11-90  B acquire b prio=9 ttl=1000 token=3
         15     B queued b
         20-50  C acquire c prio=9 ttl=1000 token=2
         40-45  A release a
         60-65  C release c",
    ),
    (
        "a waiter is forgotten",
        "0-10   A acquire a ttl=1000 token=1
         11-    B acquire b
         15     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a",
    ),
    (
        "one that timed out long after was overtaken",
        "0-10   A acquire a ttl=1000 token=1
         11-99  B acquire b timed_out
         15     B queued b
         20-50  C acquire c ttl=1000 token=2
         40-45  A release a",
    ),
    (
        "readers come one at a time, the later first",
        "0-10   A acquire a ttl=1000 token=1
         11-90  B acquire b mode=reader ttl=1000 token=1
         15     B queued b
         20-50  C acquire c mode=reader ttl=1000 token=1
         40-45  A release a
         60-65  C release c",
    ),
    (
        "a reader goes in before a writer that waits",
        "0-10   A acquire a mode=reader ttl=1000 token=1
         11-70  B acquire b ttl=1000 token=2
         15     B queued b
         20-25  C acquire c mode=reader ttl=1000 token=1
         40-45  A release a
         60-65  C release c",
    ),
    (
        "one that was granted right after, and could not have been beside it",
        "0-10   A acquire a ttl=1000 token=1
         11-53  B acquire b ttl=1000 token=3
         15     B queued b
         20-50  C acquire c ttl=1 token=2
         40-45  A release a",
    ),
];

#[test]
fn an_ordered_queue_is_legal() {
    for (what, text) in GOOD {
        let judgement = judged(&Check::Queue { settle: SETTLE }, &history(text));
        assert_eq!(judgement, Judgement::Legal, "{what}");
    }
}

#[test]
fn overtaking_is_refused_and_both_are_named() {
    for (what, text) in BAD {
        let events = history(text);
        let judgement = judged(&Check::Queue { settle: SETTLE }, &events);
        assert!(is_illegal(&judgement), "{what}");
        let names: Vec<_> = operations(&judgement)
            .into_iter()
            .map(|op| of(&events, op))
            .collect();
        let (waiter, granted) = if what == "the priority is ignored" {
            ("c", "b")
        } else {
            ("b", "c")
        };
        assert_eq!(names, [waiter, granted], "{what}");
    }
}

/// The grant that the fixture calls so, by its lane.
fn of(events: &[Event], op: u64) -> &'static str {
    let lane = events.iter().find(|e| e.op_id == op).map(|e| e.lane);
    ["?", "a", "b", "c"][lane.unwrap_or(0) as usize]
}

#[test]
fn comparisons_are_counted() {
    assert_eq!(checker::queue::compared(&history(GOOD[0].1)), 1);
    let alone = "0-10 A acquire a ttl=1000 token=1";
    assert_eq!(checker::queue::compared(&history(alone)), 0);
}

#[test]
fn each_later_grant_of_the_name_is_compared_and_counted_once() {
    // The first returned in the moment in which the waiter was seen, one got nothing, one is another lock.
    let text = "
        0-15   A acquire a ttl=15 token=1
        11-70  B acquire b ttl=1000 token=4
        15     B queued b
        20-50  C acquire c ttl=5 token=2
        20-60  D acquire d ttl=5 token=3
        20-50  E acquire e timed_out
        20-50  F acquire f name=y ttl=1000 token=1";
    assert_eq!(checker::queue::compared(&history(text)), 2);
}

#[test]
fn an_overtaken_waiter_is_named_with_its_fate() {
    let waits = |b: &str, c: &str| {
        format!(
            "0-10   A acquire a ttl=1000 token=1
             {b}
             15     B queued b
             {c}
             40-45  A release a"
        )
    };
    let first = "operation 4 (lane 3) was granted between 40.000 ms and 50.000 ms although operation 2 (lane \
        2), queued since 15.000 ms, was queued before the other started at 20.000 ms";
    let c = "20-50 C acquire c ttl=10 token=2";
    let cases = [
        (
            waits("11-70 B acquire b ttl=1000 token=3", c),
            format!("`x`: {first}; it was granted only by 70.000 ms"),
        ),
        (
            waits("11- B acquire b", c),
            format!("`x`: {first}; it waits to the end of the history"),
        ),
        (
            waits("11-99 B acquire b timed_out", c),
            format!("`x`: {first}; it left at 99.000 ms without a grant"),
        ),
        (
            waits(
                "11-70 B acquire b prio=9 ttl=1000 token=3",
                "12-50 C acquire c prio=4 ttl=10 token=2",
            ),
            "`x`: operation 4 (lane 3) was granted between 40.000 ms and 50.000 ms although operation 2 \
                (lane 2), queued since 15.000 ms, has the higher priority (9 over 4); it was granted only by \
                70.000 ms"
                .to_owned(),
        ),
    ];
    for (text, sentence) in cases {
        let settle = Duration::from_millis(5);
        let judgement = judged(&Check::Queue { settle }, &in_millis(&text));
        assert_eq!(explained(&judgement), (sentence, vec![2, 4]), "{text}");
    }
}
