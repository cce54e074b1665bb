//! The order of a queue: no waiter is granted before one that was queued first, or that has a higher
//! priority.
//!
//! A waiter is certainly queued from the moment that it was seen in the queue ([`EventKind::Queued`]) until
//! its acquire ends. A grant happened after its invoke, and after each exclusive hold that ended before it
//! returned. A waiter with precedence that was queued all that time, and still is when the grant returns, was
//! overtaken. Between two that may share, and for waiters that left without a grant, the last moments in the
//! queue do not count: `settle`.

use std::collections::HashMap;
use std::time::Duration;

use super::{Found, Judgement, first, found, ms, who};
use crate::history::{Event, EventKind, ModeTag, Model, Op, OpOutcome, Span, spans};
use crate::nanos::nanos;
use crate::subject::Ask;

/// A waiter, or one that was granted without waiting.
struct Asker<'a> {
    name: &'a str,
    op_id: u64,
    lane: u32,
    mode: ModeTag,
    priority: u8,
    /// When it was seen queued.
    seen: Option<u64>,
    /// Its return, or the death of its lane.
    left: u64,
    granted: bool,
}

/// Checks every name. The history must be valid.
pub fn check(events: &[Event], model: &Model, settle: Duration) -> Judgement {
    let names = spans(events, model);
    let mut askers: HashMap<&str, Vec<Asker<'_>>> = HashMap::new();
    for asker in read(events) {
        askers.entry(asker.name).or_default().push(asker);
    }
    let settle = nanos(settle);
    first(names.iter().map(|(name, spans)| {
        let askers = askers.remove(name.as_str()).unwrap_or_default();
        (name.as_str(), overtaking(spans, &askers, settle))
    }))
}

/// How many pairs of a grant and a waiter were compared: the evidence for a pass.
pub fn compared(events: &[Event]) -> u64 {
    let askers = read(events);
    let pairs = askers.iter().filter(|a| a.seen.is_some()).map(|waiter| {
        let beside = |a: &&Asker<'_>| {
            a.granted && a.name == waiter.name && a.op_id != waiter.op_id && waiter.seen < Some(a.left)
        };
        askers.iter().filter(beside).count() as u64
    });
    pairs.sum()
}

fn read(events: &[Event]) -> Vec<Asker<'_>> {
    let mut askers: Vec<Asker<'_>> = Vec::new();
    let mut at: HashMap<u64, usize> = HashMap::new();
    for event in events {
        let asker = at.get(&event.op_id).map(|i| &mut askers[*i]);
        match (event.kind, event.op, asker) {
            (EventKind::Invoke, Some(Op::Acquire | Op::Try), _) => {
                at.insert(event.op_id, askers.len());
                askers.push(Asker {
                    name: &event.name,
                    op_id: event.op_id,
                    lane: event.lane,
                    mode: event.mode.unwrap_or(ModeTag::Exclusive),
                    priority: event.priority.unwrap_or(Ask::USUAL_PRIORITY),
                    seen: None,
                    left: u64::MAX,
                    granted: false,
                });
            }
            (EventKind::Queued, _, Some(asker)) => {
                asker.seen.get_or_insert(event.t_mono_ns);
            }
            (EventKind::Return, Some(Op::Acquire | Op::Try), Some(asker)) => {
                asker.left = asker.left.min(event.t_mono_ns);
                asker.granted = event.outcome == Some(OpOutcome::Ok);
            }
            // A waiter that is cut off or dead may be skipped.
            (EventKind::FaultBegin, ..) => {
                for asker in askers.iter_mut().filter(|a| a.lane == event.lane) {
                    asker.left = asker.left.min(event.t_mono_ns);
                }
            }
            _ => {}
        }
    }
    askers
}

fn overtaking(spans: &[Span], askers: &[Asker<'_>], settle: u64) -> Found {
    let by_op: HashMap<u64, &Asker<'_>> = askers.iter().map(|a| (a.op_id, a)).collect();
    for span in spans {
        let Some(asker) = by_op.get(&span.op_id) else {
            continue;
        };
        let (granted_from, granted_by) = (granted_after(span, spans), span.begin.1);
        let overtaken = askers.iter().find(|waiter| {
            let Some(seen) = waiter.seen.filter(|_| waiter.op_id != span.op_id) else {
                return false;
            };
            let comes_first = match waiter.priority.cmp(&asker.priority) {
                std::cmp::Ordering::Greater => true,
                // Among equals, the one that was seen queued before the other started.
                std::cmp::Ordering::Equal => seen < span.begin.0,
                std::cmp::Ordering::Less => false,
            };
            let until = match waiter.granted && !waiter.mode.shares_with(span.mode) {
                true => waiter.left,
                false => waiter.left.saturating_sub(settle),
            };
            comes_first && seen < granted_from && granted_by < until
        });
        if let Some(waiter) = overtaken {
            let (high, low) = (waiter.priority, asker.priority);
            let why = match high > low {
                true => format!("has the higher priority ({high} over {low})"),
                false => format!("was queued before the other started at {}", ms(span.begin.0)),
            };
            let fate = match (waiter.granted, waiter.left) {
                (true, left) => format!("was granted only by {}", ms(left)),
                (false, u64::MAX) => "waits to the end of the history".to_owned(),
                (false, left) => format!("left at {} without a grant", ms(left)),
            };
            let (holder, from, by) = (who(span.op_id, span.lane), ms(granted_from), ms(granted_by));
            let (other, since) = (who(waiter.op_id, waiter.lane), ms(waiter.seen.unwrap_or(0)));
            return found!(
                vec![waiter.op_id, span.op_id],
                "{holder} was granted between {from} and {by} although {other}, queued since {since}, {why}; \
                    it {fate}"
            );
        }
    }
    None
}

/// The earliest time at which that grant can have been made: an exclusive hold that ended before it returned
/// came before it, unless it would have been inside, which is another checker's matter.
fn granted_after(span: &Span, spans: &[Span]) -> u64 {
    spans
        .iter()
        .filter(|other| !other.mode.shares_with(span.mode))
        // Never the grant itself: what had ended before that returned did not begin with it.
        .filter(|other| other.begin.1 < other.end_from && other.end_from < span.begin.1)
        .map(|other| other.end_from)
        .fold(span.begin.0, u64::max)
}
