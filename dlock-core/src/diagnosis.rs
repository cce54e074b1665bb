//! Whether a store and its settings suit locks.

use std::fmt;
use std::time::{Duration, SystemTime};

/// Clocks that differ by less than this are called the same.
const SAME_CLOCK: Duration = Duration::from_millis(500);

/// One result of [`Client::diagnose`](crate::Client::diagnose), in words for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The subject, in one word: `server`, `persistence`, `replication`, `clock`.
    pub about: &'static str,
    /// Whether something has to be done.
    pub severity: Severity,
    /// What was found, what follows from it, and what to do. Contains no secret.
    pub text: String,
}

/// Whether something has to be done about a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Everything is as it should be.
    Good,
    /// Locks work, but some crash, failover or pause costs more than it has to.
    Warning,
    /// Locks do not work, or are not safe.
    Problem,
}

impl Finding {
    /// Creates a finding of [`Severity::Good`].
    pub fn good(about: &'static str, text: impl Into<String>) -> Self {
        Self::new(about, Severity::Good, text)
    }

    /// Creates a finding of [`Severity::Warning`].
    pub fn warning(about: &'static str, text: impl Into<String>) -> Self {
        Self::new(about, Severity::Warning, text)
    }

    /// Creates a finding of [`Severity::Problem`].
    pub fn problem(about: &'static str, text: impl Into<String>) -> Self {
        Self::new(about, Severity::Problem, text)
    }

    fn new(about: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            about,
            severity,
            text,
        }
    }

    /// Compares a server's clock with this machine's. `server` was read between `asked` and `answered`.
    pub fn clock(server: SystemTime, asked: SystemTime, answered: SystemTime) -> Self {
        let since = |a: SystemTime, b: SystemTime| a.duration_since(b).unwrap_or_default();
        let (ahead, behind) = (since(server, answered), since(asked, server));
        let (by, where_it_is) = match ahead > behind {
            true => (ahead, "ahead of"),
            false => (behind, "behind"),
        };
        if by < SAME_CLOCK {
            return Self::good("clock", "the server's clock agrees with this machine's");
        }
        let text = "Times in logs cannot be compared. If the server's clock is wrong, correct it \
            gradually: setting it forward ends leases early";
        Self::warning(
            "clock",
            format!("the server's clock is {by:.1?} {where_it_is} this machine's. {text}"),
        )
    }

    /// Adds the name of the server, for stores of several servers.
    pub fn of(mut self, server: impl fmt::Display) -> Self {
        self.text = format!("{server}: {}", self.text);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_difference_excludes_the_round_trip() {
        let at = |ms: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let clock = |server| Finding::clock(at(server), at(10_000), at(12_000));
        for same in [9_600, 10_000, 11_000, 12_000, 12_400] {
            assert_eq!(clock(same).severity, Severity::Good, "{same}");
        }
        assert!(clock(8_500).text.contains("1.5s behind"), "{:?}", clock(8_500));
        assert!(
            clock(15_000).text.contains("3.0s ahead of"),
            "{:?}",
            clock(15_000)
        );
        assert_eq!(clock(15_000).severity, Severity::Warning);
    }
}
