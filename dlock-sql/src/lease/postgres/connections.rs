//! The connections of a backend, and what is asked on them.
//!
//! They are few and long-lived: to take one out of a pool of sqlx costs as much as the statement. Each is used by one request at a time, for one statement;
//! none waits for a lock that somebody holds, so any number of waiters share them.
//!
//! What could go wrong, and why it does not:
//!
//! * *A request is dropped before its answer.* Its connection is not free until that answer has been read, which a task does; the slot stays taken
//!   meanwhile, so no more connections are made than there are slots. If the answer does not come, the connection is closed. (A server goes on with the
//!   statement either way; the engine abandons the request.)
//! * *A request is dropped while it connects.* A task connects, in the runtime's context; what nobody waits for any more is closed.
//! * *The server, or what is between, closes a connection that is not in use.* After five seconds without use it is asked first whether it is there. If it is
//!   closed sooner than that, and the server says that it was for its idleness, the request is sent again on another one: it was not heard. Otherwise that
//!   request is `Unknown`, and the one after it connects anew.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use futures::lock::{Mutex, OwnedMutexGuard};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{ConnectOptions as _, Connection as _};

use super::call::{Value, Way, run};
use super::failure::{is_fatal, nothing_done, perhaps_done, was_idle};
use super::pushes::Pushes;
use super::schema::Statements;

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);

/// How long the answer of a request that was dropped is waited for.
const DRAINING: Duration = Duration::from_secs(10);

/// Completes when the backend is closed or dropped.
pub(super) type Closing = Shared<oneshot::Receiver<()>>;

/// A connection that was not used for so long is asked first whether it is there yet.
const IDLE: Duration = Duration::from_secs(5);

/// How long the answer to that is waited for.
const PINGING: Duration = Duration::from_secs(2);

type Slot = Arc<Mutex<Option<Idle>>>;

/// A connection that nobody uses, and since when.
struct Idle {
    conn: PgConnection,
    since: Timestamp,
}

impl Idle {
    fn new(conn: PgConnection) -> Self {
        Self {
            conn,
            since: Timestamp::now(),
        }
    }
}

/// The way to the database.
pub(super) struct Link {
    pub(super) options: PgConnectOptions,
    pub(super) way: Way,
    /// The address without a password, for messages.
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sql: Statements,
    pub(super) pushes: Arc<Pushes>,
    /// Where this client is told; `None` if it only looks.
    pub(super) channel: Option<Arc<str>>,
    pub(super) closing: Closing,
    closer: Lock<Option<oneshot::Sender<()>>>,
    closed: AtomicBool,
    slots: Vec<Slot>,
    next: AtomicUsize,
    /// When dead names are to be looked for, on the clock of this process.
    pub(super) sweep_at: std::sync::atomic::AtomicU64,
    pub(super) sweep_every: Duration,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) options: PgConnectOptions,
    pub(super) way: Way,
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sql: Statements,
    pub(super) channel: Option<Arc<str>>,
    pub(super) connections: usize,
    pub(super) sweep_every: Duration,
    /// One that is there already.
    pub(super) first: PgConnection,
}

impl Link {
    pub(super) fn new(parts: Parts) -> Self {
        let (send, receive) = oneshot::channel();
        let mut first = Some(Idle::new(parts.first));
        let slots = (0..parts.connections.max(1)).map(|_| Arc::new(Mutex::new(first.take())));
        Self {
            options: parts.options,
            way: parts.way,
            at: parts.at,
            runtime: parts.runtime,
            sql: parts.sql,
            pushes: Pushes::new(),
            channel: parts.channel,
            closing: receive.shared(),
            closer: Lock::new(Some(send)),
            closed: AtomicBool::new(false),
            slots: slots.collect(),
            next: AtomicUsize::new(0),
            sweep_at: std::sync::atomic::AtomicU64::new(0),
            sweep_every: parts.sweep_every,
        }
    }

    pub(super) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(
                ErrorKind::Closed,
                "this PostgreSQL backend was closed",
            )),
            false => Ok(()),
        }
    }

    /// A statement that changes something: when it was sent, and the answer. Whoever calls limits the time.
    pub(super) async fn ask(&self, text: &Arc<str>, values: &[Value<'_>]) -> Result<(Timestamp, Vec<PgRow>)> {
        loop {
            let mut lent = self.lend().await?;
            let sent = Timestamp::now();
            match lent.run(self.way, text, values).await {
                Ok(rows) => return Ok((sent, rows)),
                // Said before the statement was heard. The next connection may be such a one too; there are as many as there are slots.
                Err(e) if was_idle(&e) => {}
                Err(e) => return Err(perhaps_done(e, &self.at)),
            }
        }
    }

    /// One that reads.
    pub(super) async fn read(&self, text: &Arc<str>, values: &[Value<'_>]) -> Result<Vec<PgRow>> {
        loop {
            let mut lent = self.lend().await?;
            match lent.run(self.way, text, values).await {
                Err(e) if was_idle(&e) => {}
                rows => return rows.map_err(|e| nothing_done(e, &self.at)),
            }
        }
    }

    /// A connection that nobody else uses. One that is there is preferred to one that has to be made.
    async fn lend(&self) -> Result<Lent> {
        self.open()?;
        let mut slot = match self.slots.iter().find_map(Mutex::try_lock_owned) {
            Some(slot) => slot,
            None => {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
                self.slots[turn].clone().lock_owned().await
            }
        };
        self.open()?;
        let conn = match slot.take() {
            Some(idle) => self.still_there(idle).await,
            None => None,
        };
        let conn = match conn {
            Some(conn) => conn,
            None => connect(&self.options, &*self.runtime, &self.at).await?,
        };
        Ok(Lent {
            conn: Some(conn),
            slot: Some(slot),
            runtime: self.runtime.clone(),
        })
    }

    /// A server, a pooler or a firewall may have ended it meanwhile: then nothing was sent yet, and another one is made.
    async fn still_there(&self, idle: Idle) -> Option<PgConnection> {
        let mut conn = idle.conn;
        if Timestamp::now().since(idle.since) < IDLE {
            return Some(conn);
        }
        let answered = {
            let ping = pin!(conn.ping());
            matches!(
                select(ping, self.runtime.sleep(PINGING)).await,
                Either::Left((Ok(()), _))
            )
        };
        answered.then_some(conn)
    }

    /// Nothing more is asked. What is on its way goes on to its end.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closer.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.pushes.close();
        for slot in &self.slots {
            let conn = slot.try_lock().and_then(|mut slot| slot.take());
            if let Some(Idle { conn, .. }) = conn {
                // The server closes its end if it does not hear of it.
                let _ = conn.close().await;
            }
        }
    }
}

/// Connects in a task of the runtime: sqlx wants its context, which whoever asks need not have.
pub(super) async fn connect(
    options: &PgConnectOptions,
    runtime: &dyn Runtime,
    at: &str,
) -> Result<PgConnection> {
    let (send, receive) = oneshot::channel();
    let (options, over) = (options.clone(), runtime.sleep(CONNECTING));
    let connecting = async move {
        let connected = {
            let connecting = pin!(options.connect());
            match select(connecting, over).await {
                Either::Left((connected, _)) => connected,
                Either::Right(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
            }
        };
        // Nobody may wait any more: then it is closed by this.
        let _ = send.send(connected);
    };
    runtime.spawn(connecting.boxed());
    match receive.await {
        Ok(connected) => connected.map_err(|e| nothing_done(e, at)),
        Err(_) => Err(Error::new(
            ErrorKind::Unavailable,
            "the runtime that connects to PostgreSQL has ended; use one that lives as long as the client",
        )),
    }
}

/// A connection while one request has it.
struct Lent {
    conn: Option<PgConnection>,
    slot: Option<OwnedMutexGuard<Option<Idle>>>,
    runtime: Arc<dyn Runtime>,
}

impl Lent {
    async fn run(
        &mut self,
        way: Way,
        text: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let Some(conn) = &mut self.conn else {
            return Err(sqlx::Error::WorkerCrashed);
        };
        let rows = run(conn, way, text, values).await;
        let conn = self.conn.take();
        if let Some(mut slot) = self.slot.take()
            && !matches!(&rows, Err(e) if is_fatal(e))
        {
            *slot = conn.map(Idle::new);
        }
        rows
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(mut conn), Some(mut slot)) = (self.conn.take(), self.slot.take()) else {
            return;
        };
        let over = self.runtime.sleep(DRAINING);
        let draining = async move {
            let drained = {
                let ping = pin!(conn.ping());
                matches!(select(ping, over).await, Either::Left((Ok(()), _)))
            };
            if drained {
                *slot = Some(Idle::new(conn));
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
