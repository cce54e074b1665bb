//! A fenced resource: a register that remembers the largest token, and refuses writes with a smaller one.
//!
//! Accepted writes have come in the order of their tokens, so there is one order to try: each takes effect as
//! early as its invoke, the write before it and the reads before it allow. If one of them cannot, or a
//! refusal or a read then has no moment of its own, nothing explains the history. O(n²) at worst, and
//! complete where all outcomes are known.

use std::collections::BTreeMap;

use super::{Found, Judgement, first, found, ms, who};
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

impl Call {
    fn of_token(&self) -> String {
        format!(
            "token {} (operation {}, lane {})",
            self.token, self.op_id, self.lane
        )
    }
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
    let is_read = |c: &&Call| c.op == Op::Read && c.outcome == OpOutcome::Ok;
    let reads: Vec<&Call> = calls.iter().filter(is_read).collect();
    let found = |token: u64| reads.iter().any(|r| r.token == token);
    // A write of unknown outcome whose value was read has happened; another may have.
    let has_happened =
        |c: &&Call| c.outcome == OpOutcome::Ok || (c.outcome == OpOutcome::Unknown && found(c.token));
    let writes = calls.iter().filter(|c| c.op == Op::Write);
    let mut writes: Vec<&Call> = writes.filter(has_happened).collect();
    writes.sort_by_key(|w| (w.token, w.from));
    let mut at: Vec<(&Call, u64)> = Vec::new();
    for write in writes {
        let before = at.last().copied();
        // What was read of a smaller token was read before.
        let smaller = reads.iter().filter(|r| r.token < write.token);
        let read = smaller.max_by_key(|r| r.from).copied();
        let earliest = [before.map_or(0, |(_, t)| t), read.map_or(0, |r| r.from)];
        let earliest = earliest.into_iter().fold(write.from, u64::max);
        if write.by < earliest {
            let (how, other) = match (before, read) {
                (Some((w, t)), _) if t == earliest => {
                    let (other, from) = (w.of_token(), ms(w.from));
                    let how = format!("{other} came before it, and cannot have come before {from}");
                    (how, w)
                }
                (_, Some(r)) => {
                    let (token, who, at) = (r.token, who(r.op_id, r.lane), ms(r.from));
                    let how = format!("token {token} was still read by {who}, which began at {at}");
                    (how, r)
                }
                _ => return None,
            };
            let (what, by) = (write.of_token(), ms(write.by));
            return found!(
                vec![other.op_id, write.op_id],
                "the write with {what} was accepted by {by}, but {how}"
            );
        }
        at.push((write, earliest));
    }
    refused_for_nothing(calls, &at).or_else(|| reads.iter().find_map(|read| unreadable(read, &at)))
}

/// A refusal needs a larger token before it.
fn refused_for_nothing(calls: &[Call], accepted: &[(&Call, u64)]) -> Found {
    let refused = |c: &&Call| c.op == Op::Write && c.outcome == OpOutcome::Held;
    let call = calls.iter().filter(refused).find(|refused| {
        let mut larger = accepted.iter().filter(|(w, _)| w.token > refused.token);
        let may_be = calls.iter().any(|c| {
            c.op == Op::Write
                && c.outcome == OpOutcome::Unknown
                && c.token > refused.token
                && c.from <= refused.by
        });
        !larger.any(|(_, at)| *at <= refused.by) && !may_be
    })?;
    let (what, by) = (call.of_token(), ms(call.by));
    found!(
        vec![call.op_id],
        "the write with {what} was refused by {by}, when no larger token can have come"
    )
}

/// A read finds the last write: after the first with its token, before the first with a larger one.
fn unreadable(read: &Call, accepted: &[(&Call, u64)]) -> Found {
    if read.token == 0 {
        // Nothing was written yet: the reads before a write have put it off already.
        return None;
    }
    let (reader, token, by) = (who(read.op_id, read.lane), read.token, ms(read.by));
    let Some((write, at)) = accepted.iter().find(|(w, _)| w.token == token) else {
        return found!(
            vec![read.op_id],
            "{reader} read token {token} at {by}, which no accepted write had"
        );
    };
    if read.by >= *at {
        return None;
    }
    let (op, lane, at) = (write.op_id, write.lane, ms(*at));
    found!(
        vec![write.op_id, read.op_id],
        "{reader} read token {token} by {by}, before its write (operation {op}, lane {lane}) can have come \
            at {at}"
    )
}
