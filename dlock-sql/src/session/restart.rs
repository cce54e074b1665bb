//! What a server that has just started does not know: who held what before.
//!
//! Its locks are in its memory. A client that was cut off or stood still when it went down believes in its
//! locks until their deadline, and so does one whose driver does not read while nothing is asked (MySQL), for
//! up to a second. The server, back in no time, would give them to the next one who asks. So for a *grace*,
//! counted from the start of the server, nobody here asks: a name is taken to be held. The grace is the ttl
//! of sessions. What was believed in when the server ended counts from a request that it had answered before,
//! and is over when the grace is.
//!
//! A server on which the sequence of the tokens was made *in this run* has nobody of before: what made the
//! sequence has noted the run in its comment, and then there is no grace. So what is new is not waited for.
//!
//! What could break it, and why it does not:
//!
//! * *A server that starts again without its process having ended*: PostgreSQL, when one of its processes has
//!   crashed, say for want of memory. It forgets its statistics then; so a run begins when they do, if that
//!   is later. One kind of them can be reset by hand, so two are looked at.
//! * *Two runs of one name*: MySQL and MariaDB tell their start in whole seconds, and are back from a crash
//!   in less. Nothing is made in the second in which a run began.
//! * *The clock of the server is set* between its start and the connection. MySQL and PostgreSQL count their
//!   age by it: set forward, the grace is shorter. So is a session of PostgreSQL: see the head of the
//!   [module](super).
//! * *The connection was made long ago.* It ends with the run, so its server has not been restarted since it
//!   was greeted.
//! * *The age is old when it arrives.* It is taken to be that of the arrival, so the grace ends late, never
//!   early.
//! * *A primary that takes over*, which has been running for long and has never known anything. Nothing here
//!   helps, and the docs say so.

use std::time::Duration;

/// How the grace of a server is found.
#[derive(Clone, Debug)]
pub(super) struct Grace {
    pub(super) lasts: Duration,
    /// In which run the sequence of the tokens was made, if that is known.
    pub(super) made_in: Option<String>,
}

impl Grace {
    /// What is left of it for a server whose run is called that, and is so old.
    pub(super) fn left(&self, run: &str, age: Duration) -> Duration {
        match self.made_in.as_deref() == Some(run) {
            true => Duration::ZERO,
            false => self.lasts.saturating_sub(age),
        }
    }
}

/// The comment of a sequence or table that is made in the run of that name, which is letters, digits, dots
/// and signs.
pub(super) fn comment(run: &str) -> String {
    let run: String = run
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || ".+-".contains(*c))
        .collect();
    format!("{PREAMBLE}{run}")
}

/// The run in which something was made, by its comment.
pub(super) fn made_in(comment: &str) -> Option<String> {
    comment.strip_prefix(PREAMBLE).map(str::to_owned)
}

const PREAMBLE: &str = "tokens of dlock sessions; made in the run of the server that began at ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_in_this_run_has_no_grace() {
        let lasts = Duration::from_secs(30);
        let grace = |made_in: Option<&str>| Grace {
            lasts,
            made_in: made_in.map(str::to_owned),
        };
        let age = Duration::from_secs(10);
        assert_eq!(grace(Some("7.5")).left("7.5", age), Duration::ZERO);
        assert_eq!(grace(Some("7.4")).left("7.5", age), lasts - age);
        assert_eq!(grace(None).left("7.5", age), lasts - age);
        assert_eq!(grace(None).left("7.5", 4 * age), Duration::ZERO);
    }

    #[test]
    fn a_comment_is_read_as_it_was_written() {
        assert_eq!(made_in(&comment("7.5")).as_deref(), Some("7.5"));
        assert_eq!(made_in("somebody's own"), None);
        assert!(!comment("7'5").contains('\''));
    }
}
