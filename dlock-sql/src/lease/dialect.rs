//! What a database server has of its own: how it is connected to, how a statement is sent, what its errors
//! mean.

use std::time::Duration;

use dlock_core::Error;
use futures::future::BoxFuture;

/// A kind of server, with what one client knows of it.
pub(in crate::lease) trait Dialect: Send + Sync + Sized + 'static {
    type Connection: sqlx::Connection + 'static;
    /// A statement with its values.
    type Statement: Send + 'static;
    type Answer: Send + 'static;

    /// For messages.
    const NAME: &'static str;

    /// How long a name counts as contended after others were seen there. Nought where the full request is a
    /// transaction: then what was seen last decides.
    const CONTENDED: Duration;

    /// A connection that stood idle for so long is pinged before it is used. `None`: never.
    const PING_AFTER: Option<Duration>;

    /// What the server refused may have been part of a transaction, which is open yet.
    const REFUSAL_LEAVES_TRANSACTION: bool;

    /// Connects, and has the statements prepared that the fast path needs: whoever renews over a slow network
    /// has the time for one round trip, and not for two. It runs in a task of the runtime.
    fn connect(&self) -> BoxFuture<'static, Result<Self::Connection, sqlx::Error>>;

    /// Sends a statement and takes in all of its answer.
    fn run(
        statement: Self::Statement,
        connection: &mut Self::Connection,
    ) -> BoxFuture<'_, Result<Self::Answer, sqlx::Error>>;

    /// Makes a connection usable on which a request was dropped: its answer is read, its transaction rolled
    /// back.
    fn reset(connection: &mut Self::Connection) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// Nothing more can be asked on that connection.
    fn is_fatal(e: &sqlx::Error) -> bool;

    /// The statement was lost with its connection. Where that had stood idle, it is no news of the store.
    fn is_lost(e: &sqlx::Error) -> bool;

    /// The typed error for what has changed nothing: it was refused, it only read, or it was never sent.
    fn nothing_done(e: sqlx::Error, at: &str) -> Error;

    /// The typed error for a statement that was sent and commits by itself, or for a commit.
    fn perhaps_done(e: sqlx::Error, at: &str) -> Error;

    /// The backend is being closed.
    fn closing(&self) {}
}
