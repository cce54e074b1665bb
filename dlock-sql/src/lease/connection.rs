//! The connections of a backend, and what is asked on them.
//!
//! They are few and long-lived. Each is used by one request at a time; none waits for a lock that somebody
//! holds, so any number of waiters share them.
//!
//! What could go wrong, and why it does not:
//!
//! * *A request is not polled*, perhaps in a transaction. A task does the rest (`background`).
//! * *A request is dropped before its answer.* Its slot stays taken until a task has read that answer and
//!   rolled back what was open. If none comes, the connection is closed. (A server goes on with the statement
//!   either way; the engine abandons the request.)
//! * *A request is dropped while it connects.* A task connects; the connection is for whoever comes next.
//! * *The server closes an idle connection*, or something between does. That shows when the next request is
//!   sent on it: it is made once more on another one, if it may be heard twice or changes nothing
//!   ([`again`]). The other idle ones are closed.
//! * *More is asked than the connections carry.* They are lent in the order of asking (`pool`).

use std::future::Future;
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, Shared, select};
use sqlx::Connection as _;

use super::Config;
use super::background::Background;
use super::call::{Answer, Statement, run};
use super::contention::Contention;
use super::dialect::{Connection, Dialect};
use super::failure::{ended_meanwhile, is_broken, nothing_done, perhaps_done, runtime_ended};
use super::pool::{Pool, Slot};

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);

/// How long the answer of a request that was dropped is waited for.
const DRAINING: Duration = Duration::from_secs(10);

/// How long the answer to a ping is waited for.
const PINGING: Duration = Duration::from_secs(2);

/// A connection that nobody uses, and since when.
type Idle<D> = (Connection<D>, Timestamp);

/// A database as one client knows it. What only this kind of server has is reached through `Deref`.
pub(in crate::lease) struct Database<D: Dialect> {
    dialect: D,
    /// The address without a password, for messages.
    pub(in crate::lease) at: Arc<str>,
    pub(in crate::lease) runtime: Arc<dyn Runtime>,
    pub(in crate::lease) contention: Contention,
    background: Arc<Background>,
    pool: Arc<Pool<Idle<D>>>,
    /// Completes when the backend is closed or dropped.
    pub(in crate::lease) closing: Shared<oneshot::Receiver<()>>,
    /// Nothing once it is closed.
    closer: Mutex<Option<oneshot::Sender<()>>>,
    /// When dead names are to be looked for, on the clock of this process.
    sweep_at: AtomicU64,
    pub(in crate::lease) sweep_every: Duration,
}

impl<D: Dialect> Deref for Database<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.dialect
    }
}

impl<D: Dialect> Database<D> {
    /// `first` is the connection by which it was opened.
    pub(in crate::lease) fn new(
        dialect: D,
        first: Connection<D>,
        at: &Arc<str>,
        runtime: Arc<dyn Runtime>,
        config: &Config,
    ) -> Arc<Self> {
        let (send, receive) = oneshot::channel();
        let (now, sweep_every) = (Timestamp::now(), config.sweep_every);
        Arc::new(Self {
            dialect,
            at: at.clone(),
            background: Background::new(runtime.clone()),
            runtime,
            contention: Contention::new(D::CONTENDED),
            pool: Pool::new(config.connections, (first, now)),
            closing: receive.shared(),
            closer: Mutex::new(Some(send)),
            sweep_at: AtomicU64::new((now + sweep_every).as_nanos()),
            sweep_every,
        })
    }

    fn closer(&self) -> MutexGuard<'_, Option<oneshot::Sender<()>>> {
        self.closer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error once it is closed.
    pub(in crate::lease) fn open(&self) -> Result<()> {
        match self.closer().is_some() {
            true => Ok(()),
            false => Err(closed::<D>()),
        }
    }

    /// Sends a change: when it was sent, and the answer. Whoever calls limits the time.
    pub(in crate::lease) async fn send(
        self: &Arc<Self>,
        statement: Statement<D::Driver>,
    ) -> Result<(Timestamp, Answer<D::Driver>)> {
        self.once(statement, perhaps_done::<D>).await
    }

    /// Sends what only reads, once more if it is lost with its connection.
    pub(in crate::lease) async fn read(
        self: &Arc<Self>,
        statement: impl Fn() -> Result<Statement<D::Driver>> + Sync,
    ) -> Result<Answer<D::Driver>> {
        let read = || async { self.once(statement()?, nothing_done::<D>).await };
        Ok(again::<D, _, _>(read).await.0?.1)
    }

    /// Sends a statement and takes in the answer, whether or not it is polled.
    async fn once(
        self: &Arc<Self>,
        statement: Statement<D::Driver>,
        failed: fn(sqlx::Error, &str) -> Error,
    ) -> Result<(Timestamp, Answer<D::Driver>)> {
        let db = self.clone();
        self.in_background(async move {
            let mut lent = db.lend().await?;
            let sent = Timestamp::now();
            let answer = lent.run(statement).await.map_err(|e| failed(e, &db.at))?;
            lent.give_back();
            Ok((sent, answer))
        })
        .await
    }

    /// Does that, whether or not it is polled.
    pub(in crate::lease) async fn in_background<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.open()?;
        let done = self.background.run(work).await;
        done.unwrap_or_else(|_| Err(ended_meanwhile::<D>()))
    }

    /// A connection that nobody else uses, in the order of asking.
    pub(in crate::lease) async fn lend(&self) -> Result<Lent<D>> {
        let mut slot = self.pool.take().await;
        self.open()?;
        if let Some((mut conn, since)) = slot.connection.take() {
            // A server, a pooler or a firewall may have ended it meanwhile.
            let is_there = Timestamp::now().since(since) < D::PING_AFTER.unwrap_or(Duration::MAX)
                || matches!(within(&*self.runtime, PINGING, conn.ping()).await, Some(Ok(())));
            slot.connection = is_there.then_some((conn, since));
        }
        if slot.connection.is_none() {
            let fill = move |conn| {
                slot.connection = Some((conn, Timestamp::now()));
                slot
            };
            let connecting = connect::<D, _>(self.dialect.connect(), &self.runtime, &self.at, fill);
            slot = match select(pin!(connecting), self.closing.clone()).await {
                Either::Left((connected, _)) => connected?,
                Either::Right(_) => return Err(closed::<D>()),
            };
            self.open()?;
        }
        Ok(Lent {
            slot: Some(slot),
            runtime: self.runtime.clone(),
        })
    }

    /// Does that in a task, until the backend is closed.
    pub(in crate::lease) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        let working = async move {
            select(pin!(work), closing).await;
        };
        self.runtime.spawn(working.boxed());
    }

    /// Deletes the rows of dead names, in a task, if nobody has for a while. Where it fails somebody else
    /// does it, or this one does next time.
    pub(in crate::lease) fn sweep(self: &Arc<Self>) {
        let db = Arc::clone(self);
        self.spawn(async move { drop(D::sweep(&db).await) });
    }

    /// The same, once in `sweep_every`.
    pub(in crate::lease) fn sweep_sometimes(self: &Arc<Self>) {
        let now = Timestamp::now();
        let (due, next) = (self.sweep_at.load(Ordering::Relaxed), now + self.sweep_every);
        if now.as_nanos() >= due && self.sweep_at.swap(next.as_nanos(), Ordering::Relaxed) == due {
            self.sweep();
        }
    }

    /// Nothing more is asked. What is on its way goes on to its end.
    pub(in crate::lease) async fn close(&self) -> Result<()> {
        self.open()?;
        self.closer().take();
        self.dialect.closing();
        for (conn, _) in self.pool.clear() {
            // The server closes its end if it does not hear of it.
            let _ = conn.close().await;
        }
        Ok(())
    }
}

/// Asks what may be asked twice, and answers the second time what it would have answered the first: once more
/// where the connection broke. Says whether it is not known what became of the first one; that stays so if
/// the second one fails, whatever it fails by.
pub(in crate::lease) async fn again<D: Dialect, T, F>(ask: impl Fn() -> F) -> (Result<T>, bool)
where
    F: Future<Output = Result<T>>,
{
    let first = match ask().await {
        Err(e) if is_broken::<D>(&e) => e,
        answered => return (answered, false),
    };
    let is_unknown = first.kind() == ErrorKind::Unknown;
    let second = ask().await;
    (
        second.map_err(|second| if is_unknown { first } else { second }),
        is_unknown,
    )
}

/// `None` if it takes longer.
pub(in crate::lease) async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(work), runtime.sleep(limit)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// Where a database is, for messages: never a password.
pub(in crate::lease) fn shown(database: &str, socket: Option<&PathBuf>, host: &str, port: u16) -> Arc<str> {
    match socket {
        Some(socket) => format!("{database} at {}", socket.display()).into(),
        None => format!("{database} at {host}:{port}").into(),
    }
}

fn closed<D: Dialect>() -> Error {
    let text = format!("this {} backend was closed", D::NAME);
    Error::new(ErrorKind::Closed, text)
}

/// Connects in a task of the runtime, whose context sqlx wants and which whoever asks need not have, and has
/// the connection put into its place. That place stays taken meanwhile, so there are never more who connect
/// than places; but not for long when nobody waits for it any more, perhaps since the network swallows all.
pub(in crate::lease) async fn connect<D: Dialect, T: Send + 'static>(
    connecting: BoxFuture<'static, Result<Connection<D>, sqlx::Error>>,
    runtime: &Arc<dyn Runtime>,
    at: &str,
    fill: impl FnOnce(Connection<D>) -> T + Send + 'static,
) -> Result<T> {
    let (mut send, connected) = oneshot::channel();
    let own = runtime.clone();
    let working = async move {
        let connecting = pin!(within(&*own, CONNECTING, connecting));
        let connected = match select(connecting, send.cancellation()).await {
            Either::Left((connected, _)) => connected,
            Either::Right((_, connecting)) => within(&*own, PINGING, connecting).await.flatten(),
        };
        let connected =
            connected.unwrap_or_else(|| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
        // If nobody waits for it, it is for whoever comes next.
        let _ = send.send(connected.map(fill));
    };
    runtime.spawn(working.boxed());
    match connected.await {
        Ok(connected) => connected.map_err(|e| nothing_done::<D>(e, at)),
        Err(_) => Err(runtime_ended::<D>()),
    }
}

/// A connection while one request has it. Dropped, it is made ready for others in a task, or closed.
pub(in crate::lease) struct Lent<D: Dialect> {
    slot: Option<Slot<Idle<D>>>,
    runtime: Arc<dyn Runtime>,
}

impl<D: Dialect> Lent<D> {
    /// If the connection breaks, the idle ones are not trusted either.
    pub(in crate::lease) async fn run(
        &mut self,
        statement: Statement<D::Driver>,
    ) -> Result<Answer<D::Driver>, sqlx::Error> {
        let conn = self.slot.as_mut().and_then(|slot| slot.connection.as_mut());
        // Nothing is there after it broke.
        let Some((conn, _)) = conn else {
            return Err(sqlx::Error::WorkerCrashed);
        };
        let answer = run::<D::Driver>(statement, conn).await;
        if answer.as_ref().is_err_and(D::is_fatal)
            && let Some(slot) = &mut self.slot
        {
            slot.connection = None;
            slot.pool.clear();
        }
        answer
    }

    /// All of its answers were taken in, and no transaction is open.
    pub(in crate::lease) fn give_back(mut self) {
        if let Some(mut slot) = self.slot.take()
            && let Some((_, since)) = &mut slot.connection
        {
            *since = Timestamp::now();
        }
    }
}

impl<D: Dialect> Drop for Lent<D> {
    fn drop(&mut self) {
        let Some(mut slot) = self.slot.take() else { return };
        let Some((mut conn, _)) = slot.connection.take() else {
            return;
        };
        let runtime = self.runtime.clone();
        let draining = async move {
            // The answer is read, and a transaction rolled back.
            let resetting = run::<D::Driver>(Statement::Text(D::RESET.to_owned()), &mut conn);
            let was_reset = within(&*runtime, DRAINING, resetting).await;
            slot.connection = matches!(was_reset, Some(Ok(_))).then(|| (conn, Timestamp::now()));
            drop(slot);
        };
        self.runtime.spawn(draining.boxed());
    }
}
