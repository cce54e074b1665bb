//! What the two servers have in common: seven questions on a connection.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{Error, ErrorKind, Result, Token};

use super::failure::{Answer, Failed};
use super::keys::Key;

/// Where connections come from.
#[async_trait]
pub(super) trait Server: Send + Sync + 'static {
    /// Makes a connection whose session ends after the ttl without a request. It has answered at least once,
    /// the last time to a request that was sent after this call began.
    ///
    /// `spread` is a random number, by which turns of waiting differ: those of many clients are not to end
    /// together, release after release.
    async fn connect(&self, spread: u8) -> Result<Box<dyn Wire>>;

    /// For messages; without a password.
    fn at(&self) -> &str;

    /// How often a connection that holds something is asked whether it is there. Where its end is seen at
    /// once, a third of the ttl.
    fn ping_every(&self, ttl: Duration) -> Duration;
}

/// A connection, which is one session of the server.
///
/// Each method but [`broken`](Self::broken) sends what it sends and reads the answer; a future of it that is
/// dropped leaves the connection useless. Whoever owns the connection lets it end, or ends the connection.
#[async_trait]
pub(super) trait Wire: Send {
    /// Which session it is.
    fn backend(&self) -> &Backend;

    /// For how long from now on, at most, nothing is to be locked in it: see [`restart`](super::restart).
    fn closed_for(&self) -> Duration;

    /// Takes the lock if it is free, and draws a token behind it. Never waits. The session must not hold it:
    /// it would be let in again.
    async fn try_lock(&mut self, key: &Key) -> Answer<Option<Token>>;

    /// Waits for the lock for one turn, which the connection was made with, and draws a token behind it.
    /// After any other answer than [`Waited::Locked`] the lock may be held all the same:
    /// [`clean`](Self::clean) it.
    async fn wait_lock(&mut self, key: &Key) -> Answer<Waited>;

    /// Gives the lock back. `false` if the session did not hold it.
    async fn unlock(&mut self, key: &Key) -> Answer<bool>;

    /// Gives back whatever the session holds.
    async fn clean(&mut self) -> Answer<()>;

    /// Asks for nothing.
    async fn ping(&mut self) -> Answer<()>;

    /// Ends what another session waits for, if it waits. When this has been answered that one has been told,
    /// or had ended.
    async fn cancel(&mut self, other: &Backend) -> Answer<()>;

    /// Completes when the idle connection is found to have ended, as far as the driver can see that. May be
    /// dropped at any poll.
    async fn broken(&mut self) -> Failed;

    /// Closes it.
    async fn end(self: Box<Self>);
}

/// The end of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Locked(Token),
    /// The turn is over, or it was cancelled.
    NotYet,
}

/// A session of the server, in its own terms.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Backend {
    /// The process or thread.
    pub(super) id: i64,
    /// Where numbers of processes come again: since when, as the server writes it.
    pub(super) since: String,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.id)
    }
}

impl Backend {
    /// Whether the answer is of the session that has been asked from the beginning. Of another one, what was
    /// held there is out of reach.
    pub(super) fn check(&self, at: &str, answered: i64) -> Answer<()> {
        if answered == self.id {
            return Ok(());
        }
        let message = format!(
            "{at} answered by session {answered} what session {} was asked: there is a pooler in between \
             that shares sessions, which breaks locks that hang on them. Connect to the server itself, or \
             use the lease strategy",
            self.id
        );
        Err(Failed::fatal(Error::new(ErrorKind::Unsupported, message)))
    }
}

/// What was drawn as a token; no token is negative or zero. The connection is of use yet where it is none.
pub(super) fn token(value: impl TryInto<u64>, at: &str) -> Answer<Token> {
    let token = value.try_into().ok().and_then(Token::new);
    token.ok_or_else(|| Failed {
        error: Error::new(
            ErrorKind::BackendData,
            format!("the tokens at {at} gave none; has something changed their sequence or table?"),
        ),
        fatal: false,
    })
}
