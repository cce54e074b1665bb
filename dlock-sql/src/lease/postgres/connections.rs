//! The connections of a backend, and what is asked on them.
//!
//! They are few and long-lived: to take one out of a pool of sqlx costs as much as the statement. Each is used by one request at a time, for one statement;
//! none waits for a lock that somebody holds, so any number of waiters share them.
//!
//! What could go wrong, and why it does not:
//!
//! * *A request rests: nobody polls it.* Then a task does what it asks for (`helped`): it keeps no connection, and no place in the line for one, from others.
//! * *A request is dropped before its answer.* Its connection is not free until that answer has been read, which a task does; the slot stays taken
//!   meanwhile, so no more connections are made than there are slots. If the answer does not come, the connection is closed. (A server goes on with the
//!   statement either way; the engine abandons the request.)
//! * *A request is dropped while it connects.* A task connects, in the runtime's context; the connection is for whoever comes next (`making`).
//! * *The server closes a connection that is not in use*, or something between does. That is seen when the next request is sent on it, and is no news of the store:
//!   that request is sent once more, on a connection made for it, if it is one that may come twice ([`Link::ask_again`]). The others that nobody uses are closed with it.
//! * *More is asked than the connections carry.* They are lent in the order of asking (`places`).

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, select};
use futures::{FutureExt as _, TryFutureExt as _};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgTypeInfo};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _};

use super::call::{Rows, Statement, Value, Way};
use super::failure::{is_fatal, nothing_done, perhaps_done};
use super::pushes::Pushes;
use super::schema::Statements;
use crate::lease::apart::apart;
use crate::lease::helped::Helper;
use crate::lease::known::Known;
pub(super) use crate::lease::making::Closing;
use crate::lease::making::{Unmade, make};
use crate::lease::places::{Place, Places};

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);

/// How long the answer of a request that was dropped is waited for.
const DRAINING: Duration = Duration::from_secs(10);

/// For so long after others were seen at a name it is asked for in full at once.
const CROWDED: Duration = Duration::from_millis(100);

/// The way to the database.
pub(super) struct Link {
    pub(super) options: PgConnectOptions,
    pub(super) way: Way,
    /// The address without a password, for messages.
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    helper: Arc<Helper>,
    pub(super) sql: Statements,
    pub(super) known: Known,
    pub(super) pushes: Arc<Pushes>,
    /// Where this client is told; `None` if it only looks.
    pub(super) channel: Option<Arc<str>>,
    pub(super) closing: Closing,
    closer: Lock<Option<oneshot::Sender<()>>>,
    closed: AtomicBool,
    places: Arc<Places<Kept>>,
    /// When dead names are to be looked for, on the clock of this process; nought: that clock has not been started.
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
    /// Nobody has looked for dead names for a while.
    pub(super) sweep_due: bool,
    /// One that is there already.
    pub(super) first: PgConnection,
}

impl Link {
    pub(super) fn new(parts: Parts) -> Self {
        let (send, receive) = oneshot::channel();
        Self {
            options: parts.options,
            way: parts.way,
            at: parts.at,
            helper: Helper::new(parts.runtime.clone()),
            runtime: parts.runtime,
            sql: parts.sql,
            known: Known::new(CROWDED),
            pushes: Pushes::new(),
            channel: parts.channel,
            closing: receive.shared(),
            closer: Lock::new(Some(send)),
            closed: AtomicBool::new(false),
            places: Places::new(parts.connections, Kept::of_before(parts.first)),
            sweep_at: std::sync::atomic::AtomicU64::new(u64::from(parts.sweep_due)),
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
    pub(super) async fn ask(
        self: &Arc<Self>,
        text: &Arc<str>,
        values: &[Value<'_>],
    ) -> Result<(Timestamp, Rows)> {
        self.once(text, values).await?.changed(&self.at)
    }

    /// A statement that may be heard twice, and answers the second time what it would have answered the first. If it is lost with a connection that had stood
    /// idle, that is `noted` and it is sent once more. If that fails, whatever it fails by, it is not known what became of the first one.
    pub(super) async fn ask_again(
        self: &Arc<Self>,
        text: &Arc<str>,
        values: &[Value<'_>],
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, Rows)> {
        let asked = self.once(text, values).await?;
        let was_idle = asked.was_idle;
        match asked.changed(&self.at) {
            Err(e) if was_idle && e.kind() == ErrorKind::Unknown => {
                noted();
                self.ask(text, values).await.map_err(|_| e)
            }
            answered => answered,
        }
    }

    /// Sends a statement and takes in the answer, whether or not it is polled. An error: it was not sent.
    async fn once(self: &Arc<Self>, text: &Arc<str>, values: &[Value<'_>]) -> Result<Asked> {
        self.open()?;
        let statement = Statement::new(self.way, text, values);
        let statement = statement.map_err(|e| nothing_done(e, &self.at))?;
        let link = self.clone();
        let asked = self.helper.help(async move {
            let mut lent = link.lend().await?;
            let (was_idle, sent) = (lent.was_idle, Timestamp::now());
            let rows = lent.run(statement).await;
            if let Err(e) = &rows {
                link.distrust(e);
            }
            Ok(Asked { was_idle, sent, rows })
        });
        asked.await
    }

    /// Where one connection broke, those that nobody uses are closed.
    fn distrust(&self, e: &sqlx::Error) {
        if is_fatal(e) {
            drop(self.places.clear());
        }
    }

    /// One that reads.
    pub(super) async fn read(self: &Arc<Self>, text: &Arc<str>, values: &[Value<'_>]) -> Result<Rows> {
        let mut asked = self.once(text, values).await?;
        if asked.was_idle && asked.rows.as_ref().is_err_and(is_fatal) {
            asked = self.once(text, values).await?;
        }
        asked.rows.map_err(|e| nothing_done(e, &self.at))
    }

    /// What is done when a connection is made.
    pub(super) fn warm(&self) -> Warm {
        match self.way {
            Way::Prepared => self.sql.warm(),
            Way::InFull => Warm::default(),
        }
    }

    /// A connection that nobody else uses.
    async fn lend(&self) -> Result<Lent> {
        self.open()?;
        let mut place = self.places.take().await;
        loop {
            self.open()?;
            if let Some(kept) = place.connection.take() {
                return Ok(Lent {
                    was_idle: !kept.is_new(),
                    conn: Some(kept.conn),
                    place: Some(place),
                    runtime: self.runtime.clone(),
                });
            }
            let connecting = connect_in_time(&self.options, self.warm(), &*self.runtime);
            let connecting = connecting.map_ok(Kept::new);
            let made = make(place, connecting, self.closing.clone(), &*self.runtime).await;
            place = match made {
                Ok(place) => place,
                Err(Unmade::Failed(e)) => return Err(nothing_done(e, &self.at)),
                Err(Unmade::Over) => {
                    self.open()?;
                    return Err(runtime_ended(ErrorKind::Unavailable));
                }
            };
        }
    }

    /// Nothing more is asked. What is on its way goes on to its end.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closer.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.pushes.close();
        for kept in self.places.clear() {
            // The server closes its end if it does not hear of it.
            let _ = kept.conn.close().await;
        }
    }
}

/// A connection that nobody uses.
struct Kept {
    conn: PgConnection,
    /// When it was made, if it has not been used.
    made: Option<Timestamp>,
}

/// What becomes of a request on a connection that was made so short a time ago is news of the store.
const NEW: Duration = Duration::from_secs(1);

impl Kept {
    fn new(conn: PgConnection) -> Self {
        let made = Some(Timestamp::now());
        Self { conn, made }
    }

    fn of_before(conn: PgConnection) -> Self {
        Self { conn, made: None }
    }

    fn is_new(&self) -> bool {
        self.made.is_some_and(|made| Timestamp::now().since(made) < NEW)
    }
}

/// Connects, for a task of the runtime: sqlx wants its context, which whoever asks need not have.
///
/// The connection is made ready before it is used: see [`Warm`].
fn connect_in_time(
    options: &PgConnectOptions,
    warm: Warm,
    runtime: &dyn Runtime,
) -> BoxFuture<'static, Result<PgConnection, sqlx::Error>> {
    let (options, over) = (options.clone(), runtime.sleep(CONNECTING));
    async move {
        let connecting = pin!(connect_and_prepare(&options, &warm));
        match select(connecting, over).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }
    .boxed()
}

/// Connects in a task of the runtime.
pub(super) async fn connect(
    options: &PgConnectOptions,
    warm: Warm,
    runtime: &dyn Runtime,
    at: &str,
) -> Result<PgConnection> {
    match apart(runtime, connect_in_time(options, warm, runtime)).await {
        Some(connected) => connected.map_err(|e| nothing_done(e, at)),
        None => Err(runtime_ended(ErrorKind::Unavailable)),
    }
}

pub(super) fn runtime_ended(kind: ErrorKind) -> Error {
    Error::new(
        kind,
        "the runtime that speaks to PostgreSQL has ended; use one that lives as long as the client",
    )
}

/// What makes a new connection ready.
#[derive(Default)]
pub(super) struct Warm {
    /// Statements and the types of their values, parsed at the server: whoever renews over a slow network has the time for one round trip, and not for two.
    pub(super) statements: Vec<(Arc<str>, Vec<PgTypeInfo>)>,
    /// Has the server compile the functions, which it does in each session anew, at the first call. That takes several milliseconds, and the first call has the
    /// name's row locked: where a hundred clients come for one name after a restart, they would do it one after the other.
    pub(super) calls: Option<Arc<str>>,
}

async fn connect_and_prepare(options: &PgConnectOptions, warm: &Warm) -> Result<PgConnection, sqlx::Error> {
    let mut conn = options.connect().await?;
    prepare(&mut conn, warm).await?;
    Ok(conn)
}

pub(super) async fn prepare(conn: &mut PgConnection, warm: &Warm) -> Result<(), sqlx::Error> {
    for (text, types) in &warm.statements {
        let text = AssertSqlSafe(text.clone()).into_sql_str();
        (&mut *conn).prepare_with(text, types).await?;
    }
    if let Some(calls) = &warm.calls {
        let called = sqlx::raw_sql(AssertSqlSafe(calls.clone())).execute(conn).await;
        // What the server refuses here it refuses again, to somebody who hears of it.
        if let Err(e) = called
            && is_fatal(&e)
        {
            return Err(e);
        }
    }
    Ok(())
}

/// What became of a statement that was sent.
struct Asked {
    /// Whether its connection was there before: what becomes of the first request on it says nothing of the store.
    was_idle: bool,
    sent: Timestamp,
    rows: Result<Rows, sqlx::Error>,
}

impl Asked {
    /// Of one that changes something.
    fn changed(self, at: &str) -> Result<(Timestamp, Rows)> {
        let sent = self.sent;
        self.rows
            .map(|rows| (sent, rows))
            .map_err(|e| perhaps_done(e, at))
    }
}

/// A connection while one request has it.
struct Lent {
    conn: Option<PgConnection>,
    place: Option<Place<Kept>>,
    /// Whether it was there before: what becomes of the first request on it says nothing of the store.
    was_idle: bool,
    runtime: Arc<dyn Runtime>,
}

impl Lent {
    async fn run(&mut self, statement: Statement) -> Result<Rows, sqlx::Error> {
        let Some(conn) = &mut self.conn else {
            return Err(sqlx::Error::WorkerCrashed);
        };
        let rows = statement.on(conn).await;
        if let (Some(conn), Some(place)) = (self.conn.take(), self.place.take())
            && !matches!(&rows, Err(e) if is_fatal(e))
        {
            place.give_back(Kept::of_before(conn));
        }
        rows
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let (Some(mut conn), Some(place)) = (self.conn.take(), self.place.take()) else {
            return;
        };
        let over = self.runtime.sleep(DRAINING);
        let draining = async move {
            let drained = {
                let ping = pin!(conn.ping());
                matches!(select(ping, over).await, Either::Left((Ok(()), _)))
            };
            if drained {
                place.give_back(Kept::of_before(conn));
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
