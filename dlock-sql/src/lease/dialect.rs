//! What a database server has of its own. All else of a lease is written once, for
//! [`Lease`](super::lock::Lease).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, LeaseKey, Raised, RenewItem, RenewOutcome, Signal,
};
use dlock_core::{
    Access, Admission, Change, ErrorKind, FencedValue, Inspection, LockName, Mode, Result, Token,
};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::connection::Database;
use super::wait::Look;

type Db<D> = Arc<Database<D>>;

/// The outcomes of items, by their numbers.
pub(in crate::lease) type Outcomes = Vec<(usize, Result<RenewOutcome>)>;

/// A kind of server, with what one client knows of it. Requests come checked, and times in whole
/// milliseconds.
pub(in crate::lease) trait Dialect: Send + Sync + Sized + 'static {
    type Connection: sqlx::Connection + 'static;
    /// A statement with its values.
    type Statement: Send + 'static;
    type Answer: Send + 'static;
    /// Of one watch.
    type Watcher: Watcher;

    /// For messages.
    const NAME: &'static str;
    /// The name of the backend.
    const BACKEND: &'static str;

    /// How long a name counts as contended after others were seen there. Nought where the full request is a
    /// transaction: then what was seen last decides.
    const CONTENDED: Duration;

    /// A connection that stood idle for so long is pinged before it is used. `None`: never.
    const PING_AFTER: Option<Duration>;

    /// What the server refused may have been part of a transaction, which is open yet.
    const REFUSAL_LEAVES_TRANSACTION: bool;

    /// How soon and how late whoever waits looks again.
    const LOOK: (Duration, Duration);

    /// Connects, and has the statements prepared that the fast path needs: a renewal over a slow network has
    /// the time for one round trip, and not for two. It runs in a task of the runtime.
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

    /// It is not known what became of a change that failed so. (Any other failure has rolled it back.)
    fn is_unknown(e: &sqlx::Error) -> bool;

    /// What an error says that the server has answered.
    fn meaning(e: &sqlx::Error) -> Option<(ErrorKind, &'static str)>;

    /// Takes a name alone where nobody else is. With `has_row` it finds nothing either where there is no row,
    /// and is cheaper.
    fn acquire(&self, request: &Acquire, has_row: bool) -> Result<Self::Statement>;

    /// The token, if `acquire` has taken it.
    fn acquired(answer: &Self::Answer) -> Result<Option<Token>>;

    /// Lets go of a name where nobody else is.
    fn release(&self, lease: &LeaseKey) -> Result<Self::Statement>;

    /// Whether `release` has.
    fn is_released(answer: &Self::Answer) -> bool;

    /// Asks whoever is there. `noted` if a copy of it may be on its way yet.
    fn attempt(
        db: &Db<Self>,
        request: &Acquire,
        noted: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<Attempt>> + Send;

    /// Releases whoever is there, and perhaps leaves a tombstone: whether there was anything.
    fn release_in_full(
        db: &Db<Self>,
        lease: &LeaseKey,
        keep: Duration,
        bury: bool,
        noted: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<bool>> + Send;

    fn abandon(db: &Db<Self>, key: &LeaseKey) -> impl Future<Output = Result<Abandoned>> + Send;

    /// Extends items that have been checked.
    fn renew(db: &Db<Self>, items: Vec<(usize, &RenewItem)>) -> impl Future<Output = Outcomes> + Send;

    fn convert(db: &Db<Self>, lease: &LeaseKey, to: Mode) -> impl Future<Output = Result<Converted>> + Send;

    fn raise(db: &Db<Self>, lease: &LeaseKey, to: Token) -> impl Future<Output = Result<Raised>> + Send;

    /// The fence gate, which also writes if there is a value.
    fn admit(
        db: &Db<Self>,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> impl Future<Output = Result<Admission>> + Send;

    fn read_fence(
        db: &Db<Self>,
        resource: &LockName,
    ) -> impl Future<Output = Result<Option<FencedValue>>> + Send;

    /// One look at the row of a name, for all that wait for it.
    fn look(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<Look>> + Send;

    fn inspect(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<Inspection>> + Send;

    fn force_release(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<u32>> + Send;

    /// Begins to watch: what the first changes are told by, and a snapshot.
    fn watch(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<(Self::Watcher, Change)>> + Send;

    /// Whether dead names are to be looked for, by this client.
    fn is_sweep_due(db: &Db<Self>) -> impl Future<Output = Result<bool>> + Send;

    /// Deletes the rows of names that nobody uses.
    fn sweep(db: &Db<Self>) -> impl Future<Output = Result<()>> + Send;

    /// No lease hangs on a connection. That one broke is a reason to ask again where the server pushes.
    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    /// The backend is being closed.
    fn closing(&self) {}
}

/// What looks for the changes of one name.
pub(in crate::lease) trait Watcher: Send + 'static {
    /// What has changed since the look before, and when to look again.
    fn look(&mut self) -> impl Future<Output = Result<(Vec<Change>, Duration)>> + Send;

    /// Completes when it pays to look sooner.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}
