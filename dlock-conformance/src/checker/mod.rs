//! Judges histories: three detectors, of which each sees what the others miss.
//!
//! [`interval`] is fast, explains itself in one sentence, and is incomplete; [`wgl`] decides whether any order of the operations
//! explains what the clients saw; [`belief`] looks at what the holders thought. [`lost_update`] gives a number for people.

pub mod belief;
pub mod interval;
pub mod lost_update;
pub mod wgl;

use std::fmt;

use crate::history::{Event, EventKind, Model, spans, validate};

/// What a checker concludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing is wrong with it.
    Legal,
    /// Exclusion, or the order of tokens, is broken.
    Illegal(Violation),
    /// The budget was used up before it was known.
    Unknown(String),
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Of which lock.
    pub name: String,
    /// In one sentence.
    pub explanation: String,
    /// The operations that it is about.
    pub operations: Vec<u64>,
    /// The history is illegal already if it is cut off after this time.
    pub by: Option<u64>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.name, self.explanation)
    }
}

/// Runs the interval checker and the linearizability checker.
///
/// # Errors
/// If the kit is at fault: it is no history, or the checkers contradict each other.
pub fn judge(events: &[Event], model: &Model, budget: u64) -> Result<Judgement, String> {
    validate(events).map_err(|e| e.to_string())?;
    let names = spans(events, model);
    let quick = interval::check(&names, model);
    let full = wgl::check(events, &names, model, budget);
    agree(quick, full)
}

/// What the interval checker refuses has no legal order either; a `Legal` of the other checker shows that one of them is wrong.
fn agree(quick: Judgement, full: Judgement) -> Result<Judgement, String> {
    match (quick, full) {
        (Judgement::Illegal(v), Judgement::Legal) => Err(format!(
            "the checkers contradict each other: the interval checker says {v}, the linearizability checker says that it is legal"
        )),
        // The sentence of the one, the smallest prefix of the other.
        (Judgement::Illegal(mut quick), Judgement::Illegal(full)) => {
            quick.by = full.by;
            Ok(Judgement::Illegal(quick))
        }
        (quick @ Judgement::Illegal(_), Judgement::Unknown(_)) => Ok(quick),
        (_, full) => Ok(full),
    }
}

/// The events of the operations that a violation is about, and no more than forty of them.
pub fn excerpt(events: &[Event], violation: &Violation) -> String {
    const LINES: usize = 40;
    let start = events.first().map_or(0, |e| e.t_mono_ns);
    let about: Vec<&Event> = events
        .iter()
        .filter(|e| {
            violation.operations.contains(&e.op_id)
                || e.of.is_some_and(|of| violation.operations.contains(&of))
                || matches!(e.kind, EventKind::FaultBegin | EventKind::FaultEnd)
        })
        .collect();
    let mut text = String::new();
    for event in about.iter().take(LINES) {
        let op = event.op.map_or_else(String::new, |op| format!(" {op:?}"));
        let of = event.of.map_or_else(String::new, |of| format!(" of {of}"));
        let token = event.token.map_or_else(String::new, |t| format!(" token {t}"));
        let outcome = event.outcome.map_or_else(String::new, |o| format!(" -> {o:?}"));
        let line = format!(
            "  +{:>12}  lane {:<4} op {:<5} {:?}{op}{of}{token}{outcome}\n",
            ms(event.t_mono_ns - start),
            event.lane,
            event.op_id,
            event.kind,
        );
        text.push_str(&line);
    }
    if about.len() > LINES {
        text.push_str(&format!("  ... and {} more\n", about.len() - LINES));
    }
    text
}

/// A time of the history in milliseconds.
fn ms(nanos: u64) -> String {
    format!("{:.3} ms", nanos as f64 / 1e6)
}

#[cfg(test)]
mod tests;
