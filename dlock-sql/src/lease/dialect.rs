//! What a database server has of its own: a trait for each file in which it is told. All else of a lease is
//! written once, for [`Lease`](super::lock::Lease).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Abandoned, Acquire, Attempt, Converted, LeaseKey, Raised, RenewItem, Signal};
use dlock_core::{Access, Admission, Change, FencedValue, Inspection, LockName, Mode, Result, Token};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::call::{Answer, Statement};
use super::connection::Database;
use super::failure::Failures;
use super::look::Look;
pub(in crate::lease) use crate::requests::Outcomes;

type Db<D> = Arc<Database<D>>;

pub(in crate::lease) type Connection<D> = <<D as Dialect>::Driver as sqlx::Database>::Connection;

/// All of it.
pub(in crate::lease) trait Server: Renewing + Gate + Sweeping {}

impl<D: Renewing + Gate + Sweeping> Server for D {}

/// A kind of server, with what one client knows of it. Requests come checked, and times in whole
/// milliseconds.
pub(in crate::lease) trait Dialect: Failures {
    type Driver: sqlx::Database;
    /// Of one watch.
    type Watcher: Watcher<Self>;

    /// The name of the backend.
    const BACKEND: &'static str;

    /// How long a name counts as contended after others were seen there. Nought where the full request is a
    /// transaction: then what was seen last decides.
    const CONTENDED: Duration;

    /// A connection that stood idle for so long is pinged before it is used. `None`: never.
    const PING_AFTER: Option<Duration>;

    /// How soon and how late whoever waits looks again.
    const LOOK: (Duration, Duration);

    /// Connects, and has the statements prepared that the fast path needs: a renewal over a slow network has
    /// the time for one round trip, and not for two. It runs in a task of the runtime.
    fn connect(&self) -> BoxFuture<'static, Result<Connection<Self>, sqlx::Error>>;

    /// Sends a statement and takes in all of its answer.
    fn run(
        statement: Statement<Self::Driver>,
        connection: &mut Connection<Self>,
    ) -> BoxFuture<'_, Result<Answer<Self::Driver>, sqlx::Error>>;

    /// Makes a connection usable on which a request was dropped or refused: its answer is read, its
    /// transaction rolled back.
    fn reset(connection: &mut Connection<Self>) -> BoxFuture<'_, Result<(), sqlx::Error>>;

    /// Takes a name alone where nobody else is. With `has_row` it finds nothing either where there is no row,
    /// and is cheaper.
    fn acquire(&self, request: &Acquire, has_row: bool) -> Result<Statement<Self::Driver>>;

    /// The token, if `acquire` has taken it.
    fn acquired(answer: &Answer<Self::Driver>) -> Result<Option<Token>>;

    /// Lets go of a name where nobody else is.
    fn release(&self, lease: &LeaseKey) -> Result<Statement<Self::Driver>>;

    /// Whether `release` has.
    fn is_released(answer: &Answer<Self::Driver>) -> bool;

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

    fn convert(db: &Db<Self>, lease: &LeaseKey, to: Mode) -> impl Future<Output = Result<Converted>> + Send;

    fn raise(db: &Db<Self>, lease: &LeaseKey, to: Token) -> impl Future<Output = Result<Raised>> + Send;

    /// One look at the row of a name, for all that wait for it.
    fn look(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<Look>> + Send;

    fn inspect(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<Inspection>> + Send;

    fn force_release(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<u32>> + Send;

    /// No lease hangs on a connection. That one broke is a reason to ask again where the server pushes.
    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    /// The backend is being closed.
    fn closing(&self) {}
}

pub(in crate::lease) trait Renewing: Dialect {
    /// Extends items that have been checked.
    fn renew(db: &Db<Self>, items: Vec<(usize, &RenewItem)>) -> impl Future<Output = Outcomes> + Send;
}

/// Who wants to pass the fence gate, where, for what access, and what is written then.
#[derive(Clone, Copy)]
pub(in crate::lease) struct Pass<'a>(
    pub(in crate::lease) Token,
    pub(in crate::lease) &'a LockName,
    pub(in crate::lease) Access,
    pub(in crate::lease) Option<&'a [u8]>,
);

/// The fence gate: check and write in one statement.
pub(in crate::lease) trait Gate: Dialect {
    fn admit(db: &Db<Self>, pass: Pass<'_>) -> impl Future<Output = Result<Admission>> + Send;

    fn read(db: &Db<Self>, resource: &LockName) -> impl Future<Output = Result<Option<FencedValue>>> + Send;
}

/// The rows of names that nobody uses are deleted.
pub(in crate::lease) trait Sweeping: Dialect {
    /// Whether it is time to, by this client.
    fn is_due(db: &Db<Self>) -> impl Future<Output = Result<bool>> + Send;

    fn sweep(db: &Db<Self>) -> impl Future<Output = Result<()>> + Send;
}

/// What looks for the changes of one name.
pub(in crate::lease) trait Watcher<D: Dialect>: Sized + Send + 'static {
    /// Begins to watch: what looks from now on, and a snapshot.
    fn begin(db: &Db<D>, name: &LockName) -> impl Future<Output = Result<(Self, Change)>> + Send;

    /// What has changed since the look before, and when to look again.
    fn look(&mut self) -> impl Future<Output = Result<(Vec<Change>, Duration)>> + Send;

    /// Completes when it pays to look sooner.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}
