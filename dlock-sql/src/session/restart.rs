//! The grace after a restart: a server that has just started does not know the earlier holders.
//!
//! Its locks are in its memory. A client that was cut off or paused when the server went down believes in its
//! locks until their deadline, and one whose driver does not read without a request (MySQL) for up to a
//! second. So for a *grace* after the start of the server no request is sent: every name counts as held. The
//! grace is the session ttl: a deadline at the end of the server counts from a request that it had answered
//! before. If the sequence of the tokens was created *in this run*, as its comment says, there are no earlier
//! clients, and no grace.
//!
//! What could break it, and why it does not:
//!
//! * *A server starts again without its process having ended*: PostgreSQL, when one of its processes has
//!   crashed. A run begins when its statistics do, if that is later.
//! * *Two runs of one name*: MySQL and MariaDB tell their start in whole seconds, and are back from a crash
//!   in less. Nothing is made in the second in which a run began.
//! * *The connection was made long ago.* It ends with the run, so its server has not been restarted since.
//! * *The age is old when it arrives.* It counts from the arrival, so the grace ends late, never early.
//!
//! It is shorter where the clock of the server was set forward meanwhile, and no defence against a primary
//! that takes over, which has been running for long and has never known anything. The [docs](super) say so.

use std::time::Duration;

/// How the grace of a server is found.
#[derive(Clone, Debug)]
pub(super) struct Grace {
    pub(super) lasts: Duration,
    /// In which run the sequence of the tokens was made, if that is known.
    pub(super) made_in: Option<String>,
}

impl Grace {
    /// With what the comment of the sequence or table says, if there is one.
    pub(super) fn new(lasts: Duration, comment: Option<&str>) -> Self {
        let made_in = comment.and_then(|comment| comment.strip_prefix(PREAMBLE));
        Self {
            lasts,
            made_in: made_in.map(str::to_owned),
        }
    }

    /// What is left of it, for a server whose run has that name and that age.
    pub(super) fn left(&self, run: &str, age: Duration) -> Duration {
        match self.made_in.as_deref() == Some(run) {
            true => Duration::ZERO,
            false => self.lasts.saturating_sub(age),
        }
    }
}

/// The comment of a sequence or table that is made in that run. Fit for quotes.
pub(super) fn comment(run: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || ".+-".contains(*c);
    PREAMBLE.chars().chain(run.chars().filter(is_plain)).collect()
}

const PREAMBLE: &str = "tokens of dlock sessions; made in the run of the server that began at ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_in_this_run_has_no_grace() {
        let (lasts, age) = (Duration::from_secs(30), Duration::from_secs(10));
        let left = |comment: Option<&str>, age| Grace::new(lasts, comment).left("7.5", age);
        assert_eq!(left(Some(&comment("7.5")), age), Duration::ZERO);
        for other in [Some(&*comment("7.4")), Some("somebody's own"), None] {
            assert_eq!(left(other, age), lasts - age);
        }
        assert_eq!(left(None, 4 * age), Duration::ZERO);
        assert!(!comment("7'5").contains('\''));
    }
}
