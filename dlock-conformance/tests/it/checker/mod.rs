//! Histories, good and bad, for every checker and model: written by hand in [`fixture`](crate::fixture), or
//! generated and then corrupted.

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

use dlock_conformance::checker::{self, Check, Judgement, Violation, interval, judge, wgl};
use dlock_conformance::history::{Ends, Event, EventKind, Model, Op, spans, validate};

use crate::fixture::{LEASE, history, in_millis};

fn model(ends: Ends) -> Model {
    Model { ends, ..LEASE }
}

fn is_illegal(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Illegal(_))
}

/// What is said of it, and the operations that are named; those of a hand-written history are its lines.
fn explained(judgement: &Judgement) -> (String, Vec<u64>) {
    match judgement {
        Judgement::Illegal(violation) => (violation.to_string(), violation.operations.clone()),
        other => (format!("{other:?}"), Vec::new()),
    }
}

fn operations(judgement: &Judgement) -> Vec<u64> {
    explained(judgement).1
}

/// The judgement of a check of leases on a history that must be one.
fn judged(check: &Check, events: &[Event]) -> Judgement {
    check.judge(events, &LEASE, wgl::BUDGET).expect("it is a history")
}
