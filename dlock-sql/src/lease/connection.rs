//! The connections of a backend, and what is asked on them.
//!
//! They are few and long-lived: to take one out of a pool of sqlx costs as much as the statement. Each is
//! used by one request at a time; none waits for a lock that somebody holds, so any number of waiters share
//! them.
//!
//! What could go wrong, and why it does not:
//!
//! * *A request is not polled*, perhaps in the midst of a transaction. A task does the rest (`background`):
//!   no connection, no turn in the line for one and no locked row is kept from others.
//! * *A request is dropped before its answer.* Its connection is not free until a task has read that answer
//!   and rolled back what was open. Until then its permit stays taken, so there are never more connections
//!   than permits. If the answer does not come, the connection is closed. (A server goes on with the
//!   statement either way; the engine abandons the request.)
//! * *A request is dropped while it connects.* A task connects; the connection is for whoever comes next
//!   (`connecting`).
//! * *The server closes an idle connection*, or something between does. That shows when the next request is
//!   sent on it, and is no news of the store: the request is sent once more on another connection, if it may
//!   be heard twice ([`Database::send_again`]) or changes nothing. The other idle ones are closed.
//! * *More is asked than the connections carry.* They are lent in the order of asking (`permits`).

use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, select};
use futures::{FutureExt as _, TryFutureExt as _};
use sqlx::Connection as _;

use super::background::Background;
use super::connecting::{Closing, Unmade, make};
use super::contention::Contention;
use super::dialect::Dialect;
use super::permits::{Permit, Permits};
use super::task::in_task;

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);

/// How long the answer of a request that was dropped is waited for.
const DRAINING: Duration = Duration::from_secs(10);

/// How long the answer to a ping is waited for.
const PINGING: Duration = Duration::from_secs(2);

/// What becomes of a request on a connection that was made so short a time ago is news of the store.
const NEW: Duration = Duration::from_secs(1);

/// A database as one client knows it. What only this kind of server has is reached through `Deref`.
pub(in crate::lease) struct Database<D: Dialect> {
    dialect: D,
    /// The address without a password, for messages.
    pub(in crate::lease) at: Arc<str>,
    pub(in crate::lease) runtime: Arc<dyn Runtime>,
    pub(in crate::lease) contention: Contention,
    pub(in crate::lease) closing: Closing,
    background: Arc<Background>,
    closer: Mutex<Option<oneshot::Sender<()>>>,
    closed: AtomicBool,
    permits: Arc<Permits<Idle<D::Connection>>>,
    /// When dead names are to be looked for, on the clock of this process; nought: that clock has not been
    /// started.
    sweep_at: AtomicU64,
    pub(in crate::lease) sweep_every: Duration,
}

/// What a [`Database`] is made of.
pub(in crate::lease) struct Parts<D: Dialect> {
    pub(in crate::lease) dialect: D,
    pub(in crate::lease) at: Arc<str>,
    pub(in crate::lease) runtime: Arc<dyn Runtime>,
    pub(in crate::lease) connections: usize,
    pub(in crate::lease) sweep_every: Duration,
    /// Nobody has looked for dead names for a while.
    pub(in crate::lease) sweep_due: bool,
    /// The connection by which it was opened.
    pub(in crate::lease) first: D::Connection,
}

impl<D: Dialect> Deref for Database<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.dialect
    }
}

impl<D: Dialect> Database<D> {
    pub(in crate::lease) fn new(parts: Parts<D>) -> Self {
        let (send, receive) = oneshot::channel();
        Self {
            dialect: parts.dialect,
            at: parts.at,
            background: Background::new(parts.runtime.clone()),
            runtime: parts.runtime,
            contention: Contention::new(D::CONTENDED),
            closing: receive.shared(),
            closer: Mutex::new(Some(send)),
            closed: AtomicBool::new(false),
            permits: Permits::new(parts.connections, Idle::used(parts.first)),
            sweep_at: AtomicU64::new(u64::from(parts.sweep_due)),
            sweep_every: parts.sweep_every,
        }
    }

    /// An error once it is closed.
    pub(in crate::lease) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => {
                let message = format!("this {} backend was closed", D::NAME);
                Err(Error::new(ErrorKind::Closed, message))
            }
            false => Ok(()),
        }
    }

    /// Sends a change: when it was sent, and the answer. Whoever calls limits the time.
    pub(in crate::lease) async fn send(
        self: &Arc<Self>,
        statement: D::Statement,
    ) -> Result<(Timestamp, D::Answer)> {
        self.once(statement).await?.changed(&self.at)
    }

    /// Sends a change that may be heard twice, and answers the second time what it would have answered the
    /// first. If it is lost with a connection that had stood idle, that is `noted` and it is sent once more.
    /// If that fails, whatever it fails by, it is not known what became of the first one.
    pub(in crate::lease) async fn send_again(
        self: &Arc<Self>,
        statement: impl Fn() -> Result<D::Statement>,
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, D::Answer)> {
        let asked = self.once(statement()?).await?;
        let again = asked.is_no_news();
        match asked.changed(&self.at) {
            Err(e) if again => {
                noted();
                self.send(statement()?).await.map_err(|_| e)
            }
            answered => answered,
        }
    }

    /// Sends what only reads.
    pub(in crate::lease) async fn send_read(
        self: &Arc<Self>,
        statement: impl Fn() -> Result<D::Statement>,
    ) -> Result<D::Answer> {
        let mut asked = self.once(statement()?).await?;
        if asked.was_idle && asked.answer.as_ref().is_err_and(D::is_fatal) {
            asked = self.once(statement()?).await?;
        }
        asked.answer.map_err(|e| D::nothing_done(e, &self.at))
    }

    /// Sends a statement and takes in the answer, whether or not it is polled. An error: it was not sent.
    async fn once(self: &Arc<Self>, statement: D::Statement) -> Result<Asked<D>> {
        let db = self.clone();
        let asking = async move {
            let mut lent = db.lend().await?;
            let (was_idle, sent) = (lent.was_idle, Timestamp::now());
            let answer = lent.run(statement).await;
            db.finish(lent, answer.as_ref().err());
            Ok(Asked {
                was_idle,
                sent,
                answer,
            })
        };
        self.help(asking).await
    }

    /// Does that, whether or not it is polled.
    pub(in crate::lease) async fn help<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.open()?;
        self.background.help(work).await
    }

    /// A connection that nobody else uses, in the order of asking.
    pub(in crate::lease) async fn lend(&self) -> Result<Lent<D>> {
        self.open()?;
        let mut permit = self.permits.take().await;
        loop {
            self.open()?;
            if let Some(idle) = permit.connection.take() {
                let was_idle = !idle.is_new();
                if let Some(conn) = self.still_there(idle).await {
                    return Ok(Lent {
                        conn: Some(conn),
                        permit: Some(permit),
                        was_idle,
                        runtime: self.runtime.clone(),
                    });
                }
            }
            let connecting = in_time(self.dialect.connect(), &*self.runtime).map_ok(Idle::made);
            let made = make(permit, connecting, self.closing.clone(), &*self.runtime).await;
            permit = match made {
                Ok(permit) => permit,
                Err(Unmade::Failed(e)) => return Err(D::nothing_done(e, &self.at)),
                Err(Unmade::Over) => {
                    self.open()?;
                    return Err(runtime_ended::<D>());
                }
            };
        }
    }

    /// The request is over: the connection is free for others. If it broke, the idle ones are not trusted
    /// either.
    pub(in crate::lease) fn finish(&self, mut lent: Lent<D>, failed: Option<&sqlx::Error>) {
        let broke = failed.is_some_and(D::is_fatal);
        if failed.is_some() && !broke && D::REFUSAL_LEAVES_TRANSACTION {
            // Dropped, it is reset first.
            return;
        }
        let (conn, permit) = (lent.conn.take(), lent.permit.take());
        if broke {
            drop(self.permits.clear());
        } else if let (Some(conn), Some(permit)) = (conn, permit) {
            permit.give_back(Idle::used(conn));
        }
    }

    /// A server, a pooler or a firewall may have ended it meanwhile: then nothing was sent, and another is
    /// made.
    async fn still_there(&self, idle: Idle<D::Connection>) -> Option<D::Connection> {
        let mut conn = idle.conn;
        let limit = D::PING_AFTER.unwrap_or(Duration::MAX);
        if Timestamp::now().since(idle.since) < limit {
            return Some(conn);
        }
        let answered = {
            let ping = pin!(conn.ping());
            let over = self.runtime.sleep(PINGING);
            matches!(select(ping, over).await, Either::Left((Ok(()), _)))
        };
        answered.then_some(conn)
    }

    /// Whether somebody is to look for dead names: true once in `sweep_every`.
    pub(in crate::lease) fn is_time_to_sweep(&self) -> bool {
        let now = Timestamp::now().as_nanos();
        let due = self.sweep_at.load(Ordering::Relaxed);
        let every = u64::try_from(self.sweep_every.as_nanos()).unwrap_or(u64::MAX);
        let next = now.saturating_add(every);
        let turn = now >= due
            && self
                .sweep_at
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        // The first release of a client only starts the clock: a program that takes one lock and ends has
        // nothing to do with this, unless it is due already.
        turn && due != 0
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
        for Idle { conn, .. } in self.permits.clear() {
            // The server closes its end if it does not hear of it.
            let _ = conn.close().await;
        }
        Ok(())
    }
}

/// A connection that nobody uses, and since when.
struct Idle<C> {
    conn: C,
    since: Timestamp,
    was_used: bool,
}

impl<C> Idle<C> {
    fn made(conn: C) -> Self {
        let since = Timestamp::now();
        Self {
            conn,
            since,
            was_used: false,
        }
    }

    fn used(conn: C) -> Self {
        let since = Timestamp::now();
        Self {
            conn,
            since,
            was_used: true,
        }
    }

    fn is_new(&self) -> bool {
        !self.was_used && Timestamp::now().since(self.since) < NEW
    }
}

fn in_time<T>(
    connecting: BoxFuture<'static, Result<T, sqlx::Error>>,
    runtime: &dyn Runtime,
) -> BoxFuture<'static, Result<T, sqlx::Error>>
where
    T: 'static,
{
    let over = runtime.sleep(CONNECTING);
    async move {
        match select(connecting, over).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }
    .boxed()
}

/// Connects in a task of the runtime, whose context sqlx wants and which whoever asks need not have.
pub(in crate::lease) async fn connect<D: Dialect>(
    connecting: BoxFuture<'static, Result<D::Connection, sqlx::Error>>,
    runtime: &dyn Runtime,
    at: &str,
) -> Result<D::Connection> {
    match in_task(runtime, in_time(connecting, runtime)).await {
        Some(connected) => connected.map_err(|e| D::nothing_done(e, at)),
        None => Err(runtime_ended::<D>()),
    }
}

pub(in crate::lease) fn runtime_ended<D: Dialect>() -> Error {
    let message = format!(
        "the runtime that speaks to {} has ended; use one that lives as long as the client",
        D::NAME
    );
    Error::new(ErrorKind::Unavailable, message)
}

/// What became of a statement that was sent.
struct Asked<D: Dialect> {
    /// Whether its connection was there before.
    was_idle: bool,
    sent: Timestamp,
    answer: Result<D::Answer, sqlx::Error>,
}

impl<D: Dialect> Asked<D> {
    /// It was lost with a connection that had stood idle, which says nothing of the store.
    fn is_no_news(&self) -> bool {
        self.was_idle && self.answer.as_ref().is_err_and(D::is_lost)
    }

    /// Of one that changes something.
    fn changed(self, at: &str) -> Result<(Timestamp, D::Answer)> {
        let sent = self.sent;
        self.answer
            .map(|answer| (sent, answer))
            .map_err(|e| D::perhaps_done(e, at))
    }
}

/// A connection while one request has it.
pub(in crate::lease) struct Lent<D: Dialect> {
    conn: Option<D::Connection>,
    permit: Option<Permit<Idle<D::Connection>>>,
    /// Whether it was there before: what becomes of the first request on it says nothing of the store.
    pub(in crate::lease) was_idle: bool,
    runtime: Arc<dyn Runtime>,
}

impl<D: Dialect> Lent<D> {
    pub(in crate::lease) async fn run(&mut self, statement: D::Statement) -> Result<D::Answer, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => D::run(statement, conn).await,
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }
}

impl<D: Dialect> Drop for Lent<D> {
    fn drop(&mut self) {
        let (Some(mut conn), Some(permit)) = (self.conn.take(), self.permit.take()) else {
            return;
        };
        let over = self.runtime.sleep(DRAINING);
        let draining = async move {
            let drained = matches!(select(D::reset(&mut conn), over).await, Either::Left((Ok(()), _)));
            if drained {
                permit.give_back(Idle::used(conn));
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
