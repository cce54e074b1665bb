//! Histories in files: a head with the origin and the checks, then one event per line.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use super::event::Event;
use super::spans::Model;
use crate::checker::Check;

/// The format version of the files. Another one is refused instead of misread.
const FORMAT: &str = "dlock-history-1";

/// A judgement that a rule asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// How the history is read.
    pub model: Model,
    /// By what it is judged.
    pub check: Check,
}

/// The first line of a stored history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Head {
    format: String,
    /// The version of the kit that wrote it.
    pub kit: String,
    /// The number of the rule.
    pub rule: String,
    /// The product under test.
    pub product: String,
    /// Its backend and its runtime, as in the name of the reports.
    pub target: String,
    /// The seed of the attempt.
    pub seed: u64,
    /// The outcome of the attempt.
    pub outcome: String,
    /// The checks to judge it by.
    pub asked: Vec<Asked>,
}

impl Head {
    pub(crate) fn new(rule: &str, product: &str, target: &str, seed: u64, outcome: String) -> Self {
        Self {
            format: FORMAT.to_owned(),
            kit: env!("CARGO_PKG_VERSION").to_owned(),
            rule: rule.to_owned(),
            product: product.to_owned(),
            target: target.to_owned(),
            seed,
            outcome,
            asked: Vec::new(),
        }
    }
}

/// Writes a history with its head.
///
/// # Errors
/// Those of the writer.
pub fn store(head: &Head, events: &[Event], mut out: impl Write) -> io::Result<()> {
    writeln!(out, "{}", serde_json::to_string(head)?)?;
    for event in events {
        writeln!(out, "{}", serde_json::to_string(event)?)?;
    }
    Ok(())
}

/// Reads what [`store`] wrote.
///
/// # Errors
/// Those of the reader; a file without a head, or a line that is no event, with its number.
pub fn load(lines: impl BufRead) -> io::Result<(Head, Vec<Event>)> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut lines = lines.lines();
    let first = lines.next().ok_or_else(|| invalid("it is empty".to_owned()))??;
    let head: Head = serde_json::from_str(&first)
        .map_err(|e| invalid(format!("its first line is not the head of a stored history: {e}")))?;
    let format = &head.format;
    if format != FORMAT {
        return Err(invalid(format!(
            "its format is {format}, and this kit reads {FORMAT}"
        )));
    }
    let mut events = Vec::new();
    for (line, n) in lines.zip(2..) {
        let event = serde_json::from_str(&line?);
        events.push(event.map_err(|e| invalid(format!("line {n} is no event: {e}")))?);
    }
    Ok((head, events))
}
