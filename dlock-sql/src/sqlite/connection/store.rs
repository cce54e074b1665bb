//! The connection, and the statements of a transaction on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{
    Access, Admission, Error, ErrorKind, FencedValue, LockName, RequestId, Result, Runtime, Timestamp, Token,
};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Sqlite};

use crate::admit::{Entry, Glance, NameState, Row, Watch};
use crate::gate;
use crate::sqlite::boot::{FileId, ONE_BOOT_ID, in_use};
use crate::sqlite::failure::{foreign_row, is_busy, is_fatal, nothing_done, perhaps_done};
use crate::sqlite::row::{bind, bind_key, bind_row, column, read_glance, read_name, read_row, to_sql};
use crate::sqlite::schema::{CHUNK, Database, Meta, migrate};
use crate::sqlite::take_over::take_over;

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sqlite) enum Sync {
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
pub(in crate::sqlite) struct Store {
    pub(in crate::sqlite) db: Arc<Database>,
    runtime: Arc<dyn Runtime>,
    conn: SqliteConnection,
    /// The file that is open; `None` if it is private, or if that cannot be told.
    file: Option<FileId>,
    /// By the journal mode, which stays what it is as long as this connection is open.
    pragmas: [&'static str; 2],
    /// How `synchronous` was last set.
    synchronous: &'static str,
    in_transaction: bool,
    /// After an error that leaves the connection in doubt.
    pub(super) broken: bool,
}

impl Store {
    /// Connects and brings the tables up to date.
    pub(in crate::sqlite) async fn open(db: Arc<Database>, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let mut patience = Patience::new(&*runtime, db.busy_budget);
        loop {
            let mut store = Self::connect(db.clone(), runtime.clone()).await?;
            if store.migrate().await? {
                return Ok(store);
            }
            // After a restart of the machine several processes come here at once and are in one another's
            // way: one of them succeeds, and what it leaves is everybody's.
            store.close().await?;
            if !take_over(&db).await? && !patience.wait().await {
                return Err(in_use(&db.at));
            }
        }
    }

    async fn connect(db: Arc<Database>, runtime: Arc<dyn Runtime>) -> Result<Self> {
        // The options of a pool may set what needs a lock on the file, such as a journal mode.
        let mut patience = Patience::new(&*runtime, db.busy_budget);
        let conn = loop {
            match db.quiet().connect().await {
                Ok(conn) => break conn,
                Err(e) if is_busy(&e) && patience.wait().await => {}
                Err(e) => return Err(nothing_done(e, &db.at)),
            }
        };
        let file = match db.private {
            true => None,
            false => FileId::at(db.options.get_filename()),
        };
        let mut store = Self {
            db,
            runtime,
            conn,
            file,
            pragmas: ROLLBACK,
            synchronous: "",
            in_transaction: false,
            broken: false,
        };
        store.pragmas = store.choose_journal().await?;
        Ok(store)
    }

    async fn migrate(&mut self) -> Result<bool> {
        // Durable: it makes the first ceiling of the tokens.
        self.begin(Sync::Durable).await?;
        let migrated = migrate(&mut self.conn, &self.db, false).await;
        match migrated {
            Ok(true) => self.commit().await?,
            _ => self.rollback().await,
        }
        migrated
    }

    /// Asks for WAL where that is ours to choose, and hears what it is.
    async fn choose_journal(&mut self) -> Result<[&'static str; 2]> {
        let asked = match self.db.ours && !self.db.private {
            true => "PRAGMA journal_mode = WAL",
            false => "PRAGMA journal_mode",
        };
        let rows = self.read(asked, SqliteArguments::default()).await?;
        let mode: String = answer_of(asked, &rows)?;
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

    pub(in crate::sqlite) async fn close(self) -> Result<()> {
        let closed = self.conn.close().await;
        closed.map_err(|e| nothing_done(e, &self.db.at))
    }

    fn failed(&mut self, e: sqlx::Error) -> Error {
        self.broken |= is_fatal(&e);
        nothing_done(e, &self.db.at)
    }

    pub(super) async fn run(
        &mut self,
        sql: &str,
        args: SqliteArguments,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        sqlx::query_with(AssertSqlSafe(sql.to_owned()), args)
            .fetch_all(&mut self.conn)
            .await
    }

    /// Runs statements that can be repeated, as long as it takes to get the locks that they need.
    async fn patiently(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>, sqlx::Error> {
        let runtime = self.runtime.clone();
        let mut patience = Patience::new(&*runtime, self.db.busy_budget);
        loop {
            match self.run(sql, args.clone()).await {
                Err(e) if is_busy(&e) && patience.wait().await => {}
                done => return done,
            }
        }
    }

    /// Reads. Without WAL, another connection's commit keeps readers out for a moment; within our own write
    /// transaction nobody can be in the way.
    async fn read(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>> {
        let read = match self.in_transaction {
            true => self.run(sql, args).await,
            false => self.patiently(sql, args).await,
        };
        read.map_err(|e| self.failed(e))
    }

    /// Takes the write lock. Answers the version of what other connections have stored. If it fails nothing
    /// has begun.
    pub(in crate::sqlite) async fn begin(&mut self, sync: Sync) -> Result<i64> {
        let pragma = self.pragmas[sync as usize];
        if pragma != self.synchronous {
            // Only outside a transaction does SQLite heed this.
            self.read(pragma, SqliteArguments::default()).await?;
            self.synchronous = pragma;
        }
        let begin = "BEGIN IMMEDIATE; PRAGMA data_version";
        let begun = self.read(begin, SqliteArguments::default()).await;
        self.in_transaction = begun.is_ok();
        let version = begun.and_then(|rows| self.check_file().and_then(|()| answer_of(begin, &rows)));
        if version.is_err() {
            self.rollback().await;
        }
        version
    }

    /// Nothing may be changed in a file that those who come now do not see. The next connection is made to
    /// the one that they see.
    fn check_file(&mut self) -> Result<()> {
        if !self
            .file
            .is_some_and(|file| file.has_left(self.db.options.get_filename()))
        {
            return Ok(());
        }
        self.broken = true;
        let (at, what) = (&self.db.at, "was removed or replaced while it was open");
        let text = format!("the SQLite database {at} {what}; what was held in it is lost");
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    /// The version of what other connections have stored; changes of this connection do not count.
    pub(in crate::sqlite) async fn version(&mut self) -> Result<i64> {
        let asked = "PRAGMA data_version";
        let rows = self.read(asked, SqliteArguments::default()).await?;
        answer_of(asked, &rows)
    }

    pub(in crate::sqlite) async fn meta(&mut self) -> Result<Meta> {
        let db = self.db.clone();
        let rows = self.read(&db.sql.meta, SqliteArguments::default()).await?;
        let meta = Meta::read(rows.first(), &db.at)?;
        if meta.boot != db.boot.as_bytes() {
            // We made it ours when we opened. Since then it was made its own by somebody with another boot
            // id, who saw no hold of ours that runs on. From here on the two of us do not exclude one
            // another.
            let text = format!(
                "the SQLite database {} was taken over by a process with another boot id, of another machine \
                 or container; {ONE_BOOT_ID}",
                db.at
            );
            return Err(Error::new(ErrorKind::BackendData, text));
        }
        Ok(meta)
    }

    /// Loads those names. A row that cannot be read is the failure of its own name only.
    pub(in crate::sqlite) async fn load(
        &mut self,
        names: &[LockName],
    ) -> Result<HashMap<LockName, Result<NameState>>> {
        let db = self.db.clone();
        let mut found: HashMap<LockName, Result<NameState>> = names
            .iter()
            .map(|n| (n.clone(), Ok(NameState::default())))
            .collect();
        for these in in_chunks(names) {
            let sql = &db.sql.load[usize::from(these.len() > 1)];
            let mut args = SqliteArguments::default();
            for name in these {
                bind(&mut args, name.as_bytes())?;
            }
            let rows = self.read(sql, args).await?;
            for row in rows {
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
            state.loaded();
        }
        Ok(found)
    }

    /// Who holds that name, counted by SQLite: what it costs hardly depends on how many wait. A row that
    /// cannot be read is the failure of its own name only.
    pub(in crate::sqlite) async fn glance(&mut self, name: &LockName) -> Result<Result<Glance>> {
        let db = self.db.clone();
        let rows = self.read(&db.sql.glance, named(name)?).await?;
        Ok(read_glance(&rows))
    }

    /// Names with something that has run out: the first of them behind that one, in order.
    pub(in crate::sqlite) async fn due(&mut self, now: Timestamp, behind: &[u8]) -> Result<Vec<Vec<u8>>> {
        let db = self.db.clone();
        let mut args = SqliteArguments::default();
        bind(&mut args, to_sql(now.as_nanos()))?;
        bind(&mut args, behind)?;
        let rows = self.read(&db.sql.due, args).await?;
        rows.iter().map(|row| column(row, 0)).collect()
    }

    /// What the fence gate keeps of a resource. What cannot be read of it is its own failure only.
    pub(in crate::sqlite) async fn fenced(
        &mut self,
        resource: &LockName,
    ) -> Result<Result<Option<FencedValue>>> {
        let db = self.db.clone();
        let rows = self.read(&db.sql.read_fence, named(resource)?).await?;
        Ok(gate::value::<Sqlite>(&rows))
    }

    /// Has the fence gate let a holder pass, and write if there is a value.
    pub(in crate::sqlite) async fn pass(
        &mut self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Result<Admission>> {
        let table = &self.db.sql.fence;
        let admitted = gate::admit::<Sqlite>(&mut self.conn, table, resource, token, access, value).await;
        admitted.map_err(|e| self.failed(e))
    }

    /// Writes what differs, and commits.
    ///
    /// The usual change is one row and the token: all of it, commit included, is one message to the
    /// connection's thread. Not in a database of somebody else's journal mode: there a reader can hold up a
    /// commit, which must then be repeated alone, and of a text that failed it is not known at which
    /// statement.
    pub(in crate::sqlite) async fn write_and_commit(
        &mut self,
        puts: &[(&LockName, Row<&Entry, &Watch>)],
        deletes: &[(&LockName, RequestId)],
        tokens: Option<(u64, u64)>,
    ) -> Result<()> {
        let db = self.db.clone();
        let sql = &db.sql;
        let at_once = puts.len() + deletes.len() <= 2 && db.ours;
        let mut batch = Batch {
            text: String::with_capacity(if at_once { 256 } else { 0 }),
            ..Batch::default()
        };
        for these in in_chunks(deletes) {
            batch.text.push_str(&sql.delete[usize::from(these.len() > 1)]);
            for (name, id) in these {
                bind_key(&mut batch.args, name, *id)?;
            }
            self.send(&mut batch, at_once).await?;
        }
        for these in in_chunks(puts) {
            batch.text.push_str(&sql.put[usize::from(these.len() > 1)]);
            for (name, row) in these {
                bind_row(&mut batch.args, name, *row)?;
            }
            self.send(&mut batch, at_once).await?;
        }
        if let Some((last, ceiling)) = tokens {
            batch.text.push_str(&sql.set_tokens);
            for number in [last, ceiling, Timestamp::now().as_nanos()] {
                bind(&mut batch.args, to_sql(number))?;
            }
            self.send(&mut batch, at_once).await?;
        }
        if !at_once {
            return self.commit().await;
        }
        batch.text.push_str("COMMIT");
        let done = self.run(&batch.text, batch.args).await;
        self.ended(done).await
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

    /// Commits, and waits for readers that are in the way (they are only in the rollback journal modes).
    async fn commit(&mut self) -> Result<()> {
        let done = self.patiently("COMMIT", SqliteArguments::default()).await;
        self.ended(done).await
    }

    /// Judges what came of a text that ended with a commit.
    ///
    /// A rollback that succeeds proves that the transaction was still open, so nothing was stored. If there
    /// is nothing to roll back, SQLite has ended the transaction by itself, and what a failed commit has
    /// written may yet be found in the log when the file is next opened: the outcome is not known, and the
    /// connection is made anew.
    async fn ended(&mut self, done: Result<Vec<SqliteRow>, sqlx::Error>) -> Result<()> {
        self.in_transaction = false;
        let Err(e) = done else { return Ok(()) };
        if self.run("ROLLBACK", SqliteArguments::default()).await.is_ok() {
            return Err(self.failed(e));
        }
        self.broken = true;
        Err(perhaps_done(e, &self.db.at))
    }

    /// Undoes an open transaction. If there is none, so much the better.
    pub(in crate::sqlite) async fn rollback(&mut self) {
        self.in_transaction = false;
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
        .ok_or_else(|| foreign_row(&format!("`{asked}` answers nothing")))?;
    column(row, 0)
}

/// Parts of as many as a text of many statements takes, and then one by one.
fn in_chunks<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    let (many, rest) = all.split_at(all.len() / CHUNK * CHUNK);
    many.chunks(CHUNK).chain(rest.chunks(1))
}
