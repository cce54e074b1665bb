//! What can be chosen, for both servers.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::link::Timing;
use super::lock::invalid;

/// What the names of what dlock makes in the database begin with unless another prefix is chosen.
pub const DEFAULT_PREFIX: &str = "dlock_";

/// How long a session lives unheard of unless something else is chosen.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How many connections may wait, unless something else is chosen.
pub const DEFAULT_MOST_WAITING: usize = 16;

/// The ttl is at most this: the system of the server gives up a connection whose other end is silent after a quarter of an hour (Linux), and with it goes the session, while
/// who is cut off believes in it for the ttl.
const LONGEST_TTL: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) ttl: Duration,
    pub(super) prefix: String,
    pub(super) most_waiting: usize,
    pub(super) timeout: Duration,
    /// The ttl unless something else is chosen.
    pub(super) restart_grace: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            prefix: DEFAULT_PREFIX.to_owned(),
            most_waiting: DEFAULT_MOST_WAITING,
            timeout: Duration::from_secs(5),
            restart_grace: None,
        }
    }
}

impl Settings {
    /// Checks what was chosen. The ttl is rounded up to what the server counts in.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub(super) fn check(mut self, shortest_ttl: Duration, granularity: Duration) -> Result<Self> {
        if self.ttl < shortest_ttl || self.ttl > LONGEST_TTL {
            return Err(invalid(format!(
                "a session ttl of {:?} is not between {shortest_ttl:?} and {LONGEST_TTL:?}",
                self.ttl
            )));
        }
        let over = self.ttl.as_nanos() % granularity.as_nanos();
        if over > 0 {
            let missing = u64::try_from(granularity.as_nanos() - over).unwrap_or(0);
            self.ttl += Duration::from_nanos(missing);
        }
        if self.restart_grace.is_some_and(|grace| grace > LONGEST_TTL) {
            return Err(invalid(format!(
                "a grace of {:?} after a restart is longer than any session lives, which is {LONGEST_TTL:?}",
                self.restart_grace
            )));
        }
        if self.timeout.is_zero() {
            return Err(invalid(
                "the time limit of a request must be longer than nothing".to_owned(),
            ));
        }
        let is_first = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_other = |c: char| is_first(c) || c.is_ascii_digit();
        // Lower case: what is folded by one server and not by another would be two sequences.
        let is_good = self.prefix.starts_with(is_first) && self.prefix.chars().all(is_other);
        if !is_good || self.prefix.len() > 40 {
            return Err(invalid(format!(
                "the prefix `{}` is not a lower-case letter or underscore, then such and digits, 40 in all",
                self.prefix.escape_default()
            )));
        }
        Ok(self)
    }

    /// For how long a server that has started grants nothing.
    pub(super) fn grace(&self) -> Duration {
        self.restart_grace.unwrap_or(self.ttl)
    }

    /// The sequence, or table, that the tokens come from.
    pub(super) fn sequence(&self) -> String {
        format!("{}session_token", self.prefix)
    }

    pub(super) fn timing(&self, turn: Duration, ping: Duration) -> Timing {
        Timing {
            ttl: self.ttl,
            turn,
            timeout: self.timeout,
            ping,
        }
    }
}

/// Runs that in a task of the given runtime, since the driver connects on the one that is current, and with a time limit.
///
/// # Errors
/// `Unavailable` if it takes longer; what it has done by then stays.
pub(super) async fn in_time<T: Send + 'static>(
    runtime: &Arc<dyn Runtime>,
    limit: Duration,
    what: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (mut send, receive) = oneshot::channel();
    let doing = async move {
        let done = {
            // Who is not waited for any more is not gone on with.
            match select(pin!(what), send.cancellation()).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => return,
            }
        };
        let _ = send.send(done);
    };
    runtime.spawn(doing.boxed());
    match select(receive, runtime.sleep(limit)).await {
        Either::Left((Ok(done), _)) => done,
        Either::Left((Err(oneshot::Canceled), _)) => Err(Error::new(
            ErrorKind::Unavailable,
            "the runtime that was given has been shut down",
        )),
        Either::Right(_) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("the database was not opened within {limit:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::ErrorKind;

    use super::*;

    #[test]
    fn what_was_chosen_is_checked_and_rounded_up() {
        let second = Duration::from_secs(1);
        let with = |ttl| Settings {
            ttl,
            ..Settings::default()
        };
        let ttl = with(Duration::from_millis(3100)).check(3 * second, second);
        assert_eq!(ttl.unwrap().ttl, 4 * second);
        let short = with(second).check(3 * second, second).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::InvalidInput);
        for prefix in ["", "1a", "a-b", "a\"b", "A"] {
            let settings = Settings {
                prefix: prefix.to_owned(),
                ..Settings::default()
            };
            assert!(settings.check(second, second).is_err(), "{prefix}");
        }
    }
}
