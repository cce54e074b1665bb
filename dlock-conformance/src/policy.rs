//! Promises that are a choice instead of a number: who goes first, and what a watcher sees.

use serde::Serialize;

/// Which of the waiting readers and writers of a name go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RwPolicy {
    /// They are granted in the order of the queue: a waiting writer blocks the readers behind it, and no
    /// waiter starves.
    InLine,
    /// A waiting writer blocks every later reader. Readers may starve.
    WritersFirst,
    /// A reader is admitted whenever readers hold. Writers may starve.
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

/// How a watcher learns of changes that are not reported one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Merging {
    /// A snapshot with `skipped: true` replaces missing changes.
    Marked,
    /// A store that polls merges the changes between two polls without a sign.
    Silent,
}
