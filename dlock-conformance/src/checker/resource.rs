//! A fenced resource: a register that remembers the largest token, and refuses writes with a smaller one.
//!
//! Accepted writes have come in the order of their tokens, so there is one order to try: each takes effect as
//! early as its invoke, the write before it and the reads before it allow. If one of them cannot, or a
//! refusal or a read then has no moment of its own, nothing explains the history. O(n²) at worst, and
//! complete where all outcomes are known.

use std::collections::BTreeMap;

use super::{Found, Judgement, first, ms, who};
use crate::history::{Event, EventKind, Op, OpOutcome};

/// An operation on the resource, and when it may have taken effect.
#[derive(Clone, Copy, Debug)]
struct Call {
    op_id: u64,
    lane: u32,
    op: Op,
    token: u64,
    from: u64,
    by: u64,
    outcome: OpOutcome,
}

/// Checks every resource. The history must be valid.
pub fn check(events: &[Event]) -> Judgement {
    let resources = read(events);
    first(resources.iter().map(|(name, calls)| (*name, broken(calls))))
}

fn read(events: &[Event]) -> BTreeMap<&str, Vec<Call>> {
    let mut calls: BTreeMap<&str, Vec<Call>> = BTreeMap::new();
    for event in events {
        let Some(op @ (Op::Write | Op::Read)) = event.op else {
            continue;
        };
        let of_name = calls.entry(&event.name).or_default();
        match event.kind {
            EventKind::Invoke => of_name.push(Call {
                op_id: event.op_id,
                lane: event.lane,
                op,
                token: event.token.unwrap_or(0),
                from: event.t_mono_ns,
                by: u64::MAX,
                outcome: OpOutcome::Unknown,
            }),
            EventKind::Return => {
                if let Some(call) = of_name.iter_mut().find(|c| c.op_id == event.op_id) {
                    call.outcome = event.outcome.unwrap_or(OpOutcome::Unknown);
                    call.token = event.token.unwrap_or(0);
                    // An operation with an unknown outcome may still take effect at any time.
                    if call.outcome != OpOutcome::Unknown {
                        call.by = event.t_mono_ns;
                    }
                }
            }
            _ => {}
        }
    }
    calls
}

fn broken(calls: &[Call]) -> Found {
    let reads: Vec<&Call> = calls
        .iter()
        .filter(|c| c.op == Op::Read && c.outcome == OpOutcome::Ok)
        .collect();
    let found = |token: u64| reads.iter().any(|r| r.token == token);
    // A write of unknown outcome whose value was read has happened; another may have.
    let mut writes: Vec<&Call> = calls
        .iter()
        .filter(|c| c.op == Op::Write)
        .filter(|c| c.outcome == OpOutcome::Ok || (c.outcome == OpOutcome::Unknown && found(c.token)))
        .collect();
    writes.sort_by_key(|w| (w.token, w.from));
    let mut at: Vec<(&Call, u64)> = Vec::new();
    for write in writes {
        let before = at.last().copied();
        // What was read of a smaller token was read before.
        let read = reads
            .iter()
            .filter(|r| r.token < write.token)
            .max_by_key(|r| r.from)
            .copied();
        let earliest = write
            .from
            .max(before.map_or(0, |(_, t)| t))
            .max(read.map_or(0, |r| r.from));
        if write.by < earliest {
            let (what, other) = match (before, read) {
                (Some((w, t)), _) if t == earliest => ("was accepted", w),
                (_, Some(r)) => ("was read", r),
                _ => return None,
            };
            return Some(overtaken(write, what, other));
        }
        at.push((write, earliest));
    }
    refused_for_nothing(calls, &at).or_else(|| reads.iter().find_map(|read| unreadable(read, &at)))
}

fn overtaken(write: &Call, what: &str, other: &Call) -> (String, Vec<u64>) {
    let how = if what == "was read" {
        format!(
            "token {} was still read by {}, which began at {}",
            other.token,
            who(other.op_id, other.lane),
            ms(other.from)
        )
    } else {
        format!(
            "token {} (operation {}, lane {}) came before it, and cannot have come before {}",
            other.token,
            other.op_id,
            other.lane,
            ms(other.from)
        )
    };
    (
        format!(
            "the write with token {} (operation {}, lane {}) was accepted by {}, but {how}",
            write.token,
            write.op_id,
            write.lane,
            ms(write.by)
        ),
        vec![other.op_id, write.op_id],
    )
}

/// A refusal needs a larger token before it.
fn refused_for_nothing(calls: &[Call], accepted: &[(&Call, u64)]) -> Found {
    let refused = |c: &&Call| c.op == Op::Write && c.outcome == OpOutcome::Held;
    let call = calls.iter().filter(refused).find(|refused| {
        let explained = accepted
            .iter()
            .any(|(w, at)| w.token > refused.token && *at <= refused.by);
        let may_be = calls.iter().any(|c| {
            c.op == Op::Write
                && c.outcome == OpOutcome::Unknown
                && c.token > refused.token
                && c.from <= refused.by
        });
        !explained && !may_be
    })?;
    Some((
        format!(
            "the write with token {} (operation {}, lane {}) was refused by {}, when no larger token can \
                have come",
            call.token,
            call.op_id,
            call.lane,
            ms(call.by)
        ),
        vec![call.op_id],
    ))
}

/// A read finds the last write: after the first with its token, before the first with a larger one.
fn unreadable(read: &Call, accepted: &[(&Call, u64)]) -> Found {
    if read.token == 0 {
        // Nothing was written yet: the reads before a write have put it off already.
        return None;
    }
    let Some((write, at)) = accepted.iter().find(|(w, _)| w.token == read.token) else {
        return Some((
            format!(
                "{} read token {} at {}, which no accepted write had",
                who(read.op_id, read.lane),
                read.token,
                ms(read.by)
            ),
            vec![read.op_id],
        ));
    };
    (read.by < *at).then(|| {
        (
            format!(
                "{} read token {} by {}, before its write (operation {}, lane {}) can have come at {}",
                who(read.op_id, read.lane),
                read.token,
                ms(read.by),
                write.op_id,
                write.lane,
                ms(*at)
            ),
            vec![write.op_id, read.op_id],
        )
    })
}
