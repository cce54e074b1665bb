//! The connections of a backend, and what is asked on them: see the same file of the PostgreSQL backend, which says what could go wrong.
//!
//! What else can here, and why it does no harm:
//!
//! * *A request rests between the two halves of a transaction: nobody polls it.* A task does the rest (`helped`): whoever reads a stream of changes slowly, or lets an acquire
//!   rest, keeps no name locked. *It is dropped there*, or the runtime ends: the transaction is rolled back before the connection is used again, or with its end.
//! * *A connection broke while it stood idle.* The first half of a transaction changes nothing, so it is sent once more on another connection; a single statement is,
//!   if it may come twice ([`Link::ask_again`]). Whatever is lost later was sent on a connection that had answered a moment ago, and is `Unknown`.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, select};
use futures::{FutureExt as _, TryFutureExt as _};
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _};

use super::call::{Answer, Done, Statement, done, rows};
use super::failure::{is_fatal, nothing_done, perhaps_done};
use super::schema::Statements;
use super::sight::Sights;
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

/// A connection that was not used for so long is asked first whether it is there yet.
const IDLE: Duration = Duration::from_secs(5);

/// How long the answer to that is waited for.
const PINGING: Duration = Duration::from_secs(2);

/// What becomes of a request on a connection that was made so short a time ago is news of the store.
const NEW: Duration = Duration::from_secs(1);

/// A connection that nobody uses, and since when.
struct Idle {
    conn: MySqlConnection,
    since: Timestamp,
    was_used: bool,
}

impl Idle {
    fn made(conn: MySqlConnection) -> Self {
        Self {
            conn,
            since: Timestamp::now(),
            was_used: false,
        }
    }

    fn used(conn: MySqlConnection) -> Self {
        Self {
            conn,
            since: Timestamp::now(),
            was_used: true,
        }
    }

    fn is_new(&self) -> bool {
        !self.was_used && Timestamp::now().since(self.since) < NEW
    }
}

/// The way to the database.
pub(super) struct Link {
    options: MySqlConnectOptions,
    /// What each connection is told first.
    greeting: Arc<str>,
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    helper: Arc<Helper>,
    pub(super) sql: Statements,
    pub(super) known: Known,
    pub(super) closing: Closing,
    closer: Lock<Option<oneshot::Sender<()>>>,
    closed: AtomicBool,
    places: Arc<Places<Idle>>,
    pub(super) sights: Sights,
    /// When dead names are to be looked for, on the clock of this process.
    pub(super) sweep_at: AtomicU64,
    pub(super) sweep_every: Duration,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) options: MySqlConnectOptions,
    pub(super) greeting: Arc<str>,
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sql: Statements,
    pub(super) connections: usize,
    pub(super) sweep_every: Duration,
    /// One that is there already.
    pub(super) first: MySqlConnection,
}

impl Link {
    pub(super) fn new(parts: Parts) -> Self {
        let (send, receive) = oneshot::channel();
        Self {
            options: parts.options,
            greeting: parts.greeting,
            at: parts.at,
            helper: Helper::new(parts.runtime.clone()),
            runtime: parts.runtime,
            sql: parts.sql,
            known: Known::new(Duration::ZERO),
            closing: receive.shared(),
            closer: Lock::new(Some(send)),
            closed: AtomicBool::new(false),
            sights: Sights::default(),
            places: Places::new(parts.connections, Idle::used(parts.first)),
            sweep_at: AtomicU64::new(0),
            sweep_every: parts.sweep_every,
        }
    }

    pub(super) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "this MySQL backend was closed")),
            false => Ok(()),
        }
    }

    /// One statement that changes something and commits by itself, and may be heard twice: the second time it answers what it would have answered the first, or that
    /// there is nothing for it to do. If it is lost with a connection that had stood idle, that is `noted` and it is sent once more. If that fails, whatever it
    /// fails by, it is not known what became of the first one.
    ///
    /// When it was sent, and its insert id.
    pub(super) async fn ask_again(
        self: &Arc<Self>,
        text: &Arc<str>,
        args: impl Fn() -> Result<MySqlArguments>,
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, u64)> {
        let first = self.once(Statement::with(text, args()?), done).await?;
        let was_idle = first.was_idle;
        let told = match first.changed(&self.at) {
            Err(e) if was_idle && e.kind() == ErrorKind::Unknown => {
                noted();
                let again = self.once(Statement::with(text, args()?), done).await;
                again.and_then(|asked| asked.changed(&self.at)).map_err(|_| e)
            }
            answered => answered,
        };
        told.map(|(sent, done)| (sent, done.id))
    }

    /// A text that changes something: when it was sent, how many rows were found, and its insert id.
    pub(super) async fn tell(self: &Arc<Self>, text: String) -> Result<(Timestamp, Done)> {
        self.once(Statement::Text(text), done).await?.changed(&self.at)
    }

    /// One that may be heard twice: it is sent once more if it is lost with a connection that had stood idle.
    pub(super) async fn tell_again(self: &Arc<Self>, text: String) -> Result<(Timestamp, Done)> {
        let first = self.once(Statement::Text(text.clone()), done).await?;
        let again = first.is_no_news();
        match first.changed(&self.at) {
            Err(e) if again => self.tell(text).await.map_err(|_| e),
            told => told,
        }
    }

    /// A text that changes something; the rows that it answers in the end.
    pub(super) async fn tell_and_read(self: &Arc<Self>, text: String) -> Result<(Timestamp, Vec<MySqlRow>)> {
        self.once(Statement::Text(text), rows).await?.changed(&self.at)
    }

    /// One that reads.
    pub(super) async fn read(
        self: &Arc<Self>,
        text: &Arc<str>,
        args: MySqlArguments,
    ) -> Result<Vec<MySqlRow>> {
        self.found(Statement::with(text, args)).await
    }

    pub(super) async fn read_text(self: &Arc<Self>, text: String) -> Result<Vec<MySqlRow>> {
        self.found(Statement::Text(text)).await
    }

    async fn found(self: &Arc<Self>, statement: Statement) -> Result<Vec<MySqlRow>> {
        let mut asked = self.once(statement.clone(), rows).await?;
        if asked.is_no_news() {
            asked = self.once(statement, rows).await?;
        }
        asked.out.map_err(|e| nothing_done(e, &self.at))
    }

    /// Sends a statement and takes in the answer in that way, whether or not it is polled. An error: it was not sent.
    async fn once<T: Send + 'static>(
        self: &Arc<Self>,
        statement: Statement,
        answer: Answer<T>,
    ) -> Result<Asked<T>> {
        let link = self.clone();
        let asking = async move {
            let mut lent = link.lend().await?;
            let (was_idle, sent) = (lent.was_idle, Timestamp::now());
            let out = lent.run(statement, answer).await;
            link.finish(lent, out.as_ref().err());
            Ok(Asked { was_idle, sent, out })
        };
        self.help(asking).await
    }

    /// Does that, whether or not it is polled.
    pub(super) async fn help<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.open()?;
        self.helper.help(work).await
    }

    /// A connection that nobody else uses, in the order of asking.
    pub(super) async fn lend(&self) -> Result<Lent> {
        self.open()?;
        let mut place = self.places.take().await;
        loop {
            self.open()?;
            if let Some(idle) = place.connection.take() {
                let was_idle = !idle.is_new();
                if let Some(conn) = self.still_there(idle).await {
                    return Ok(Lent {
                        conn: Some(conn),
                        place: Some(place),
                        was_idle,
                        runtime: self.runtime.clone(),
                    });
                }
            }
            let warm = self.sql.warm();
            let connecting = connect_in_time(&self.options, &self.greeting, warm, &*self.runtime);
            let connecting = connecting.map_ok(Idle::made);
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

    /// The request is over: the connection is free for others. If it broke, those that nobody uses are not trusted either. Of what the server refused a transaction may
    /// be open, which is rolled back first.
    pub(super) fn finish(&self, mut lent: Lent, failed: Option<&sqlx::Error>) {
        if failed.is_some_and(|e| !is_fatal(e)) {
            return;
        }
        let (conn, place) = (lent.conn.take(), lent.place.take());
        if failed.is_some() {
            drop(self.places.clear());
        } else if let (Some(conn), Some(place)) = (conn, place) {
            place.give_back(Idle::used(conn));
        }
    }

    /// A server, a pooler or a firewall may have ended it meanwhile: then nothing was sent yet, and another one is made.
    async fn still_there(&self, idle: Idle) -> Option<MySqlConnection> {
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
        for Idle { conn, .. } in self.places.clear() {
            // The server closes its end if it does not hear of it.
            let _ = conn.close().await;
        }
    }
}

/// Connects, for a task of the runtime: sqlx wants its context, which whoever asks need not have.
///
/// The statements are prepared before it is used: whoever renews over a slow network has the time for one round trip, and not for two.
fn connect_in_time(
    options: &MySqlConnectOptions,
    greeting: &Arc<str>,
    warm: Vec<Arc<str>>,
    runtime: &dyn Runtime,
) -> BoxFuture<'static, Result<MySqlConnection, sqlx::Error>> {
    let (options, greeting, over) = (options.clone(), greeting.clone(), runtime.sleep(CONNECTING));
    async move {
        let connecting = pin!(async {
            let mut conn = options.connect().await?;
            sqlx::raw_sql(AssertSqlSafe(greeting)).execute(&mut conn).await?;
            prepare(&mut conn, &warm).await?;
            Ok(conn)
        });
        match select(connecting, over).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        }
    }
    .boxed()
}

/// Connects in a task of the runtime.
pub(super) async fn connect(
    options: &MySqlConnectOptions,
    greeting: &Arc<str>,
    warm: Vec<Arc<str>>,
    runtime: &dyn Runtime,
    at: &str,
) -> Result<MySqlConnection> {
    let connecting = connect_in_time(options, greeting, warm, runtime);
    match apart(runtime, connecting).await {
        Some(connected) => connected.map_err(|e| nothing_done(e, at)),
        None => Err(runtime_ended(ErrorKind::Unavailable)),
    }
}

fn runtime_ended(kind: ErrorKind) -> Error {
    Error::new(
        kind,
        "the runtime that speaks to MySQL has ended; use one that lives as long as the client",
    )
}

/// Parses those statements at the server, which remembers them for this connection.
pub(super) async fn prepare(conn: &mut MySqlConnection, warm: &[Arc<str>]) -> Result<(), sqlx::Error> {
    for text in warm {
        (&mut *conn)
            .prepare(AssertSqlSafe(text.clone()).into_sql_str())
            .await?;
    }
    Ok(())
}

/// What became of a statement that was sent.
struct Asked<T> {
    /// Whether its connection was there before.
    was_idle: bool,
    sent: Timestamp,
    out: Result<T, sqlx::Error>,
}

impl<T> Asked<T> {
    /// It was lost with a connection that had stood idle, which says nothing of the store.
    fn is_no_news(&self) -> bool {
        self.was_idle && self.out.as_ref().is_err_and(is_fatal)
    }

    /// Of one that changes something.
    fn changed(self, at: &str) -> Result<(Timestamp, T)> {
        let sent = self.sent;
        self.out.map(|out| (sent, out)).map_err(|e| perhaps_done(e, at))
    }
}

/// A connection while one request has it.
pub(super) struct Lent {
    conn: Option<MySqlConnection>,
    place: Option<Place<Idle>>,
    /// Whether it was there before: what becomes of the first request on it says nothing of the store.
    pub(super) was_idle: bool,
    runtime: Arc<dyn Runtime>,
}

impl Lent {
    pub(super) async fn run<T>(&mut self, statement: Statement, answer: Answer<T>) -> Result<T, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => answer(statement, conn).await,
            None => Err(sqlx::Error::WorkerCrashed),
        }
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
                let rolling_back = pin!(sqlx::raw_sql("ROLLBACK").execute(&mut conn));
                matches!(select(rolling_back, over).await, Either::Left((Ok(_), _)))
            };
            if drained {
                place.give_back(Idle::used(conn));
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
