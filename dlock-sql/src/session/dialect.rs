//! What a server has to do for session locks: seven requests on a connection.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{ErrorKind, Result, Strength};

use super::failure::{Answer, Failed};
use super::keys::Key;
use super::restart::Grace;

/// What a kind of server takes.
pub(super) struct Limits {
    /// What the backend is called.
    pub(super) name: &'static str,
    pub(super) shortest_ttl: Duration,
    /// What the server counts a ttl and a turn in.
    pub(super) granularity: Duration,
    /// The longest pause between two pings of a session that holds something. A third of the ttl is enough
    /// where the end of a session is seen at once.
    pub(super) ping: Duration,
    /// How much of a key it takes.
    pub(super) key_bytes: usize,
}

/// What a server is opened with.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) timing: Timing,
    pub(super) schema: Option<String>,
    /// The sequence or table that the tokens come from.
    pub(super) sequence: String,
    /// For how long a server that has started grants nothing.
    pub(super) grace: Duration,
}

/// How long things take, for all connections of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// After which the server ends a session that it hears nothing of.
    pub(super) ttl: Duration,
    /// How long a wait is sent for.
    pub(super) turn: Duration,
    /// How long an answer is waited for, where no lock depends on it.
    pub(super) timeout: Duration,
    /// How often a session is asked that holds something.
    pub(super) ping: Duration,
}

/// A server with its sequence or table of tokens.
pub(super) struct Opened {
    pub(super) server: Arc<dyn Server>,
    pub(super) tokens: Tokens,
}

/// What the tokens come from.
pub(super) struct Tokens {
    /// Part of each key: two clients that exclude one another draw from one sequence.
    pub(super) space: String,
    /// The sequence or table, as it is quoted in statements.
    pub(super) quoted: String,
    pub(super) strength: Strength,
    pub(super) grace: Grace,
}

/// Where connections come from.
#[async_trait]
pub(super) trait Server: Send + Sync + 'static {
    /// Makes a connection whose session ends after the ttl without a request. It has answered at least once,
    /// the last time to a request that was sent after this call began.
    ///
    /// `spread` is a random number by which turns of waiting differ: those of many clients are not to end
    /// together, release after release.
    async fn connect(&self, spread: u8) -> Result<Box<dyn Wire>>;

    /// For messages; without a password.
    fn at(&self) -> &str;
}

/// A connection, which is one session of the server.
#[async_trait]
pub(super) trait Wire: Send {
    fn backend(&self) -> &Backend;

    /// For how long from now on, at most, nothing is to be locked in it: see [`restart`](super::restart).
    fn closed_for(&self) -> Duration;

    /// Sends a request and reads the answer. A future of it that is dropped leaves the connection useless.
    async fn ask(&mut self, request: Request<'_>) -> Answer<Option<u64>>;

    /// Completes when the idle connection is found to have ended, as far as the driver can see that. May be
    /// dropped at any poll.
    async fn broken(&mut self) -> Failed;

    /// Closes it.
    async fn close(self: Box<Self>);
}

/// What a session is asked for.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    /// To take the lock if it is free, and draw a token behind it. Never waits. The session must not hold it:
    /// it would be let in again.
    Try(&'a Key),
    /// To wait for the lock for one turn, which the connection was made with, and draw a token behind it.
    /// After any other answer than a token the lock may be held all the same: [`Clean`](Self::Clean) it.
    Wait(&'a Key),
    /// To give the lock back. The answer is some number if the session held it.
    Unlock(&'a Key),
    /// To give back whatever the session holds.
    Clean,
    /// For a sign of life.
    Ping,
    /// To end what another session waits for. When this is answered that one has been told, or had ended.
    Cancel(&'a Backend),
}

/// A session of the server, in its own terms.
#[derive(Clone)]
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
    /// Whether the answer is of the session that has been asked from the beginning. What was held in that one
    /// is out of reach otherwise.
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
        Err(Failed::fatal(ErrorKind::Unsupported, message))
    }
}

/// The settings of a session did not arrive.
pub(super) fn deaf(at: &str) -> Failed {
    let message = format!(
        "the session at {at} did not take the settings that it was given: there is a pooler in between that \
         shares sessions. Connect to the server itself, or use the lease strategy"
    );
    Failed::fatal(ErrorKind::Unsupported, message)
}

/// The address of a server, for messages.
pub(super) fn shown(socket: Option<impl AsRef<Path>>, host: &str, port: u16, database: &str) -> String {
    match socket {
        Some(socket) => format!("{}/{database}", socket.as_ref().display()),
        None => format!("{host}:{port}/{database}"),
    }
}
