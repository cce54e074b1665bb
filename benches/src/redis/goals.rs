//! What the programs print at the end.
#![allow(clippy::print_stdout)] // it is a part of programs that print

use std::fmt;

use super::Table;

/// The table at the end, with the goal of each line.
#[derive(Debug)]
pub struct Goals(Table);

impl Default for Goals {
    fn default() -> Self {
        Self(Table::new(&["what", "figure", "beside it", "seen", "goal"]))
    }
}

impl Goals {
    /// What was measured, the figure, what it is measured against, the ratio or whatever the goal is about,
    /// and the goal.
    pub fn row(&mut self, what: &str, figure: String, beside: String, seen: String, goal: &str) {
        println!("{what}: {figure}; {beside}; {seen} (goal {goal})");
        self.0
            .row(vec![what.to_owned(), figure, beside, seen, goal.to_owned()]);
    }
}

impl fmt::Display for Goals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
