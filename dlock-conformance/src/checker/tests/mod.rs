//! Histories, good and bad, for every checker and model: written by hand in [`fixture`](crate::history::fixture), or generated and then
//! corrupted.

mod belief;
mod exclusion;
mod generated;
mod lost_update;
mod queue;
mod reentrant;
mod resource;
mod shrink;
mod watch;

use std::time::Duration;

use super::*;
use crate::claims::Skew;
use crate::history::Ends;

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
