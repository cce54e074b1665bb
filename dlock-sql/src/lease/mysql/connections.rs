//! The connections of a backend, and what is asked on them: see the same file of the PostgreSQL backend, which says what could go wrong.
//!
//! One thing more can here: *a request is dropped between the two halves of a transaction.* The connection is not used again before that is rolled back, and
//! closed if that cannot be done.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use dlock_core::spi::Inspection;
use dlock_core::{Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use futures::lock::{Mutex, OwnedMutexGuard};
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::failure::{foreign, nothing_done, perhaps_done};
use super::schema::Statements;
use super::state::{CLOCK, ENTRY, Loaded, NAME, kind, read_clock, read_name};
use super::text::list;

/// How long it may take to connect.
const CONNECTING: Duration = Duration::from_secs(10);

/// How long the answer of a request that was dropped is waited for.
const DRAINING: Duration = Duration::from_secs(10);

/// Completes when the backend is closed or dropped.
pub(super) type Closing = Shared<oneshot::Receiver<()>>;

type Slot = Arc<Mutex<Option<MySqlConnection>>>;

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
    slots: Vec<Slot>,
    next: AtomicUsize,
    /// When dead names are to be looked for, on the clock of this process.
    pub(super) sweep_at: AtomicU64,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) options: MySqlConnectOptions,
    pub(super) greeting: Arc<str>,
    pub(super) at: Arc<str>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) sql: Statements,
    pub(super) connections: usize,
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
        let mut first = Some(parts.first);
        let slots = (0..parts.connections.max(1)).map(|_| Arc::new(Mutex::new(first.take())));
        let slots = slots.collect();
        Self {
            options: parts.options,
            greeting: parts.greeting,
            at: parts.at,
            runtime: parts.runtime,
            sql: parts.sql,
            closing: receive.shared(),
            closer: Lock::new(Some(send)),
            closed: AtomicBool::new(false),
            slots,
            next: AtomicUsize::new(0),
            sweep_at: AtomicU64::new(0),
        }
    }

    pub(super) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "this MySQL backend was closed")),
            false => Ok(()),
        }
    }

    /// One statement that changes something and commits by itself: when it was sent, and its insert id.
    pub(super) async fn ask(&self, text: &Arc<str>, args: MySqlArguments) -> Result<(Timestamp, u64)> {
        let mut lent = self.lend().await?;
        let sent = Timestamp::now();
        let done = match &mut lent.conn {
            Some(conn) => {
                sqlx::query_with(AssertSqlSafe(text.clone()), args)
                    .execute(&mut *conn)
                    .await
            }
            None => Err(sqlx::Error::WorkerCrashed),
        };
        lent.finish(done.as_ref().err());
        let done = done.map_err(|e| perhaps_done(e, &self.at))?;
        Ok((sent, done.last_insert_id()))
    }

    /// The same of a text, of which it is told how many rows were found.
    pub(super) async fn tell(&self, text: String) -> Result<u64> {
        let mut lent = self.lend().await?;
        let done = lent.simple(text).await;
        lent.finish(done.as_ref().err());
        done.map_err(|e| perhaps_done(e, &self.at))
    }

    /// One that reads.
    pub(super) async fn read(&self, text: &Arc<str>, args: MySqlArguments) -> Result<Vec<MySqlRow>> {
        let mut lent = self.lend().await?;
        let rows = match &mut lent.conn {
            Some(conn) => {
                sqlx::query_with(AssertSqlSafe(text.clone()), args)
                    .fetch_all(&mut *conn)
                    .await
            }
            None => Err(sqlx::Error::WorkerCrashed),
        };
        lent.finish(rows.as_ref().err());
        rows.map_err(|e| nothing_done(e, &self.at))
    }

    pub(super) async fn read_text(&self, text: String) -> Result<Vec<MySqlRow>> {
        let mut lent = self.lend().await?;
        let rows = lent.rows(text).await;
        lent.finish(rows.as_ref().err());
        rows.map_err(|e| nothing_done(e, &self.at))
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
        let mut lent = self.lend().await?;
        let text = self.sql.load(&list(names.iter().map(LockName::as_bytes)));
        let sent = Timestamp::now();
        let mut view;
        loop {
            let rows = lent
                .rows(text.clone())
                .await
                .map_err(|e| nothing_done(e, &self.at))?;
            view = load(&rows)?;
            let missing: Vec<_> = names.iter().filter(|n| !view.names.contains_key(*n)).collect();
            if absent == Absent::Left || missing.is_empty() {
                break;
            }
            // Within the transaction, who finds the row made by another would share a lock with it, and each would wait for the other to go.
            lent.rollback().await.map_err(|e| nothing_done(e, &self.at))?;
            for name in missing {
                let made = lent.simple(self.sql.make(name.as_bytes())).await;
                made.map_err(|e| nothing_done(e, &self.at))?;
            }
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
            Ok(_) => lent.finish(None),
            // Of a refused statement the transaction stays: it is rolled back as this is dropped.
            Err(e) if e.as_database_error().is_none() => lent.finish(Some(e)),
            Err(_) => {}
        }
        committed.map_err(|e| perhaps_done(e, &self.at))?;
        Ok((sent, done?))
    }

    /// A name as it is at one moment, without waiting for whoever changes it and without keeping anybody waiting.
    pub(super) async fn look_at(&self, name: &LockName) -> Result<Inspection> {
        let mut lent = self.lend().await?;
        let rows = lent.rows(self.sql.look_at(&list([name.as_bytes()]))).await;
        // Of what the server refuses in the midst a transaction may be open: it is rolled back as this is dropped.
        let rows = rows.map_err(|e| nothing_done(e, &self.at))?;
        lent.finish(None);
        let mut view = load(&rows)?;
        let now = view.now;
        Ok(view.name(name)?.map_or_else(Inspection::default, |loaded| {
            loaded.state.loaded();
            loaded.state.inspect(now)
        }))
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
            Some(conn) => conn,
            None => connect(&self.options, &self.greeting, &*self.runtime, &self.at).await?,
        };
        Ok(Lent {
            conn: Some(conn),
            slot: Some(slot),
            runtime: self.runtime.clone(),
        })
    }

    /// Nothing more is asked. What is on its way goes on to its end.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.closer.lock().unwrap_or_else(PoisonError::into_inner).take();
        for slot in &self.slots {
            let conn = slot.try_lock().and_then(|mut slot| slot.take());
            if let Some(conn) = conn {
                // The server closes its end if it does not hear of it.
                let _ = conn.close().await;
            }
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
pub(super) async fn connect(
    options: &MySqlConnectOptions,
    greeting: &Arc<str>,
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

/// A connection while one request has it.
struct Lent {
    conn: Option<MySqlConnection>,
    slot: Option<OwnedMutexGuard<Option<MySqlConnection>>>,
    runtime: Arc<dyn Runtime>,
}

impl Lent {
    async fn rows(&mut self, text: String) -> Result<Vec<MySqlRow>, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await,
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }

    async fn simple(&mut self, text: String) -> Result<u64, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => {
                let done = sqlx::raw_sql(AssertSqlSafe(text)).execute(conn).await?;
                Ok(done.rows_affected())
            }
            None => Err(sqlx::Error::WorkerCrashed),
        }
    }

    async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.simple("ROLLBACK".to_owned()).await.map(drop)
    }

    /// The request is over, and no transaction is open. The connection is free for others, unless it is that which failed.
    fn finish(&mut self, failed: Option<&sqlx::Error>) {
        let conn = self.conn.take();
        if let Some(mut slot) = self.slot.take()
            && failed.is_none_or(|e| e.as_database_error().is_some())
        {
            *slot = conn;
        }
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
                let rolling_back = pin!(sqlx::raw_sql("ROLLBACK").execute(&mut conn));
                matches!(select(rolling_back, over).await, Either::Left((Ok(_), _)))
            };
            if drained {
                *slot = Some(conn);
            }
        };
        self.runtime.spawn(draining.boxed());
    }
}
