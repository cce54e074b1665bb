//! Hand-written histories, good and bad, for every checker and model.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::claims::Skew;
use crate::history::{Ends, EventKind, ModeTag, Op, OpOutcome};
use crate::rng::Rng;

const NO_SKEW: Skew = Skew {
    ppm: 0,
    fixed: Duration::ZERO,
};

fn model(ends: Ends) -> Model {
    Model {
        ends,
        skew: NO_SKEW,
        fenced: true,
    }
}

/// One line per operation: `begin-end lane verb grant key=value... outcome`, or `at lane drop|lost|believe grant`, or `at - fault`.
///
/// `verb` is acquire, try, renew or release; the outcome is ok unless another is named. Times are nanoseconds.
fn history(text: &str) -> Vec<Event> {
    let mut events: Vec<(u64, u8, Event)> = Vec::new();
    let mut grants: HashMap<&str, u64> = HashMap::new();
    for (n, line) in text.lines().map(str::trim).filter(|l| !l.is_empty()).enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |key: &str| words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
        let (begin, end) = words[0].split_once('-').unwrap_or((words[0], words[0]));
        let (begin, end): (u64, u64) = (begin.parse().unwrap(), end.parse().unwrap_or(u64::MAX));
        let op = match words[2] {
            "acquire" => Some(Op::Acquire),
            "try" => Some(Op::Try),
            "renew" => Some(Op::Renew),
            "release" => Some(Op::Release),
            _ => None,
        };
        let grant = words.get(3).copied().unwrap_or("-");
        let op_id = n as u64 + 1;
        let acquires = matches!(op, Some(Op::Acquire | Op::Try));
        let of = if acquires {
            None
        } else {
            grants.get(grant).copied()
        };
        if acquires {
            grants.insert(grant, op_id);
        }
        let event = Event {
            t_mono_ns: begin,
            lane: words[1].bytes().map(u32::from).sum(),
            op_id: if op.is_some() { op_id } else { of.unwrap_or(op_id) },
            kind: match words[2] {
                "drop" => EventKind::Dropped,
                "lost" => EventKind::Lost,
                "believe" => EventKind::GrantedBeliefUntil,
                "fault" => EventKind::FaultBegin,
                _ => EventKind::Invoke,
            },
            op,
            name: value("name").unwrap_or("x").to_owned(),
            of,
            mode: acquires.then(|| match value("mode") {
                Some("reader") => ModeTag::Reader,
                Some(n) => ModeTag::Permit(n.parse().unwrap()),
                None => ModeTag::Exclusive,
            }),
            grant_id: None,
            token: value("token").map(|t| t.parse().unwrap()),
            ttl_ns: value("ttl").map(|t| t.parse().unwrap()),
            outcome: None,
            err_kind: None,
            note: None,
        };
        if op.is_none() {
            events.push((begin, 1, event));
            continue;
        }
        let outcome = match *words.last().unwrap() {
            "held" => OpOutcome::Held,
            "timed_out" => OpOutcome::TimedOut,
            "lost" => OpOutcome::Lost,
            "failed" => OpOutcome::Failed,
            "unknown" => OpOutcome::Unknown,
            _ => OpOutcome::Ok,
        };
        let ret = Event {
            t_mono_ns: end,
            kind: EventKind::Return,
            outcome: Some(outcome),
            ..event.clone()
        };
        events.push((begin, 2, event));
        if end < u64::MAX {
            events.push((end, 0, ret));
        }
    }
    events.sort_by_key(|(at, order, _)| (*at, *order));
    events.into_iter().map(|(.., event)| event).collect()
}

fn quick(events: &[Event], model: &Model) -> Judgement {
    interval::check(&spans(events, model), model)
}

fn full(events: &[Event], model: &Model) -> Judgement {
    wgl::check(events, &spans(events, model), model, wgl::BUDGET)
}

fn is_illegal(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Illegal(_))
}

/// The well-known trap of judging a lock service with leases by the model of a plain mutex: A's lease lapses while it works,
/// B is granted, and A's late unlock fails.
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
        "the same, where only the word lost is known",
        Ends::WhenLost,
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
        "the plain mutex cannot explain a lapsed lease",
        Ends::Never,
        LAPSED_AND_RELEASED_LATE,
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
fn what_intervals_cannot_see_the_search_refuses() {
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
fn the_smallest_illegal_prefix_ends_with_the_grant_that_breaks_it() {
    let (events, model) = (history(BAD[0].2), model(Ends::Lease));
    let Judgement::Illegal(violation) = judge(&events, &model, wgl::BUDGET).unwrap() else {
        panic!("it must be illegal")
    };
    assert_eq!(violation.by, Some(30));
    assert_eq!(violation.operations, [1, 2]);
}

#[test]
fn a_contradiction_of_the_checkers_is_an_error_of_the_kit() {
    let violation = Violation {
        name: "x".to_owned(),
        explanation: "two".to_owned(),
        operations: vec![],
        by: None,
    };
    assert!(agree(Judgement::Illegal(violation.clone()), Judgement::Legal).is_err());
    assert_eq!(
        agree(
            Judgement::Illegal(violation.clone()),
            Judgement::Unknown(String::new())
        ),
        Ok(Judgement::Illegal(violation))
    );
}

#[test]
fn a_search_without_budget_says_that_it_does_not_know() {
    let (events, model) = (history(GOOD[0].2), model(Ends::Lease));
    assert!(matches!(
        wgl::check(&events, &spans(&events, &model), &model, 1),
        Judgement::Unknown(_)
    ));
}

#[test]
fn what_is_no_history_is_refused_before_it_is_judged() {
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

/// A legal history of an exclusive lock, by construction: the truth is drawn first, what clients saw is put around it.
fn generated(seed: u64, grants: usize) -> Vec<Event> {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    let mut now = 1_000;
    for n in 0..grants {
        let from = now;
        let until = from + 20 + rng.below(100);
        // Waiters began some time ago and learn of their grant a little later.
        let begin = from - rng.below(800);
        let granted = from + 1 + rng.below(8);
        let lets_go = until - 1 - rng.below(8);
        let token = n + 1;
        text += &format!("{begin}-{granted} L{n}x acquire g{n} ttl=100000 token={token}\n");
        match rng.below(3) {
            0 => text += &format!("{lets_go} L{n}x drop g{n}\n"),
            _ => text += &format!("{lets_go}-{} L{n}x release g{n}\n", until + rng.below(50)),
        }
        now = until + 1 + rng.below(30);
    }
    history(&text)
}

/// Lanes of the generated histories are strings of which the sums may collide; each operation gets a lane of its own here.
fn in_lanes_of_their_own(mut events: Vec<Event>) -> Vec<Event> {
    for event in &mut events {
        event.lane = event.op_id as u32;
    }
    events
}

#[test]
fn generated_histories_are_legal_until_one_event_is_corrupted() {
    let model = model(Ends::Lease);
    for seed in 0..60 {
        let good = in_lanes_of_their_own(generated(seed, 40));
        assert_eq!(
            judge(&good, &model, wgl::BUDGET),
            Ok(Judgement::Legal),
            "seed {seed}"
        );

        // A token that was given before.
        let mut repeated = good.clone();
        let mut returns = repeated
            .iter_mut()
            .filter(|e| e.kind == EventKind::Return && e.op == Some(Op::Acquire));
        let first = returns.next().unwrap().token;
        returns.nth(20).unwrap().token = first;
        assert!(
            is_illegal(&judge(&repeated, &model, wgl::BUDGET).unwrap()),
            "seed {seed}: token"
        );

        // A release that was never asked for: its holder holds on, the next are granted all the same.
        let mut kept = good.clone();
        let victim = kept
            .iter()
            .find(|e| e.kind == EventKind::Invoke && e.op == Some(Op::Release))
            .unwrap()
            .op_id;
        kept.retain(|e| e.op_id != victim);
        assert!(
            is_illegal(&judge(&kept, &model, wgl::BUDGET).unwrap()),
            "seed {seed}: release"
        );
    }
}

#[test]
fn long_histories_without_tokens_are_decided_within_the_budget() {
    let mut model = model(Ends::Lease);
    model.fenced = false;
    let events = in_lanes_of_their_own(generated(7, 5_000));
    assert_eq!(judge(&events, &model, wgl::BUDGET), Ok(Judgement::Legal));
}

#[test]
fn beliefs_may_touch_within_the_skew_and_no_more() {
    let good = [
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-100 B acquire b ttl=100
         100 B believe b ttl=90",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         20-30 A release a
         25-30 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50 A lost a
         55-60 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50 A drop a
         55-60 B acquire b ttl=100",
        "0-10 A acquire a ttl=100 mode=reader
         10 A believe a ttl=90
         15-20 B acquire b ttl=100 mode=reader
         20 B believe b ttl=90",
        // Two permits of two; the third is granted when the first is over but for the skew.
        "0-10 A acquire a ttl=100 mode=2
         10 A believe a ttl=90
         10-20 B acquire b ttl=200 mode=2
         20 B believe b ttl=180
         50-96 C acquire c ttl=100 mode=2",
    ];
    let bad = [
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-90 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         80 A believe a ttl=90
         50-120 B acquire b ttl=100",
        "0-10 A acquire a ttl=100 mode=reader
         10 A believe a ttl=90
         50-90 B acquire b ttl=100",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-90 B acquire b ttl=100 mode=reader",
        "0-10 A acquire a ttl=100
         10 A believe a ttl=90
         50-90 B acquire b ttl=100
         97-99 A release a",
        "0-10 A acquire a ttl=100 mode=2
         10 A believe a ttl=90
         10-20 B acquire b ttl=200 mode=2
         20 B believe b ttl=180
         50-90 C acquire c ttl=100 mode=2",
    ];
    let skew = Skew {
        ppm: 0,
        fixed: Duration::from_nanos(5),
    };
    for text in good {
        assert_eq!(belief::check(&history(text), skew), Judgement::Legal, "{text}");
    }
    for text in bad {
        assert!(is_illegal(&belief::check(&history(text), skew)), "{text}");
    }
}

#[test]
fn lost_updates_are_counted() {
    use super::lost_update::LostUpdates;
    type Case<'a> = (&'a [u64], &'a [u64], &'a [u64], usize, usize);
    let cases: [Case<'_>; 10] = [
        (&[], &[], &[], 0, 0),
        (&[1, 2], &[], &[1, 2], 0, 0),
        (&[1, 2], &[3], &[1, 2, 3], 0, 0),
        (&[1, 2], &[3], &[1, 2], 0, 0),
        (&[], &[1], &[1], 0, 0),
        (&[1, 2], &[], &[1], 1, 0),
        (&[1, 2, 3, 4], &[], &[], 4, 0),
        (&[1], &[], &[1, 9], 0, 1),
        (&[1, 2], &[3], &[3], 2, 0),
        (&[1], &[2], &[9], 1, 1),
    ];
    for (acknowledged, maybe, found, lost, invented) in cases {
        let copy = |list: &[u64]| list.to_vec();
        let count = LostUpdates::count(copy(acknowledged), copy(maybe), copy(found));
        assert_eq!(
            (count.lost.len(), count.invented.len()),
            (lost, invented),
            "{count}"
        );
        assert_eq!(count.is_none(), lost + invented == 0);
    }
    let half = LostUpdates::count([1, 2], [], [1]);
    assert_eq!(half.to_string(), "1 of 2 updates were lost (50.0 %)");
}
