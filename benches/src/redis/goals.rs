//! What the programs print at the end.
#![allow(clippy::print_stdout)] // it is a part of programs that print

use std::fmt;

use super::Table;
use crate::figures::Points;

/// The table at the end, with the goal of each line.
#[derive(Debug)]
pub struct Goals {
    table: Table,
    /// Of the same figures.
    pub points: Points,
}

impl Default for Goals {
    fn default() -> Self {
        Self {
            table: Table::new(&["what", "figure", "beside it", "seen", "goal"]),
            points: Points::default(),
        }
    }
}

impl Goals {
    /// What was measured, the figure, what it is measured against, the ratio or whatever the goal is about,
    /// and the goal.
    pub fn row(&mut self, what: &str, figure: String, beside: String, seen: String, goal: &str) {
        println!("{what}: {figure}; {beside}; {seen} (goal {goal})");
        self.table
            .row(vec![what.to_owned(), figure, beside, seen, goal.to_owned()]);
    }

    /// Prints the table below what was measured, and leaves both to the page.
    pub fn end(&self, program: &str, measured: &str) {
        let text = format!("{measured}\n\n{self}");
        println!("{text}");
        self.points.keep(program, &text);
    }
}

impl fmt::Display for Goals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table.fmt(f)
    }
}
