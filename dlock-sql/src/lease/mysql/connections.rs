//! The connections of a backend, and what is asked on them: see the same file of the PostgreSQL backend, which says what could go wrong.
//!
//! What else can here, and why it does no harm:
//!
//! * *A request is dropped between the two halves of a transaction.* The connection is not used again before that is rolled back, and closed if that cannot be
//!   done.
//! * *A connection broke while it stood idle.* The first half of a transaction changes nothing, so it is sent once more on another connection; a single statement is,
//!   if it may come twice ([`Link::ask_again`]). Whatever is lost later was sent on a connection that had answered a moment ago, and is `Unknown`.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _};

use super::failure::{foreign, is_fatal, nothing_done, perhaps_done};
use super::schema::Statements;
use super::sight::Sights;
use super::state::{CLOCK, ENTRY, Loaded, Mark, NAME, kind, read_clock, read_name};
use super::text::list;
use crate::lease::places::{Place, Places};

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

/// A connection that nobody uses, and since when.
struct Idle {
    conn: MySqlConnection,
    since: Timestamp,
}

impl Idle {
    fn new(conn: MySqlConnection) -> Self {
        Self {
            conn,
            since: Timestamp::now(),
        }
    }
}

/// The way to the database.
pub(super) struct Link {
    options: MySqlConnectOptions,
    /// What each connection is told first.
    greeting: Arc<str>,
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sql: Statements,
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

/// What becomes of a name that has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// It is given one.
    Made,
    /// There is nothing to be done about it.
    Left,
}

/// Names in a transaction.
pub(super) struct View {
    pub(super) now: Timestamp,
    names: HashMap<LockName, Result<Loaded>>,
}

impl View {
    /// A name, with what has run out taken back; `None` if it has no row. What cannot be read of it is its own failure.
    pub(super) fn name(&mut self, name: &LockName) -> Result<Option<&mut Loaded>> {
        match self.names.get_mut(name) {
            None => Ok(None),
            Some(Ok(loaded)) => Ok(Some(loaded)),
            Some(Err(e)) => Err(e.clone()),
        }
    }

    /// One that has been given a row.
    pub(super) fn made(&mut self, name: &LockName) -> Result<&mut Loaded> {
        self.name(name)?
            .ok_or_else(|| foreign("a name whose row was made and is not there"))
    }
}

impl Link {
    pub(super) fn new(parts: Parts) -> Self {
        let (send, receive) = oneshot::channel();
        Self {
            options: parts.options,
            greeting: parts.greeting,
            at: parts.at,
            runtime: parts.runtime,
            sql: parts.sql,
            closing: receive.shared(),
            closer: Lock::new(Some(send)),
            closed: AtomicBool::new(false),
            sights: Sights::default(),
            places: Places::new(parts.connections, Idle::new(parts.first)),
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
        &self,
        text: &Arc<str>,
        args: impl Fn() -> Result<MySqlArguments>,
        noted: impl FnOnce() + Send,
    ) -> Result<(Timestamp, u64)> {
        let lent = self.lend().await?;
        let was_idle = lent.was_idle;
        match self.ask_on(lent, text, args()?).await {
            Err(e) if was_idle && e.kind() == ErrorKind::Unknown => {
                noted();
                let again = match self.lend().await {
                    Ok(lent) => self.ask_on(lent, text, args()?).await,
                    Err(e) => Err(e),
                };
                again.map_err(|_| e)
            }
            answered => answered,
        }
    }

    async fn ask_on(
        &self,
        mut lent: Lent,
        text: &Arc<str>,
        args: MySqlArguments,
    ) -> Result<(Timestamp, u64)> {
        let sent = Timestamp::now();
        let done = match &mut lent.conn {
            Some(conn) => {
                sqlx::query_with(AssertSqlSafe(text.clone()), args)
                    .execute(&mut *conn)
                    .await
            }
            None => Err(sqlx::Error::WorkerCrashed),
        };
        self.finish(lent, done.as_ref().err());
        let done = done.map_err(|e| perhaps_done(e, &self.at))?;
        Ok((sent, done.last_insert_id()))
    }

    /// A text that changes something: when it was sent, how many rows were found, and its insert id.
    pub(super) async fn tell(&self, text: String) -> Result<Told> {
        let mut lent = self.lend().await?;
        let sent = Timestamp::now();
        let done = lent.simple(text).await;
        self.finish(lent, done.as_ref().err());
        let (found, id) = done.map_err(|e| perhaps_done(e, &self.at))?;
        Ok(Told { sent, found, id })
    }

    /// One that may be heard twice: it is sent once more if it is lost with a connection that had stood idle.
    pub(super) async fn tell_again(&self, text: String) -> Result<Told> {
        let mut lent = self.lend().await?;
        let was_idle = lent.was_idle;
        let sent = Timestamp::now();
        let done = lent.simple(text.clone()).await;
        self.finish(lent, done.as_ref().err());
        match done {
            Ok((found, id)) => Ok(Told { sent, found, id }),
            Err(e) if was_idle && is_fatal(&e) => {
                let again = self.tell(text).await;
                again.map_err(|_| perhaps_done(e, &self.at))
            }
            Err(e) => Err(perhaps_done(e, &self.at)),
        }
    }

    /// A text that changes something; the rows that it answers in the end.
    pub(super) async fn tell_and_read(&self, text: String) -> Result<(Timestamp, Vec<MySqlRow>)> {
        let mut lent = self.lend().await?;
        let sent = Timestamp::now();
        let rows = lent.rows(text).await;
        self.finish(lent, rows.as_ref().err());
        let rows = rows.map_err(|e| perhaps_done(e, &self.at))?;
        Ok((sent, rows))
    }

    /// One that reads.
    pub(super) async fn read(
        &self,
        text: &Arc<str>,
        args: impl Fn() -> Result<MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        let mut again = true;
        loop {
            let mut lent = self.lend().await?;
            let was_idle = lent.was_idle;
            let args = args()?;
            let rows = match &mut lent.conn {
                Some(conn) => {
                    sqlx::query_with(AssertSqlSafe(text.clone()), args)
                        .fetch_all(&mut *conn)
                        .await
                }
                None => Err(sqlx::Error::WorkerCrashed),
            };
            self.finish(lent, rows.as_ref().err());
            match rows {
                Err(e) if was_idle && again && is_fatal(&e) => again = false,
                rows => return rows.map_err(|e| nothing_done(e, &self.at)),
            }
        }
    }

    pub(super) async fn read_text(&self, text: String) -> Result<Vec<MySqlRow>> {
        let (_, rows) = self.begin(text).await?;
        Ok(rows)
    }

    /// Sends a text that changes nothing, once more if that is lost with a connection that had stood idle; answers when it was sent. Where it has opened a transaction,
    /// `begin_on` says on which connection.
    async fn begin(&self, text: String) -> Result<(Timestamp, Vec<MySqlRow>)> {
        let (lent, sent, rows) = self.begin_on(text).await?;
        self.finish(lent, None);
        Ok((sent, rows))
    }

    async fn begin_on(&self, text: String) -> Result<(Lent, Timestamp, Vec<MySqlRow>)> {
        let mut again = true;
        loop {
            let mut lent = self.lend().await?;
            let was_idle = lent.was_idle;
            let sent = Timestamp::now();
            match lent.rows(text.clone()).await {
                Ok(rows) => return Ok((lent, sent, rows)),
                Err(e) => {
                    if is_fatal(&e) {
                        self.finish(lent, Some(&e));
                        if was_idle && again {
                            again = false;
                            continue;
                        }
                    }
                    // Of what the server refuses in the midst a transaction may be open: it is rolled back as this is dropped.
                    return Err(nothing_done(e, &self.at));
                }
            }
        }
    }

    /// A transaction on those names: they are locked and loaded, `work` changes them, and what has changed is written and committed.
    ///
    /// *Another one changes a name in between*: it cannot, the row is locked. *The commit is not answered*: that is `Unknown`. *Anything before it fails*: it
    /// is rolled back, and nothing was done.
    pub(super) async fn change<T>(
        &self,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T>,
    ) -> Result<(Timestamp, T)> {
        let (sent, done, _) = self.change_and_mark(names, absent, work).await?;
        Ok((sent, done))
    }

    /// The same; and how a look will find the one name, if nobody changes it meanwhile.
    pub(super) async fn change_and_mark<T>(
        &self,
        names: &[LockName],
        absent: Absent,
        work: impl FnOnce(&mut View) -> Result<T>,
    ) -> Result<(Timestamp, T, Option<Mark>)> {
        let text = self.sql.load(&list(names.iter().map(LockName::as_bytes)));
        let (mut lent, sent, mut rows) = self.begin_on(text.clone()).await?;
        let mut view;
        loop {
            view = load(&rows)?;
            let missing: Vec<_> = names.iter().filter(|n| !view.names.contains_key(*n)).collect();
            if absent == Absent::Left || missing.is_empty() {
                break;
            }
            // Not within the transaction: who finds there the row made by another would share a lock with it, and each would wait for the other to go.
            let mut make = "ROLLBACK; ".to_owned();
            for name in missing {
                make.push_str(&self.sql.make(name.as_bytes()));
                make.push_str("; ");
            }
            make.push_str(&text);
            rows = lent.rows(make).await.map_err(|e| nothing_done(e, &self.at))?;
        }
        let now = view.now;
        for loaded in view.names.values_mut().flatten() {
            loaded.settle(now);
        }
        let done = work(&mut view);
        let mut text = String::new();
        // What a request is refused for does not keep what has run out from being written.
        for (name, loaded) in &mut view.names {
            if let Ok(loaded) = loaded {
                loaded.write(&self.sql.prefix, name, &mut text)?;
            }
        }
        text.push_str("COMMIT");
        let committed = lent.simple(text).await;
        match &committed {
            Ok(_) => self.finish(lent, None),
            Err(e) if is_fatal(e) => self.finish(lent, Some(e)),
            // Of a refused statement the transaction stays: it is rolled back as this is dropped.
            Err(_) => drop(lent),
        }
        committed.map_err(|e| perhaps_done(e, &self.at))?;
        for (name, loaded) in &view.names {
            if let Ok(loaded) = loaded {
                self.sights.crowd(name, loaded.others() > 0);
            }
        }
        let mark = match names {
            [name] => view.names.get(name).and_then(|l| l.as_ref().ok()).map(|l| l.mark),
            _ => None,
        };
        Ok((sent, done?, mark))
    }

    /// A name as it is at one moment, without waiting for whoever changes it and without keeping anybody waiting; and the time of that moment. `None` of it: it
    /// has no row.
    pub(super) async fn look_at(&self, name: &LockName) -> Result<(Timestamp, Option<Loaded>)> {
        let (_, rows) = self.begin(self.sql.look_at(&list([name.as_bytes()]))).await?;
        let mut view = load(&rows)?;
        let mut loaded = view.names.remove(name).transpose()?;
        if let Some(loaded) = &mut loaded {
            loaded.state.loaded();
        }
        Ok((view.now, loaded))
    }

    /// A connection that nobody else uses, in the order of asking. One that is there is preferred to one that has to be made.
    async fn lend(&self) -> Result<Lent> {
        self.open()?;
        let mut place = self.places.take().await;
        self.open()?;
        let idle = match place.connection.take() {
            Some(idle) => self.still_there(idle).await,
            None => None,
        };
        let was_idle = idle.is_some();
        let conn = match idle {
            Some(conn) => conn,
            None => {
                let warm = self.sql.warm();
                connect(&self.options, &self.greeting, warm, &*self.runtime, &self.at).await?
            }
        };
        Ok(Lent {
            conn: Some(conn),
            place: Some(place),
            was_idle,
            runtime: self.runtime.clone(),
        })
    }

    /// The request is over, and no transaction is open. The connection is free for others, unless it broke: then those that nobody uses are not trusted either.
    fn finish(&self, mut lent: Lent, failed: Option<&sqlx::Error>) {
        let (conn, place) = (lent.conn.take(), lent.place.take());
        if failed.is_some_and(is_fatal) {
            drop(self.places.clear());
        } else if let (Some(conn), Some(place)) = (conn, place) {
            place.give_back(Idle::new(conn));
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

fn load(rows: &[MySqlRow]) -> Result<View> {
    let mut view = View {
        now: Timestamp::ZERO,
        names: HashMap::new(),
    };
    for row in rows {
        match kind(row)? {
            NAME => {
                view.names.insert(read_name(row)?, Loaded::new(row));
            }
            ENTRY => {
                // Rows of a name that has none itself are left of nothing, and in nobody's way.
                let Some(slot) = view.names.get_mut(&read_name(row)?) else {
                    continue;
                };
                if let Ok(loaded) = slot
                    && let Err(e) = loaded.add(row)
                {
                    *slot = Err(e);
                }
            }
            CLOCK => view.now = read_clock(row)?,
            _ => return Err(foreign("a row that was not asked for")),
        }
    }
    match view.now == Timestamp::ZERO {
        true => Err(foreign("no time of the server")),
        false => Ok(view),
    }
}

/// Connects in a task of the runtime: sqlx wants its context, which whoever asks need not have.
///
/// The statements are prepared before it is used: whoever renews over a slow network has the time for one round trip, and not for two.
pub(super) async fn connect(
    options: &MySqlConnectOptions,
    greeting: &Arc<str>,
    warm: Vec<Arc<str>>,
    runtime: &dyn Runtime,
    at: &str,
) -> Result<MySqlConnection> {
    let (send, receive) = oneshot::channel();
    let (options, greeting, over) = (options.clone(), greeting.clone(), runtime.sleep(CONNECTING));
    let connecting = async move {
        let connected = {
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
        };
        // Nobody may wait any more: then it is closed by this.
        let _ = send.send(connected);
    };
    runtime.spawn(connecting.boxed());
    match receive.await {
        Ok(connected) => connected.map_err(|e| nothing_done(e, at)),
        Err(_) => Err(Error::new(
            ErrorKind::Unavailable,
            "the runtime that connects to MySQL has ended; use one that lives as long as the client",
        )),
    }
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

/// What became of a text.
pub(super) struct Told {
    pub(super) sent: Timestamp,
    pub(super) found: u64,
    pub(super) id: u64,
}

/// A connection while one request has it.
struct Lent {
    conn: Option<MySqlConnection>,
    place: Option<Place<Idle>>,
    /// Whether it was there before: what becomes of the first request on it says nothing of the store.
    was_idle: bool,
    runtime: Arc<dyn Runtime>,
}

impl Lent {
    async fn rows(&mut self, text: String) -> Result<Vec<MySqlRow>, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await,
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }

    async fn simple(&mut self, text: String) -> Result<(u64, u64), sqlx::Error> {
        match &mut self.conn {
            Some(conn) => {
                let done = sqlx::raw_sql(AssertSqlSafe(text)).execute(conn).await?;
                Ok((done.rows_affected(), done.last_insert_id()))
            }
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
                place.give_back(Idle::new(conn));
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
