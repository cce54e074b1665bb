//! Promises that are a choice rather than a number: who goes first, and what a watcher is told.

use serde::Serialize;

/// Who goes first among the readers and writers that wait for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RwPolicy {
    /// They are served in line: a waiting writer holds back the readers behind it, and nobody starves.
    InLine,
    /// A waiting writer holds back every reader that comes after it. Readers may starve.
    WritersFirst,
    /// A reader comes in whenever readers hold. Writers may starve.
    ReadersFirst,
    /// Nothing is promised.
    Any,
}

impl RwPolicy {
    /// Whether a waiting writer gets its turn, however many readers come and go.
    pub fn serves_writers(self) -> bool {
        matches!(self, Self::InLine | Self::WritersFirst)
    }

    /// Whether a waiting reader gets its turn, however many writers come and go.
    pub fn serves_readers(self) -> bool {
        matches!(self, Self::InLine | Self::ReadersFirst)
    }
}

/// What becomes of changes that a watcher is not told one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Merging {
    /// Where changes are missing, a snapshot with `skipped: true` stands in their place.
    Marked,
    /// A store that looks now and then merges what lies between two looks, and does not say so.
    Silent,
}
