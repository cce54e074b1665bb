//! The connections of a backend, and the requests on them.
//!
//! They are few and long-lived. One request at a time uses each; none waits for a held lock, so any number of
//! waiters share them.
//!
//! What could go wrong, and why it does not:
//!
//! * *A request is not polled*, perhaps in a transaction. A task does the rest (`background`).
//! * *A request is dropped before its answer.* Its slot stays taken until a task has read that answer and
//!   rolled back what was open. If none comes, the connection is closed. (A server goes on with the statement
//!   either way; the engine abandons the request.)
//! * *A request is dropped while it connects.* A task connects; the connection goes to the next request.
//! * *The server closes an idle connection*, or a proxy does. That shows when the next request is sent on it:
//!   that is repeated on another one, if it is idempotent ([`again`]) or changes nothing. The other idle ones
//!   are closed.
//! * *There are more requests than connections.* Connections are lent in the order of the requests (`pool`).

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
use super::failure::{ended_meanwhile, is_fatal, nothing_done, perhaps_done, runtime_ended};
use super::pool::{Pool, Slot};

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);

/// How long the answer of a request that was dropped is waited for.
const DRAINING: Duration = Duration::from_secs(10);

/// How long the answer to a ping is waited for.
const PINGING: Duration = Duration::from_secs(2);

/// An idle connection, and since when.
type Idle<D> = (Connection<D>, Timestamp);

/// A database as one client knows it. What only this kind of server has is reached through `Deref`.
pub(in crate::lease) struct Database<D: Dialect> {
    dialect: D,
    /// The address without a password, for messages.
    pub(in crate::lease) at: Arc<str>,
    pub(in crate::lease) runtime: Arc<dyn Runtime>,
    pub(in crate::lease) contention: Contention,
    /// The table of the gate.
    pub(in crate::lease) fence: String,
    /// Completes when the backend is closed or dropped.
    pub(in crate::lease) closing: Shared<oneshot::Receiver<()>>,
    background: Arc<Background>,
    closer: Mutex<Option<oneshot::Sender<()>>>,
    closed: AtomicBool,
    pool: Arc<Pool<Idle<D>>>,
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
        fence: String,
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
            fence,
            closing: receive.shared(),
            closer: Mutex::new(Some(send)),
            closed: AtomicBool::new(false),
            pool: Pool::new(config.connections, (first, now)),
            sweep_at: AtomicU64::new((now + sweep_every).as_nanos()),
            sweep_every,
        })
    }

    /// An error once it is closed.
    pub(in crate::lease) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => {
                let text = format!("the client of {} was closed", self.at);
                Err(Error::new(ErrorKind::Closed, text))
            }
            false => Ok(()),
        }
    }

    /// Sends a change. Returns when it was sent, and the answer. The caller limits the time.
    pub(in crate::lease) async fn send(
        self: &Arc<Self>,
        statement: Statement<D::Driver>,
    ) -> Result<(Timestamp, Answer<D::Driver>)> {
        let (sent, answer) = self.once(statement).await?;
        Ok((sent, answer.map_err(|e| perhaps_done(e, &self.at))?))
    }

    /// Sends a statement on that connection.
    pub(in crate::lease) async fn run_on(
        &self,
        mut lent: Lent<D>,
        statement: Statement<D::Driver>,
    ) -> (Timestamp, Result<Answer<D::Driver>, sqlx::Error>) {
        let sent = Timestamp::now();
        let answer = lent.run(statement).await;
        self.finish(lent, answer.as_ref().err());
        (sent, answer)
    }

    /// Sends what only reads, once more if it is lost with its connection.
    pub(in crate::lease) async fn read(
        self: &Arc<Self>,
        statement: impl Fn() -> Result<Statement<D::Driver>>,
    ) -> Result<Answer<D::Driver>> {
        let (_, mut answer) = self.once(statement()?).await?;
        if answer.as_ref().is_err_and(is_fatal) {
            (_, answer) = self.once(statement()?).await?;
        }
        answer.map_err(|e| nothing_done(e, &self.at))
    }

    /// Sends a statement and takes in the answer, whether or not it is polled. The outer error: it was not
    /// sent.
    async fn once(
        self: &Arc<Self>,
        statement: Statement<D::Driver>,
    ) -> Result<(Timestamp, Result<Answer<D::Driver>, sqlx::Error>)> {
        let db = self.clone();
        let asking = async move {
            let lent = db.lend().await?;
            Ok(db.run_on(lent, statement).await)
        };
        self.in_background(asking).await
    }

    /// Does that, whether or not it is polled.
    pub(in crate::lease) async fn in_background<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.open()?;
        let done = self.background.run(work).await;
        done.unwrap_or_else(|_| Err(ended_meanwhile()))
    }

    /// An exclusive connection, in the order of the requests.
    pub(in crate::lease) async fn lend(&self) -> Result<Lent<D>> {
        self.open()?;
        let mut slot = self.pool.take().await;
        loop {
            self.open()?;
            if let Some((mut conn, since)) = slot.connection.take() {
                // A server, a pooler or a firewall may have ended it meanwhile: then nothing was sent, and
                // another is made.
                let is_there = Timestamp::now().since(since) < D::PING_AFTER.unwrap_or(Duration::MAX)
                    || matches!(
                        within(self.runtime.sleep(PINGING), conn.ping()).await,
                        Some(Ok(()))
                    );
                if is_there {
                    return Ok(Lent {
                        lent: Some((conn, slot)),
                        runtime: self.runtime.clone(),
                    });
                }
            }
            slot = self.make(slot).await?;
        }
    }

    /// Has a connection made in that slot by a task, and answers the first that is there: this one, or one
    /// that somebody gives back, which is a matter of a millisecond: to connect is dear. (The slot may come
    /// without one, where that broke.)
    ///
    /// *It is made, and somebody was first in line*: that one has it, and gives it back. *It cannot be made*:
    /// that is reported before the slot is freed, so the request that asked for it gets the error, and does
    /// not try for ever. *That request has gone*: it took too long, perhaps since the network swallows
    /// everything, so the slot is free at once; a connection that is made in the end goes to the next
    /// request.
    async fn make(&self, slot: Slot<Idle<D>>) -> Result<Slot<Idle<D>>> {
        let (send, made) = oneshot::channel();
        let (go_on, alone) = oneshot::channel();
        let pool = slot.pool();
        let connecting = in_time(self.dialect.connect(), &*self.runtime);
        let (connecting, rest) = (select(connecting, self.closing.clone()), pool.clone());
        let task = async move {
            let mut slot = Some(slot);
            let connected = match select(connecting, alone).await {
                Either::Left((connected, _)) => connected,
                Either::Right((went_on, connecting)) => {
                    slot = slot.filter(|_| went_on.is_ok());
                    connecting.await
                }
            };
            let Either::Left((connected, _)) = connected else {
                return;
            };
            let made = connected.map(|conn| {
                let idle = (conn, Timestamp::now());
                match slot.take() {
                    Some(slot) => slot.give_back(idle),
                    None => rest.offer(idle),
                }
            });
            let _ = send.send(made);
        };
        self.runtime.spawn(task.boxed());
        let next = pin!(pool.next());
        match select(made, next).await {
            Either::Left((Ok(Ok(())), next)) => Ok(next.await),
            Either::Left((Ok(Err(e)), _)) => Err(nothing_done(e, &self.at)),
            Either::Left((Err(_), _)) => {
                self.open()?;
                Err(runtime_ended())
            }
            Either::Right((slot, _)) => {
                let _ = go_on.send(());
                Ok(slot)
            }
        }
    }

    /// The request is over: the connection is free for others. If it broke, the idle ones are not trusted
    /// either.
    pub(in crate::lease) fn finish(&self, mut lent: Lent<D>, failed: Option<&sqlx::Error>) {
        if failed.is_some_and(is_fatal) {
            lent.lent = None;
            self.pool.clear();
        } else if failed.is_none()
            && let Some((conn, slot)) = lent.lent.take()
        {
            slot.give_back((conn, Timestamp::now()));
        }
        // What was refused may have been part of a transaction: it is reset as it is dropped.
    }

    /// Does that in a task, until the backend is closed.
    pub(in crate::lease) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        let working = async move {
            select(pin!(work), closing).await;
        };
        self.runtime.spawn(working.boxed());
    }

    /// Nothing more is asked. What is on its way goes on to its end.
    pub(in crate::lease) async fn close(&self) -> Result<()> {
        self.open()?;
        self.closed.store(true, Ordering::Release);
        self.closer.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.dialect.closing();
        for (conn, _) in self.pool.clear() {
            // The server closes its end if it does not hear of it.
            let _ = conn.close().await;
        }
        Ok(())
    }

    /// Deletes the rows of dead names, in a task, if no client has for a while. Where it fails another client
    /// does it, or this one does next time. Done as a client is opened: all of them may live for less than
    /// the time between two sweeps.
    pub(in crate::lease) async fn sweep_if_due(self: &Arc<Self>) {
        if matches!(D::is_due(self).await, Ok(true)) {
            let db = Arc::clone(self);
            self.spawn(async move { drop(D::sweep(&db).await) });
        }
    }

    /// The same, once in `sweep_every`.
    pub(in crate::lease) fn sweep_sometimes(self: &Arc<Self>) {
        let now = Timestamp::now();
        let (due, next) = (self.sweep_at.load(Ordering::Relaxed), now + self.sweep_every);
        if now.as_nanos() >= due && self.sweep_at.swap(next.as_nanos(), Ordering::Relaxed) == due {
            let db = Arc::clone(self);
            self.spawn(async move { db.sweep_if_due().await });
        }
    }
}

/// Asks what may be asked twice, and answers the second time what it would have answered the first: once more
/// where the connection broke, or did not suit. Says whether it is not known what became of the first one;
/// that stays so if the second one fails, whatever it fails by.
pub(in crate::lease) async fn again<T, F>(ask: impl Fn() -> F) -> (Result<T>, bool)
where
    F: Future<Output = Result<T>>,
{
    let first = match ask().await {
        Err(e) if matches!(e.kind(), ErrorKind::Unknown | ErrorKind::Unsupported) => e,
        answered => return (answered, false),
    };
    let is_unknown = first.kind() == ErrorKind::Unknown;
    let second = Box::pin(ask()).await.map_err(|second| match second.kind() {
        // It has a tombstone, or has ended: that is known.
        ErrorKind::Lost => second,
        _ if is_unknown => first,
        _ => second,
    });
    (second, is_unknown)
}

/// `None` if the limit is over first.
pub(in crate::lease) async fn within<T>(
    limit: BoxFuture<'static, ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(work), limit).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

type Connecting<C> = BoxFuture<'static, Result<C, sqlx::Error>>;

fn in_time<C: 'static>(connecting: Connecting<C>, runtime: &dyn Runtime) -> Connecting<C> {
    let connected = within(runtime.sleep(CONNECTING), connecting);
    let over = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    connected
        .map(move |connected| connected.unwrap_or_else(over))
        .boxed()
}

/// Connects in a task of the runtime: sqlx needs its context, which the caller may not have.
pub(in crate::lease) async fn connect<D: Dialect>(
    connecting: Connecting<Connection<D>>,
    runtime: &dyn Runtime,
    at: &str,
) -> Result<Connection<D>> {
    let (send, connected) = oneshot::channel();
    let connecting = in_time(connecting, runtime);
    let working = async move {
        let _ = send.send(connecting.await);
    };
    runtime.spawn(working.boxed());
    match connected.await {
        Ok(connected) => connected.map_err(|e| nothing_done(e, at)),
        Err(_) => Err(runtime_ended()),
    }
}

/// A connection while one request has it.
pub(in crate::lease) struct Lent<D: Dialect> {
    lent: Option<(Connection<D>, Slot<Idle<D>>)>,
    runtime: Arc<dyn Runtime>,
}

impl<D: Dialect> Lent<D> {
    pub(in crate::lease) async fn run(
        &mut self,
        statement: Statement<D::Driver>,
    ) -> Result<Answer<D::Driver>, sqlx::Error> {
        match &mut self.lent {
            // Boxed: what is moved about on the way here is small then.
            Some((conn, _)) => run::<D::Driver>(statement, conn).boxed().await,
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }
}

impl<D: Dialect> Drop for Lent<D> {
    fn drop(&mut self) {
        let Some((mut conn, slot)) = self.lent.take() else {
            return;
        };
        let over = self.runtime.sleep(DRAINING);
        let draining = async move {
            let resetting = run::<D::Driver>(Statement::Text(D::RESET.to_owned()), &mut conn);
            if let Some(Ok(_)) = within(over, resetting).await {
                slot.give_back((conn, Timestamp::now()));
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
