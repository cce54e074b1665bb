//! Shrinks an illegal history to the smallest part that is still illegal: what a person has to read.
//!
//! It leaves out only events whose removal cannot make a legal history illegal, so that the rest is illegal
//! for the same kind of reason: the end of a history, another lock, a whole grant with everything done to it,
//! an acquire without a grant, a renewal, an observation of belief. It never leaves out a release or a drop
//! alone, since the hold would then go on.

use std::collections::BTreeSet;

use super::Violation;
use crate::history::{Event, EventKind, Op};

/// How often a history is judged again at most.
const LIMIT: usize = 600;

/// The smallest `n` of which the first `n` events are illegal. A prefix of a legal history is legal, so
/// halving finds it.
pub fn prefix(events: &[Event], illegal: &dyn Fn(&[Event]) -> bool) -> usize {
    let (mut legal, mut bad) = (0, events.len());
    while bad - legal > 1 {
        let middle = legal + (bad - legal) / 2;
        if illegal(&events[..middle]) {
            bad = middle;
        } else {
            legal = middle;
        }
    }
    bad
}

/// The smallest part that is still illegal, as far as 600 judgements find it.
pub fn minimal(events: &[Event], violation: &Violation, illegal: &dyn Fn(&[Event]) -> bool) -> Vec<Event> {
    let of_name = only(events, |e| e.name == violation.name);
    if !illegal(&of_name) {
        return about(events, violation);
    }
    let mut least = of_name[..prefix(&of_name, illegal)].to_vec();
    let mut left = LIMIT;
    let mut still = |candidate: &[Event]| {
        left = left.saturating_sub(1);
        left > 0 && illegal(candidate)
    };
    // Usually the checker has named exactly these operations.
    let named: BTreeSet<u64> = violation.operations.iter().copied().collect();
    let of_named = only(&least, |e| named.contains(&e.unit()));
    if still(&of_named) {
        least = of_named;
    }
    without_units(&mut least, &mut still);
    without_asides(&mut least, &mut still);
    least
}

/// For a history of which nothing can be left out safely: the events of the operations in the violation.
pub(super) fn about(events: &[Event], violation: &Violation) -> Vec<Event> {
    let is_named = |e: &Event| violation.operations.contains(&e.unit());
    only(events, |e| e.name == violation.name && is_named(e))
}

/// Those events, and all faults: without them a session could not have ended.
pub(crate) fn only(events: &[Event], kept: impl Fn(&Event) -> bool) -> Vec<Event> {
    events
        .iter()
        .filter(|e| e.is_fault() || kept(e))
        .cloned()
        .collect()
}

/// The same with all that overlaps them in time.
pub fn around(events: &[Event], violation: &Violation) -> Vec<Event> {
    let times = |op: u64| {
        let mut of = events.iter().filter(|e| e.unit() == op).map(|e| e.t_mono_ns);
        let from = of.next().unwrap_or(0);
        (from, of.next_back().unwrap_or(u64::MAX))
    };
    let named = violation.operations.iter().map(|op| times(*op));
    let window = named.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let (from, until) = window.unwrap_or((0, u64::MAX));
    only(events, |e| {
        let (begin, end) = times(e.unit());
        e.name == violation.name && begin <= until && from <= end
    })
}

/// Leaves out runs of whole grants, of half of them at first, of a single one at last.
fn without_units(least: &mut Vec<Event>, still: &mut dyn FnMut(&[Event]) -> bool) {
    let mut units: Vec<u64> = Vec::new();
    for event in least.iter().filter(|e| !e.is_fault()) {
        if !units.contains(&event.unit()) {
            units.push(event.unit());
        }
    }
    let mut size = units.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < units.len() {
            let out: BTreeSet<u64> = units[at..units.len().min(at + size)].iter().copied().collect();
            let rest = only(least, |e| !out.contains(&e.unit()));
            if still(&rest) {
                *least = rest;
                units.retain(|u| !out.contains(u));
            } else {
                at += size;
            }
        }
        size /= 2;
    }
}

/// Leaves out single renewals and observations of belief.
fn without_asides(least: &mut Vec<Event>, still: &mut dyn FnMut(&[Event]) -> bool) {
    // From the back: related events come after an event, so that the indexes before it stay.
    for at in (0..least.len()).rev() {
        let event = &least[at];
        let is_aside = event.kind == EventKind::GrantedBeliefUntil
            || (event.kind == EventKind::Invoke && event.op == Some(Op::Renew));
        if !is_aside {
            continue;
        }
        let (op, kind) = (event.op_id, event.kind);
        let mut rest = least.clone();
        rest.remove(at);
        if kind == EventKind::Invoke {
            rest.retain(|e| e.op_id != op);
        }
        if still(&rest) {
            *least = rest;
        }
    }
}
