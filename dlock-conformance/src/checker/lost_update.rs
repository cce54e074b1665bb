//! Counts lost updates.

use std::collections::BTreeSet;

/// What happened to the elements that clients added to an unsynchronised set under the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostUpdates {
    /// How many additions were acknowledged.
    pub expected: usize,
    /// The acknowledged ones that are not there.
    pub lost: BTreeSet<u64>,
    /// What is there and was never added.
    pub invented: BTreeSet<u64>,
}

impl LostUpdates {
    /// Compares what was acknowledged with what is there.
    pub fn count(acknowledged: impl IntoIterator<Item = u64>, found: impl IntoIterator<Item = u64>) -> Self {
        let acknowledged: BTreeSet<u64> = acknowledged.into_iter().collect();
        let found: BTreeSet<u64> = found.into_iter().collect();
        Self {
            expected: acknowledged.len(),
            lost: &acknowledged - &found,
            invented: &found - &acknowledged,
        }
    }

    /// Whether everything is there and nothing else.
    pub fn is_none(&self) -> bool {
        self.lost.is_empty() && self.invented.is_empty()
    }

    /// How many of 100 were lost.
    pub fn percentage(&self) -> f64 {
        if self.expected == 0 {
            return 0.0;
        }
        self.lost.len() as f64 * 100.0 / self.expected as f64
    }
}
