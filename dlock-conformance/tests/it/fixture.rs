//! Histories written by hand, for the tests of whatever reads histories, and directories for whatever writes
//! files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock_conformance::Skew;
use dlock_conformance::history::{Ends, Event, EventKind, ModeTag, Model, Op, OpOutcome, Told};

/// Leases with tokens, and clocks that do not drift.
pub(crate) const LEASE: Model = Model {
    ends: Ends::Lease,
    skew: Skew {
        ppm: 0,
        fixed: Duration::ZERO,
    },
    fenced: true,
};

/// A history of which the times are milliseconds, in which explanations and drawings speak.
pub(crate) fn in_millis(text: &str) -> Vec<Event> {
    let mut events = history(text);
    for event in &mut events {
        event.t_mono_ns *= 1_000_000;
        event.ttl_ns = event.ttl_ns.map(|ttl| ttl * 1_000_000);
    }
    events
}

/// One line per event or operation, in any order. Times are nanoseconds.
///
/// * `begin-end lane verb grant key=value... outcome` is an operation: acquire, try, renew, release, write,
///   read or watch, the outcome is ok unless another is named. Without an end (`begin-`) it is in flight for
///   ever. The name of a grant is also its id.
/// * `at lane drop|lost|believe|queued grant` is a point event of that grant or acquire.
/// * `at lane told watch snapshot A,B | skipped A,B | granted A token=1 | ended A | over` is what that
///   watcher was told.
/// * `at lane fault`, `at lane healed`.
///
/// Keys: `token`, `ttl`, `name` (x unless given), `mode` (`reader` or a number of permits), `prio`, `owner`.
pub(crate) fn history(text: &str) -> Vec<Event> {
    let mut events: Vec<(u64, u8, Event)> = Vec::new();
    let mut grants: HashMap<&str, u64> = HashMap::new();
    let mut lanes: HashMap<&str, u32> = HashMap::new();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|words: &Vec<&str>| !words.is_empty())
        .collect();
    for (n, words) in lines.iter().enumerate() {
        if matches!(words[2], "acquire" | "try" | "watch") {
            grants.insert(words[3], n as u64 + 1);
        }
    }
    for (n, words) in lines.iter().enumerate() {
        let (begin, end) = words[0].split_once('-').unwrap_or((words[0], words[0]));
        let (begin, end): (u64, u64) = (begin.parse().unwrap(), end.parse().unwrap_or(u64::MAX));
        let next = lanes.len() as u32 + 1;
        let lane = *lanes.entry(words[1]).or_insert(next);
        let grant = words.get(3).copied().unwrap_or("-");
        let of = grants.get(grant).copied();
        let (kind, op) = verb(words[2]);
        let acquires = matches!(op, Some(Op::Acquire | Op::Try));
        let op_id = match kind {
            EventKind::Invoke | EventKind::FaultBegin | EventKind::FaultEnd => n as u64 + 1,
            _ => of.unwrap_or(n as u64 + 1),
        };
        let mut event = event(kind, lane, op_id, words);
        event.t_mono_ns = begin;
        event.op = op;
        let is_of = matches!(op, Some(Op::Renew | Op::Release))
            || matches!(
                kind,
                EventKind::GrantedBeliefUntil | EventKind::Lost | EventKind::Dropped
            );
        event.of = of.filter(|_| is_of);
        if !acquires {
            event.mode = None;
        }
        if kind != EventKind::Invoke {
            events.push((begin, 1, event));
            continue;
        }
        let outcome = outcome(words.last().unwrap());
        let ret = Event {
            t_mono_ns: end,
            kind: EventKind::Return,
            outcome: Some(outcome),
            grant_id: acquires.then(|| grant.to_owned()),
            ..event.clone()
        };
        // The token of a write is its own; that of a grant or a read is an answer.
        if op != Some(Op::Write) {
            event.token = None;
        }
        events.push((begin, 2, event));
        if end < u64::MAX {
            events.push((end, 0, ret));
        }
    }
    events.sort_by_key(|(at, order, _)| (*at, *order));
    events.into_iter().map(|(.., event)| event).collect()
}

fn verb(word: &str) -> (EventKind, Option<Op>) {
    let op = match word {
        "acquire" => Op::Acquire,
        "try" => Op::Try,
        "renew" => Op::Renew,
        "release" => Op::Release,
        "write" => Op::Write,
        "read" => Op::Read,
        "watch" => Op::Watch,
        other => {
            let kind = match other {
                "drop" => EventKind::Dropped,
                "lost" => EventKind::Lost,
                "believe" => EventKind::GrantedBeliefUntil,
                "queued" => EventKind::Queued,
                "told" => EventKind::Watch,
                "fault" => EventKind::FaultBegin,
                "healed" => EventKind::FaultEnd,
                _ => panic!("no such verb: {other}"),
            };
            return (kind, None);
        }
    };
    (EventKind::Invoke, Some(op))
}

fn outcome(word: &str) -> OpOutcome {
    match word {
        "held" | "refused" => OpOutcome::Held,
        "timed_out" => OpOutcome::TimedOut,
        "lost" => OpOutcome::Lost,
        "failed" => OpOutcome::Failed,
        "unknown" => OpOutcome::Unknown,
        _ => OpOutcome::Ok,
    }
}

fn event(kind: EventKind, lane: u32, op_id: u64, words: &[&str]) -> Event {
    let value = |key: &str| words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| value(key).map(|n| n.parse().unwrap());
    Event {
        mode: Some(match value("mode") {
            Some("reader") => ModeTag::Reader,
            Some(n) => ModeTag::Permit(n.parse().unwrap()),
            None => ModeTag::Exclusive,
        }),
        token: number("token"),
        ttl_ns: number("ttl"),
        priority: number("prio").map(|p| p as u8),
        owner: value("owner").map(str::to_owned),
        told: (kind == EventKind::Watch).then(|| told(words[4], words.get(5).copied(), number("token"))),
        note: value("note").map(str::to_owned),
        ..Event::new(kind, lane, op_id, value("name").unwrap_or("x"))
    }
}

fn told(what: &str, whom: Option<&str>, token: Option<u64>) -> Told {
    let whom = whom.unwrap_or("");
    let snapshot = |skipped| Told::Snapshot {
        holders: whom
            .split(',')
            .filter(|id| !id.is_empty())
            .map(str::to_owned)
            .collect(),
        skipped,
    };
    match what {
        "snapshot" => snapshot(false),
        "skipped" => snapshot(true),
        "granted" => Told::Granted(whom.to_owned(), token),
        "ended" => Told::Ended(whom.to_owned()),
        "over" => Told::Over,
        other => panic!("nobody is told {other}"),
    }
}

/// An empty directory of its own, which is removed again.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Each test has a name of its own for it.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dlock-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
