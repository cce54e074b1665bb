//! What a server has to do for session locks: seven requests on a connection.

use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{ErrorKind, Result, Strength};

use super::config::Config;
use super::failure::{Answer, Failed};
use super::keys::Key;
use super::restart::Grace;

/// Which server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MySql,
    #[cfg(feature = "mysql")]
    MariaDb,
}

/// Where a server is, and what the tokens come from there.
pub(super) struct Site {
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "there is one PostgreSQL"))]
    pub(super) product: Product,
    /// For messages; without a password.
    pub(super) at: String,
    /// Part of each key: two clients that exclude one another draw from one sequence.
    pub(super) space: String,
    /// The sequence or table, as it is quoted in statements.
    pub(super) quoted: String,
    pub(super) strength: Strength,
    pub(super) grace: Grace,
}

/// A kind of server, and how it is spoken to.
#[async_trait]
pub(super) trait Dialect: Send + Sync {
    /// Finds or makes what the tokens come from.
    async fn prepare(&self, config: &Config) -> Result<Site>;

    /// A session that ends when it was asked nothing for the ttl. Its idle time begins after this call began.
    async fn connect(&self, config: &Config, site: &Site) -> Answer<Session>;

    /// What an error of a session means.
    fn failed(&self, e: sqlx::Error, at: &str) -> Failed {
        Failed::of(e, at)
    }
}

/// A session that has begun.
pub(super) struct Session {
    pub(super) wire: Box<dyn Wire>,
    pub(super) backend: Backend,
    /// For how long from now on, at most, nothing is to be locked in it: see [`restart`](super::restart).
    pub(super) closed_for: Duration,
}

/// A number, and which session has answered it, where that is told.
pub(super) type Told = (Option<i64>, Option<i64>);

/// The connection of a session.
#[async_trait]
pub(super) trait Wire: Send {
    /// Sends a request and reads the answer. A future of it that is dropped leaves the connection useless.
    async fn ask(&mut self, request: Request<'_>) -> sqlx::Result<Told>;

    /// Completes when the idle connection is found to have ended, as far as the driver can see that. May be
    /// dropped at any poll.
    async fn broken(&mut self) -> sqlx::Error;

    async fn close(self: Box<Self>);
}

/// What a session is asked for.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    /// To take the lock if it is free, and draw a token behind it. The session must not hold it.
    Try(&'a Key),
    /// To wait for the lock for one turn, and draw a token behind it. After any other answer than a token the
    /// lock may be held all the same: [`Clean`](Self::Clean) it.
    Wait(&'a Key),
    /// To give the lock back. The answer is 1 if the session held it.
    Unlock(&'a Key),
    /// To give back whatever the session holds.
    Clean,
    /// For a sign of life.
    Ping,
    /// To end what another session waits for. When this is answered that one has been told, or had ended.
    Cancel(&'a Backend),
}

/// A session of the server, in its own terms.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Backend {
    /// The process or thread.
    pub(super) id: i64,
    /// Where numbers of processes come again: since when, as the server writes it.
    pub(super) since: String,
}

/// A pooler drops settings, or lets other sessions answer.
pub(super) fn pooled(at: &str) -> Failed {
    let message = format!(
        "{at} did not keep the settings of a session, or answered from another one: there is a pooler in \
         between that shares sessions, which breaks locks that hang on them. Connect to the server itself, \
         or use the lease strategy"
    );
    Failed::fatal(ErrorKind::Unsupported, message)
}

/// A name in that kind of quotes.
pub(super) fn quote(name: &str, mark: char) -> String {
    format!("{mark}{}{mark}", name.replace(mark, &mark.to_string().repeat(2)))
}
