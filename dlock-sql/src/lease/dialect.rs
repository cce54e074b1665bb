//! The parts that differ between database servers. Everything else is written once, for
//! [`Lease`](super::lock::Lease).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Raised, RenewItem, Signal};
use dlock_core::{Admission, Change, Inspection, LockName, Mode, Result, Token};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};

use super::connection::Database;
use crate::direct::Store;
use crate::driver_url::Options;
use crate::gate::Pass;
use crate::listing::Span;
use crate::probe::{self, Looks};
pub(in crate::lease) use crate::requests::Outcomes;

type Db<D> = Arc<Database<D>>;

pub(in crate::lease) type Connection<D> = <<D as Dialect>::Driver as sqlx::Database>::Connection;

/// What changes when anything does: the number of changes, that of other hints, the token, the phase. Of a
/// name that has no row it is all nought.
pub(in crate::lease) type Mark = (i64, i64, i64, i64);

pub(in crate::lease) type Look = probe::Look<Mark>;

#[async_trait]
impl<D: Dialect> Looks for Db<D> {
    type Mark = Mark;

    async fn look(&self, name: &LockName) -> Result<Look> {
        D::look(self, name).await
    }
}

/// A kind of server, with what one client knows of it. Requests come checked, and times in whole
/// milliseconds. What may be asked twice, with the same answer, says so.
pub(in crate::lease) trait Dialect: Send + Sync + Sized + 'static {
    type Driver: Store;
    /// Of one watch.
    type Watcher: Watcher<Self>;

    /// The name of the backend.
    const BACKEND: &'static str;

    /// How long a name counts as contended after others were seen there. Nought where the full request is a
    /// transaction: then what was seen last decides.
    const CONTENDED: Duration;

    /// A connection that stood idle for so long is pinged before it is used. `None`: never.
    const PING_AFTER: Option<Duration>;

    /// Makes a connection usable on which a request was dropped or refused: its answer is read, its
    /// transaction rolled back.
    const RESET: &'static str;

    /// Where it is.
    fn server(&self) -> Options;

    /// Connects, and has the statements prepared that the fast path needs: a renewal over a slow network has
    /// the time for one round trip, and not for two. It runs in a task of the runtime.
    fn connect(&self) -> BoxFuture<'static, Result<Connection<Self>, sqlx::Error>>;

    /// Takes a name exclusively, if it is unused. With `has_row` it finds nothing either where there is no
    /// row, and is cheaper. May be asked twice.
    fn acquire(
        db: &Db<Self>,
        request: &Acquire,
        has_row: bool,
    ) -> impl Future<Output = Result<Option<Grant>>> + Send;

    /// Releases a name, if no one else is there. A repeated call finds nothing.
    fn release(db: &Db<Self>, lease: &LeaseKey) -> impl Future<Output = Result<bool>> + Send;

    /// Requests a lock. May be repeated.
    fn attempt(db: &Db<Self>, request: &Acquire) -> impl Future<Output = Result<Attempt>> + Send;

    /// Releases a request, and may leave a tombstone. Returns whether there was anything.
    fn release_in_full(
        db: &Db<Self>,
        lease: &LeaseKey,
        keep: Duration,
        bury: bool,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Extends items that have been checked.
    fn renew(db: &Db<Self>, items: Vec<(usize, &RenewItem)>) -> impl Future<Output = Outcomes> + Send;

    /// May be asked twice.
    fn abandon(db: &Db<Self>, key: &LeaseKey) -> impl Future<Output = Result<Abandoned>> + Send;

    fn convert(db: &Db<Self>, lease: &LeaseKey, to: Mode) -> impl Future<Output = Result<Converted>> + Send;

    /// May be asked twice.
    fn raise(db: &Db<Self>, lease: &LeaseKey, to: Token) -> impl Future<Output = Result<Raised>> + Send;

    /// Checks a token at the fence gate, and writes, if there is a value, in one step.
    fn pass(db: &Db<Self>, pass: Pass<'_>) -> impl Future<Output = Result<Admission>> + Send;

    /// One look at the row of a name, for all that wait for it.
    fn look(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<Look>> + Send;

    fn inspect(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<Inspection>> + Send;

    fn force_release(db: &Db<Self>, name: &LockName) -> impl Future<Output = Result<u32>> + Send;

    /// The first [`PAGE`](crate::listing::PAGE) names there that are held or waited for, in their order.
    fn list(db: &Db<Self>, span: Span) -> impl Future<Output = Result<Vec<Vec<u8>>>> + Send;

    /// Whether this client should now delete the rows of unused names.
    fn is_due(db: &Db<Self>) -> impl Future<Output = Result<bool>> + Send;

    fn sweep(db: &Db<Self>) -> impl Future<Output = Result<()>> + Send;

    /// No lease depends on a connection. A broken one is a reason to ask again where the server pushes.
    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    /// The backend is being closed.
    fn closing(&self) {}
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
