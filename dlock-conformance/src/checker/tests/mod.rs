//! Histories, good and bad, for every checker and model: written by hand in
//! [`fixture`](crate::history::fixture), or generated and then corrupted.

mod belief;
mod exclusion;
mod generated;
mod lost_update;
mod queue;
mod reentrant;
mod resource;
mod search;
mod shrink;
mod sure_holds;
mod watch;
mod words;

use std::time::Duration;

use super::*;
use crate::claims::Skew;
use crate::history::Ends;
use crate::history::fixture::history;

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

fn is_illegal(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Illegal(_))
}

fn operations(judgement: &Judgement) -> Vec<u64> {
    match judgement {
        Judgement::Illegal(violation) => violation.operations.clone(),
        _ => Vec::new(),
    }
}

/// A history of which the times are milliseconds, in which explanations speak.
fn in_millis(text: &str) -> Vec<Event> {
    let mut events = history(text);
    for event in &mut events {
        event.t_mono_ns *= 1_000_000;
        event.ttl_ns = event.ttl_ns.map(|ttl| ttl * 1_000_000);
    }
    events
}

/// What is said of it, and the operations that are named; those of a hand-written history are its lines.
fn explained(judgement: &Judgement) -> (String, Vec<u64>) {
    match judgement {
        Judgement::Illegal(violation) => (violation.to_string(), violation.operations.clone()),
        other => (format!("{other:?}"), Vec::new()),
    }
}
