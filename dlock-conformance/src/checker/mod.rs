//! Judges histories with several checkers. Each finds what the others miss.
//!
//! [`interval`] is fast, explains itself in one sentence, and is incomplete; [`wgl`] decides whether any
//! order of the operations explains what the clients saw; [`belief`] checks what the holders believed.
//! [`reentrant`] treats the levels of one owner as one hold. [`queue`] checks the order of grants, [`watch`]
//! what watchers saw, and [`resource`] what a fenced resource accepted. [`lost_update`] counts lost updates.
//! A [`Check`] names the checkers of a history.

pub mod belief;
mod check;
pub mod interval;
pub mod lost_update;
pub mod queue;
pub mod reentrant;
pub mod resource;
pub mod shrink;
pub mod watch;
pub mod wgl;

use std::fmt;

pub use self::check::Check;
use crate::history::{Event, Model, spans, validate};

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
#[non_exhaustive]
pub struct Violation {
    /// Of which lock.
    pub name: String,
    /// In one sentence.
    pub explanation: String,
    /// The operations that it is about.
    pub operations: Vec<u64>,
    /// The smallest part of the history that is still illegal, or the part about those operations.
    pub minimal: Vec<Event>,
}

impl Violation {
    /// A violation of that lock, without its events yet.
    pub fn new(name: &str, explanation: String, operations: Vec<u64>) -> Self {
        Self {
            name: name.to_owned(),
            explanation,
            operations,
            minimal: Vec::new(),
        }
    }
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
    let full = wgl::check(&names, model, budget);
    agree(quick, full)
}

/// A history that the interval checker refuses has no legal order either. If the other checker says `Legal`,
/// one of the two is wrong.
fn agree(quick: Judgement, full: Judgement) -> Result<Judgement, String> {
    match (quick, full) {
        (Judgement::Illegal(v), Judgement::Legal) => Err(format!(
            "the checkers contradict each other: the interval checker says {v}, the linearizability checker \
                says that it is legal"
        )),
        // Its sentence is the better one.
        (quick @ Judgement::Illegal(_), _) => Ok(quick),
        (_, full) => Ok(full),
    }
}

/// What is wrong with a lock, and the operations that it is about.
type Found = Option<(String, Vec<u64>)>;

/// Says so of those operations.
macro_rules! found {
    ($operations:expr, $($said:tt)+) => {
        Some((format!($($said)+), $operations))
    };
}
use found;

/// Judges locks one after the other, and stops at the first violation.
fn first<'a>(locks: impl IntoIterator<Item = (&'a str, Found)>) -> Judgement {
    for (name, found) in locks {
        if let Some((explanation, operations)) = found {
            return Judgement::Illegal(Violation::new(name, explanation, operations));
        }
    }
    Judgement::Legal
}

/// An operation, as it is named to people.
fn who(op_id: u64, lane: u32) -> String {
    format!("operation {op_id} (lane {lane})")
}

/// A time of the history in milliseconds.
pub(crate) fn ms(nanos: u64) -> String {
    format!("{:.3} ms", nanos as f64 / 1e6)
}
