//! The checkers of a history, as a rule requests them and as the head of a stored history records them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::watch::Coalescing;
use super::{Judgement, Violation, belief, judge, queue, reentrant, resource, shrink, watch};
use crate::history::{Event, Model, spans, validate};

/// A check of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Check {
    /// Exclusion and the order of tokens: the interval checker, the linearizability checker, and what the
    /// holders believed.
    Exclusion,
    /// The same, where acquires of one owner are levels of one hold, as many as that at most.
    Reentrant {
        /// How many levels are allowed.
        depth: u32,
    },
    /// Grants in the order of the queue.
    Queue {
        /// How long the last moments in the queue do not count.
        settle: Duration,
    },
    /// Watchers see every change.
    Watch {
        /// What may be left out.
        coalescing: Coalescing,
        /// How late a change may be reported.
        settle: Duration,
    },
    /// A fenced resource refuses what is stale, and nothing else.
    Resource,
}

impl Check {
    /// Judges a history. An illegal one is shrunk as far as possible.
    ///
    /// # Errors
    /// If the kit is at fault: the history is malformed, or the checkers contradict each other.
    pub fn judge(&self, events: &[Event], model: &Model, budget: u64) -> Result<Judgement, String> {
        validate(events).map_err(|e| e.to_string())?;
        let mut judgement = self.once(events, model, budget)?;
        if let Judgement::Illegal(violation) = &mut judgement {
            violation.minimal = self.least(events, violation, model, budget);
        }
        Ok(judgement)
    }

    fn once(&self, events: &[Event], model: &Model, budget: u64) -> Result<Judgement, String> {
        match self {
            Self::Exclusion => match judge(events, model, budget)? {
                Judgement::Legal => Ok(belief::check(events, model.skew)),
                other => Ok(other),
            },
            Self::Reentrant { depth } => reentrant::check(&spans(events, model), model, *depth, budget),
            Self::Queue { settle } => Ok(queue::check(events, model, *settle)),
            Self::Watch { coalescing, settle } => Ok(watch::check(events, model, *coalescing, *settle)),
            Self::Resource => Ok(resource::check(events)),
        }
    }

    fn least(&self, events: &[Event], violation: &Violation, model: &Model, budget: u64) -> Vec<Event> {
        match self {
            // A part of the whole budget each: there are many of them.
            Self::Exclusion | Self::Reentrant { .. } | Self::Queue { .. } => {
                shrink::minimal(events, violation, &|part| {
                    matches!(self.once(part, model, budget / 20), Ok(Judgement::Illegal(_)))
                })
            }
            // If a grant is left out, its change in a watch becomes a phantom. If a write is left out, a
            // refusal has no reason.
            Self::Watch { .. } => shrink::about(events, violation),
            Self::Resource => shrink::around(events, violation),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusion => f.write_str("exclusion, tokens and belief"),
            Self::Reentrant { depth } => write!(f, "re-entrant exclusion to a depth of {depth}"),
            Self::Queue { .. } => f.write_str("the order of the queue"),
            Self::Watch { .. } => f.write_str("what watchers saw"),
            Self::Resource => f.write_str("what a fenced resource accepted"),
        }
    }
}
