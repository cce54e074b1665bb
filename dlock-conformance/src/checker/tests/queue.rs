//! The order of the queue.

use super::*;
use crate::history::fixture::history;

const SETTLE: Duration = Duration::from_nanos(5);

const GOOD: [(&str, &str); 8] = [
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
];

const BAD: [(&str, &str); 8] = [
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
];

#[test]
fn a_queue_in_order_is_legal() {
    for (what, text) in GOOD {
        let (events, model) = (history(text), model(Ends::Lease));
        assert_eq!(validate(&events), Ok(()), "{what}");
        let judgement = super::super::queue::check(&events, &model, SETTLE);
        assert_eq!(judgement, Judgement::Legal, "{what}");
    }
}

#[test]
fn overtaking_is_refused_and_both_are_named() {
    for (what, text) in BAD {
        let (events, model) = (history(text), model(Ends::Lease));
        assert_eq!(validate(&events), Ok(()), "{what}");
        let check = Check::Queue { settle: SETTLE };
        let judgement = check.judge(&events, &model, wgl::BUDGET).unwrap();
        assert!(is_illegal(&judgement), "{what}");
        let Judgement::Illegal(violation) = judgement else {
            continue;
        };
        let names: Vec<_> = violation.operations.iter().map(|op| of(&events, *op)).collect();
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
fn what_was_compared_is_counted() {
    assert_eq!(super::super::queue::compared(&history(GOOD[0].1)), 1);
    let alone = "0-10 A acquire a ttl=1000 token=1";
    assert_eq!(super::super::queue::compared(&history(alone)), 0);
}
