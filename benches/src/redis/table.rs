//! The table at the end.

use std::fmt;

/// Rows under headings, printed as Markdown.
#[derive(Debug)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With no row yet.
    pub fn new(heads: &[&str]) -> Self {
        Self {
            heads: heads.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// One more row.
    ///
    /// # Panics
    /// If it has not as many cells as there are headings.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heads.len(), "a cell for each heading");
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| {} |", self.heads.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.heads.len()))?;
        for row in &self.rows {
            writeln!(f, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}
