//! The connection, and the statements of a transaction on it.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, FencedValue, LockName, RequestId, Result, Runtime, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteLockingMode, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Sqlite};

use super::boot::{FileId, ONE_BOOT_ID, in_use};
use super::failure::{is_busy, is_fatal, nothing_done, perhaps_done};
use super::row::{bind_key, bind_row, read_glance, read_name, read_row, to_sql};
use super::schema::{DELETE, DUE, Database, GLANCE, LIST, LOAD, Meta, PUT, READ_FENCE, SET_TOKENS, migrate};
use crate::admit::{Entry, Glance, NameState, Row, Tokens, Watch};
use crate::direct::Dialect as _;
use crate::failure::foreign;
use crate::gate;
use crate::keys::{bind, get};
use crate::listing::{PAGE, Span};

/// How many statements of one kind go to the connection in one message.
const CHUNK: usize = 32;

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sync {
    /// The end of the process. A power loss may take it back, whole.
    Ordinary,
    /// A power loss that comes after it.
    Durable,
}

/// How SQLite is told of either in a WAL database, and in one with a rollback journal. There `FULL` does not
/// suffice for a durable commit: the removal of the journal is the commit, and only `EXTRA` waits for the
/// directory. `NORMAL` may damage the file.
const WAL: [&str; 2] = ["PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"];
const ROLLBACK: [&str; 2] = ["PRAGMA synchronous = FULL", "PRAGMA synchronous = EXTRA"];

/// The one connection of an opened backend.
pub(super) struct Store {
    pub(super) db: Arc<Database>,
    runtime: Arc<dyn Runtime>,
    conn: SqliteConnection,
    /// The file that is open; `None` if it is private, or if that cannot be told.
    file: Option<FileId>,
    /// How long to wait for the locks of others.
    busy_budget: Duration,
    /// By the journal mode, which stays what it is as long as this connection is open.
    pragmas: [&'static str; 2],
    /// How `synchronous` was last set.
    synchronous: &'static str,
    /// After an error that leaves the connection in doubt.
    pub(super) broken: bool,
}

impl Store {
    /// Connects and brings the tables up to date.
    pub(super) async fn open(db: Arc<Database>, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let mut patience = Patience::new(&*runtime, db.busy_budget);
        loop {
            let (options, budget) = (db.quiet(), db.busy_budget);
            let mut store = Self::connect(db.clone(), runtime.clone(), options, budget).await?;
            if store.migrate(false).await? {
                return Ok(store);
            }
            // After a restart of the machine several processes come here at once and are in one another's
            // way: one of them succeeds, and what it leaves is everybody's.
            store.close().await?;
            if !Self::take_over(db.clone(), runtime.clone()).await? && !patience.wait().await {
                return Err(in_use(&db.at));
            }
        }
    }

    /// Makes the tables of another boot ours if nobody else has the file open. Answers whether it has; no is
    /// not final.
    ///
    /// Every connection to a WAL database has a lock on the file from its first statement until it is closed,
    /// and this one asks for the lock that excludes them all. Other journal modes have no lock between
    /// transactions, so there it proves nothing.
    async fn take_over(db: Arc<Database>, runtime: Arc<dyn Runtime>) -> Result<bool> {
        let unless_busy = |e: Error| match e.source().and_then(|e| e.downcast_ref()) {
            Some(e) if is_busy(e) => Ok(false),
            _ => Err(e),
        };
        let exclusive = db.quiet().locking_mode(SqliteLockingMode::Exclusive);
        let mut store = match Self::connect(db, runtime, exclusive, Duration::ZERO).await {
            Ok(store) => store,
            Err(e) => return unless_busy(e),
        };
        let taken = match store.pragmas == WAL {
            true => store.migrate(true).await.or_else(unless_busy),
            false => Ok(false),
        };
        // What was locked for this connection alone is free when it is closed, and never before.
        let closed = store.close().await;
        taken.and_then(|taken| closed.map(|()| taken))
    }

    async fn connect(
        db: Arc<Database>,
        runtime: Arc<dyn Runtime>,
        options: SqliteConnectOptions,
        busy_budget: Duration,
    ) -> Result<Self> {
        // The options of a pool may set what needs a lock on the file, such as a journal mode.
        let mut patience = Patience::new(&*runtime, busy_budget);
        let conn = loop {
            match options.connect().await {
                Ok(conn) => break conn,
                Err(e) if is_busy(&e) && patience.wait().await => {}
                Err(e) => return Err(nothing_done(e, &db.at)),
            }
        };
        let file = match db.private {
            true => None,
            false => FileId::at(db.options.get_filename()).ok(),
        };
        let mut store = Self {
            db,
            runtime,
            conn,
            file,
            busy_budget,
            pragmas: ROLLBACK,
            synchronous: "",
            broken: false,
        };
        store.pragmas = store.choose_journal().await?;
        Ok(store)
    }

    async fn migrate(&mut self, is_alone: bool) -> Result<bool> {
        // Durable: it makes the first ceiling of the tokens.
        self.begin(Sync::Durable).await?;
        let migrated = migrate(self, is_alone).await;
        if !matches!(migrated, Ok(true)) {
            self.rollback().await;
        }
        migrated
    }

    /// Asks for WAL where that is ours to choose, and hears what it is.
    async fn choose_journal(&mut self) -> Result<[&'static str; 2]> {
        let asked = match self.db.ours && !self.db.private {
            true => "PRAGMA journal_mode = WAL",
            false => "PRAGMA journal_mode",
        };
        let mode: String = answer_of(asked, &self.ask(asked).await?)?;
        match mode.to_ascii_lowercase().as_str() {
            "wal" => Ok(WAL),
            "off" | "memory" if !self.db.private => {
                let text = format!(
                    "the SQLite database {} has the journal mode `{mode}`, which a crash can damage; open \
                     the pool with `wal`, or with `delete`, `truncate` or `persist`",
                    self.db.at
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            _ => Ok(ROLLBACK),
        }
    }

    pub(super) async fn close(self) -> Result<()> {
        let closed = self.conn.close().await;
        closed.map_err(|e| nothing_done(e, &self.db.at))
    }

    fn failed(&mut self, e: sqlx::Error) -> Error {
        self.broken |= is_fatal(&e);
        nothing_done(e, &self.db.at)
    }

    /// Runs statements once, on the tables with our prefix.
    pub(super) async fn run(
        &mut self,
        sql: &str,
        args: SqliteArguments,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let sql = AssertSqlSafe(sql.replace("{p}", &self.db.prefix));
        sqlx::query_with(sql, args).fetch_all(&mut self.conn).await
    }

    /// Runs statements that can be repeated, as long as it takes to get the locks that they need: without
    /// WAL, another connection's commit keeps readers out for a moment.
    async fn patiently(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let runtime = self.runtime.clone();
        let mut patience = Patience::new(&*runtime, self.busy_budget);
        loop {
            match self.run(sql, args.clone()).await {
                Err(e) if is_busy(&e) && patience.wait().await => {}
                done => return done,
            }
        }
    }

    async fn read(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>> {
        let read = self.patiently(sql, args).await;
        read.map_err(|e| self.failed(e))
    }

    /// What statements without values answer.
    pub(super) async fn ask(&mut self, sql: &str) -> Result<Vec<SqliteRow>> {
        self.read(sql, SqliteArguments::default()).await
    }

    /// Takes the write lock. Answers the version of what other connections have stored. If it fails nothing
    /// has begun.
    pub(super) async fn begin(&mut self, sync: Sync) -> Result<i64> {
        let pragma = self.pragmas[sync as usize];
        if pragma != self.synchronous {
            // Only outside a transaction does SQLite heed this.
            self.ask(pragma).await?;
            self.synchronous = pragma;
        }
        let begin = "BEGIN IMMEDIATE; PRAGMA data_version";
        let begun = self.ask(begin).await;
        let version = begun.and_then(|rows| self.check_file().and_then(|()| answer_of(begin, &rows)));
        if version.is_err() {
            self.rollback().await;
        }
        version
    }

    /// Nothing may be changed in a file that those who come now do not see. The next connection is made to
    /// the one that they see.
    fn check_file(&mut self) -> Result<()> {
        let path = self.db.options.get_filename();
        if !self.file.is_some_and(|file| file.has_left(path)) {
            return Ok(());
        }
        self.broken = true;
        let (at, what) = (&self.db.at, "was removed or replaced while it was open");
        let text = format!("the SQLite database {at} {what}; what was held in it is lost");
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// The version of what other connections have stored; changes of this connection do not count.
    pub(super) async fn version(&mut self) -> Result<i64> {
        let asked = "PRAGMA data_version";
        answer_of(asked, &self.ask(asked).await?)
    }

    /// The tokens, if the tables are ours still.
    pub(super) async fn tokens(&mut self) -> Result<Tokens> {
        let meta = Meta::read(self).await?;
        if meta.boot != self.db.boot.as_bytes() {
            // We made it ours when we opened. Since then it was made its own by somebody with another boot
            // id, who saw no hold of ours that runs on. From here on the two of us do not exclude one
            // another.
            let text = format!(
                "the SQLite database {} was taken over by a process with another boot id, of another machine \
                 or container; {ONE_BOOT_ID}",
                self.db.at
            );
            return Err(Error::new(ErrorKind::BackendData, text));
        }
        Ok(meta.tokens)
    }

    /// Loads those names. A row that cannot be read is the failure of its own name only.
    pub(super) async fn load(&mut self, names: &[LockName]) -> Result<HashMap<LockName, Result<NameState>>> {
        let nothing = |name: &LockName| (name.clone(), Ok(NameState::default()));
        let mut found: HashMap<LockName, Result<NameState>> = names.iter().map(nothing).collect();
        for these in in_chunks(names) {
            let mut args = SqliteArguments::default();
            for name in these {
                bind(&mut args, name.as_bytes())?;
            }
            for row in self.read(&LOAD.repeat(these.len()), args).await? {
                let Some(slot) = found.get_mut(&read_name(&row)?) else {
                    continue;
                };
                match (read_row(&row), &mut *slot) {
                    (Ok(row), Ok(state)) => state.insert_stored(row),
                    (Err(e), _) => *slot = Err(e),
                    (_, Err(_)) => {}
                }
            }
        }
        for state in found.values_mut().flatten() {
            state.rows.sort();
        }
        Ok(found)
    }

    /// The holders of that name, counted by SQLite: the cost hardly depends on the number of waiters. A row
    /// that cannot be read is the failure of its own name only.
    pub(super) async fn glance(&mut self, name: &LockName) -> Result<Result<Glance>> {
        let rows = self.read(GLANCE, named(name)?).await?;
        Ok(read_glance(&rows))
    }

    /// Names with something expired: that many after the given one, in order.
    pub(super) async fn due(&mut self, now: Timestamp, behind: &[u8], most: usize) -> Result<Vec<Vec<u8>>> {
        let mut args = SqliteArguments::default();
        bind(&mut args, to_sql(now.as_nanos()))?;
        bind(&mut args, behind)?;
        bind(&mut args, to_sql(most as u64))?;
        let rows = self.read(DUE, args).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// Names there that are held or waited for.
    pub(super) async fn list(&mut self, now: Timestamp, span: Span) -> Result<Vec<Vec<u8>>> {
        let mut args = SqliteArguments::default();
        bind(&mut args, to_sql(now.as_nanos()))?;
        bind(&mut args, span.from)?;
        bind(&mut args, span.until.clone())?;
        bind(&mut args, span.until)?;
        bind(&mut args, to_sql(PAGE as u64))?;
        let rows = self.read(LIST, args).await?;
        rows.iter().map(|row| get(row, 0)).collect()
    }

    /// The version of SQLite, and the journal mode.
    pub(super) async fn settings(&mut self) -> Result<(String, String)> {
        let mut told = Vec::new();
        for text in ["SELECT sqlite_version()", "PRAGMA journal_mode"] {
            let rows = self.ask_once(text.to_owned()).await?;
            told.push(rows.first().map_or(Ok(String::new()), |row| get(row, 0))?);
        }
        let journal = told.pop().unwrap_or_default();
        Ok((told.pop().unwrap_or_default(), journal))
    }

    /// What the fence gate keeps of a resource. What cannot be read of it is its own failure only.
    pub(super) async fn fenced(&mut self, resource: &LockName) -> Result<Result<Option<FencedValue>>> {
        let rows = self.read(READ_FENCE, named(resource)?).await?;
        Ok(gate::value::<Sqlite>(&rows))
    }

    /// What a text with values in it answers, in a transaction. It comes only once, and is not kept.
    pub(super) async fn ask_once(&mut self, text: String) -> Result<Vec<SqliteRow>> {
        let text = text.replace("{p}", &self.db.prefix);
        Sqlite::ask(&mut self.conn, text)
            .await
            .map_err(|e| self.failed(e))
    }

    /// Writes what differs, and commits.
    ///
    /// The usual change is one row and the token: all of it, commit included, is one message to the
    /// connection's thread. Not with a rollback journal that others see: there a reader can hold up a commit,
    /// which must then be repeated alone, and of a text that failed it is not known at which statement.
    pub(super) async fn write_and_commit(
        &mut self,
        changes: &[Changed<'_>],
        tokens: Option<&Tokens>,
    ) -> Result<()> {
        let at_once = changes.len() <= 2 && (self.pragmas == WAL || self.db.private);
        let mut batch = Batch::default();
        for these in in_chunks(changes) {
            for (name, id, row) in these {
                match row {
                    Some(row) => bind_row(&mut batch.args, name, *row)?,
                    None => bind_key(&mut batch.args, name, *id)?,
                }
                batch.text += if row.is_some() { PUT } else { DELETE };
            }
            self.send(&mut batch, at_once).await?;
        }
        if let Some(tokens) = tokens {
            batch.text += SET_TOKENS;
            for number in [tokens.last, tokens.ceiling, Timestamp::now().as_nanos()] {
                bind(&mut batch.args, to_sql(number))?;
            }
            self.send(&mut batch, at_once).await?;
        }
        batch.text += "COMMIT";
        let done = match at_once {
            true => self.run(&batch.text, batch.args).await,
            false => self.patiently(&batch.text, batch.args).await,
        };
        let Err(e) = done else { return Ok(()) };
        // A rollback that succeeds proves that the transaction was still open, so nothing was stored. If
        // there is nothing to roll back, SQLite has ended the transaction, and what a failed commit has
        // written may yet be found in the log when the file is next opened: the outcome is not known, and the
        // connection is made anew.
        if self.run("ROLLBACK", SqliteArguments::default()).await.is_ok() {
            return Err(self.failed(e));
        }
        self.broken = true;
        Err(perhaps_done(e, &self.db.at))
    }

    /// Sends what was gathered, unless there is more to come in the same message.
    async fn send(&mut self, batch: &mut Batch, more: bool) -> Result<()> {
        if more {
            return Ok(());
        }
        let Batch { text, args } = std::mem::take(batch);
        let done = self.run(&text, args).await;
        done.map(drop).map_err(|e| self.failed(e))
    }

    /// Undoes an open transaction. If there is none, so much the better.
    pub(super) async fn rollback(&mut self) {
        let _ = self.run("ROLLBACK", SqliteArguments::default()).await;
    }
}

/// Waits a little longer each time, with jitter, until the budget is used up. SQLite's own busy handler
/// sleeps in coarse steps and cannot be cancelled, so it is switched off.
struct Patience<'a> {
    runtime: &'a dyn Runtime,
    until: Timestamp,
    step: u32,
}

impl<'a> Patience<'a> {
    fn new(runtime: &'a dyn Runtime, budget: Duration) -> Self {
        Self {
            runtime,
            until: Timestamp::now() + budget,
            step: 0,
        }
    }

    async fn wait(&mut self) -> bool {
        if Timestamp::now() >= self.until {
            return false;
        }
        let mut random = [0u8];
        self.runtime.fill_random(&mut random);
        let micros = (100u64 << self.step.min(6)) * (128 + u64::from(random[0])) / 256;
        self.step += 1;
        self.runtime.sleep(Duration::from_micros(micros)).await;
        true
    }
}

/// A row that is to be put, or deleted if there is none.
pub(super) type Changed<'a> = (&'a LockName, RequestId, Option<Row<&'a Entry, &'a Watch>>);

/// Statements, and the values of all of them.
#[derive(Default)]
struct Batch {
    text: String,
    args: SqliteArguments,
}

fn named(name: &LockName) -> Result<SqliteArguments> {
    let mut args = SqliteArguments::default();
    bind(&mut args, name.as_bytes())?;
    Ok(args)
}

/// The one value of what a pragma answers last.
fn answer_of<'r, T>(asked: &str, rows: &'r [SqliteRow]) -> Result<T>
where
    T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
{
    let row = rows
        .last()
        .ok_or_else(|| foreign(&format!("`{asked}` answers nothing")))?;
    get(row, 0)
}

/// Parts of as many as a text of many statements takes, and then one by one.
fn in_chunks<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    let (many, rest) = all.split_at(all.len() / CHUNK * CHUNK);
    many.chunks(CHUNK).chain(rest.chunks(1))
}
