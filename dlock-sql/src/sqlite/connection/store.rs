//! The connection, and the statements of a transaction on it.

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::RequestId;
use dlock_core::{Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, Sqlite};

use super::database::{Database, Journal, Patience, Sync};
use crate::admit::{Entry, Glance, NameState, Row, Watch};
use crate::gate;
use crate::sqlite::boot::{FileId, ONE_BOOT_ID, in_use, take_over};
use crate::sqlite::failure::{foreign_row, is_busy, is_fatal, nothing_done, perhaps_done};
use crate::sqlite::gate::{AskGate, GateAnswer};
use crate::sqlite::row::{bind, bind_key, bind_row, read_glance, read_name, read_row};
use crate::sqlite::schema::{CHUNK, Company, Meta, Migrated, migrate, to_sql};

/// The one connection of an opened backend.
pub(in crate::sqlite) struct Store {
    pub(in crate::sqlite) db: Arc<Database>,
    runtime: Arc<dyn Runtime>,
    conn: SqliteConnection,
    /// The file that is open; `None` if it is private, or if that cannot be told.
    file: Option<FileId>,
    journal: Journal,
    /// How `synchronous` was last set.
    synchronous: &'static str,
    in_transaction: bool,
    /// After an error that leaves the connection in doubt.
    broken: bool,
}

impl Store {
    /// Connects and brings the tables up to date.
    pub(in crate::sqlite) async fn open(db: Arc<Database>, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let mut patience = Patience::new(&*runtime, db.busy_budget);
        loop {
            let mut store = Self::connect(db.clone(), runtime.clone()).await?;
            if store.migrate().await? == Migrated::Ours {
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
            false => FileId::at(db.path()),
        };
        let mut store = Self {
            db,
            runtime,
            conn,
            file,
            journal: Journal::Other,
            synchronous: "",
            in_transaction: false,
            broken: false,
        };
        store.journal = store.find_journal().await?;
        Ok(store)
    }

    async fn migrate(&mut self) -> Result<Migrated> {
        // Durable: it makes the first ceiling of the tokens.
        self.begin(Sync::Durable).await?;
        let db = self.db.clone();
        let migrated = migrate(&mut self.conn, &db.sql, db.boot, &db.at, Company::Perhaps).await;
        if matches!(migrated, Ok(Migrated::Ours)) {
            self.commit().await?;
        } else {
            self.rollback().await;
        }
        migrated
    }

    /// Asks for WAL where that is ours to choose, and hears what it is.
    async fn find_journal(&mut self) -> Result<Journal> {
        let choose = self.db.ours && !self.db.private;
        let rows = self
            .patiently(
                if choose {
                    "PRAGMA journal_mode = WAL"
                } else {
                    "PRAGMA journal_mode"
                },
                SqliteArguments::default(),
            )
            .await?;
        let mode: String = rows
            .last()
            .and_then(|row| row.try_get(0).ok())
            .ok_or_else(|| foreign_row("PRAGMA journal_mode answers nothing"))?;
        match mode.to_ascii_lowercase().as_str() {
            "wal" => Ok(Journal::Wal),
            "off" | "memory" if !self.db.private => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the SQLite database {} has the journal mode `{mode}`, which a crash can damage; \
                     open the pool with `wal`, or with `delete`, `truncate` or `persist`",
                    self.at()
                ),
            )),
            _ => Ok(Journal::Other),
        }
    }

    fn at(&self) -> &str {
        &self.db.at
    }

    pub(in crate::sqlite) fn is_broken(&self) -> bool {
        self.broken
    }

    #[cfg(test)]
    pub(in crate::sqlite) fn mark_broken(&mut self) {
        self.broken = true;
    }

    pub(in crate::sqlite) async fn close(self) -> Result<()> {
        let at = self.db.clone();
        self.conn.close().await.map_err(|e| nothing_done(e, &at.at))
    }

    fn failed(&mut self, e: sqlx::Error) -> Error {
        self.broken |= is_fatal(&e);
        nothing_done(e, &self.db.at)
    }

    async fn run(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>, sqlx::Error> {
        sqlx::query_with(AssertSqlSafe(sql.to_owned()), args)
            .fetch_all(&mut self.conn)
            .await
    }

    /// Runs statements that can be repeated, as long as it takes to get the locks that they need.
    async fn patiently(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>> {
        let runtime = self.runtime.clone();
        let mut patience = Patience::new(&*runtime, self.db.busy_budget);
        loop {
            match self.run(sql, args.clone()).await {
                Ok(rows) => return Ok(rows),
                Err(e) if is_busy(&e) => {
                    if !patience.wait().await {
                        return Err(self.failed(e));
                    }
                }
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    /// Reads. Without WAL, another connection's commit keeps readers out for a moment; within our own write
    /// transaction nobody can be in the way.
    async fn read(&mut self, sql: &str, args: SqliteArguments) -> Result<Vec<SqliteRow>> {
        if self.in_transaction {
            return self.run(sql, args).await.map_err(|e| self.failed(e));
        }
        self.patiently(sql, args).await
    }

    /// Takes the write lock. Answers the version of what other connections have stored. If it fails nothing
    /// has begun.
    pub(in crate::sqlite) async fn begin(&mut self, sync: Sync) -> Result<i64> {
        let pragma = sync.pragma(self.journal);
        if pragma != self.synchronous {
            // Only outside a transaction does SQLite heed this.
            self.patiently(pragma, SqliteArguments::default()).await?;
            self.synchronous = pragma;
        }
        let begin = "BEGIN IMMEDIATE; PRAGMA data_version";
        match self.patiently(begin, SqliteArguments::default()).await {
            Ok(rows) => {
                self.in_transaction = true;
                let version = self.check_file().and_then(|()| self.version_of(&rows));
                if version.is_err() {
                    self.rollback().await;
                }
                version
            }
            Err(e) => {
                self.rollback().await;
                Err(e)
            }
        }
    }

    /// Nothing may be changed in a file that those who come now do not see. The next connection is made to
    /// the one that they see.
    fn check_file(&mut self) -> Result<()> {
        if !self.file.is_some_and(|file| file.has_left(self.db.path())) {
            return Ok(());
        }
        self.broken = true;
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the SQLite database {} was removed or replaced while it was open; what was held in it is \
                 lost",
                self.at()
            ),
        ))
    }

    /// The version of what other connections have stored; changes of this connection do not count.
    pub(in crate::sqlite) async fn version(&mut self) -> Result<i64> {
        let rows = self
            .patiently("PRAGMA data_version", SqliteArguments::default())
            .await?;
        self.version_of(&rows)
    }

    fn version_of(&self, rows: &[SqliteRow]) -> Result<i64> {
        rows.last()
            .and_then(|row| row.try_get(0).ok())
            .ok_or_else(|| foreign_row("PRAGMA data_version answers nothing"))
    }

    pub(in crate::sqlite) async fn meta(&mut self) -> Result<Meta> {
        let db = self.db.clone();
        let rows = self.read(&db.sql.meta, SqliteArguments::default()).await?;
        let meta = Meta::read(rows.first(), &db.at)?;
        if meta.boot != db.boot.as_bytes() {
            // We made it ours when we opened. Since then it was made its own by somebody with another boot
            // id, who saw no hold of ours that runs on. From here on the two of us do not exclude one
            // another.
            return Err(Error::new(
                ErrorKind::BackendData,
                format!(
                    "the SQLite database {} was taken over by a process with another boot id, of another \
                     machine or container; \
                     {ONE_BOOT_ID}",
                    self.at()
                ),
            ));
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
        let mut args = SqliteArguments::default();
        bind(&mut args, name.as_bytes())?;
        let rows = self.read(&db.sql.glance, args).await?;
        Ok(read_glance(&rows))
    }

    /// Names with something that has run out: the first of them behind that one, in
    /// order.
    pub(in crate::sqlite) async fn due(&mut self, now: Timestamp, behind: &[u8]) -> Result<Vec<Vec<u8>>> {
        let db = self.db.clone();
        let mut args = SqliteArguments::default();
        bind(&mut args, to_sql(now.as_nanos()))?;
        bind(&mut args, behind)?;
        let rows = self.read(&db.sql.due, args).await?;
        rows.iter()
            .map(|row| row.try_get(0).map_err(|_| foreign_row("a name")))
            .collect()
    }

    /// Asks the fence gate. What cannot be read of a resource is the failure of that resource only.
    pub(in crate::sqlite) async fn ask_gate(&mut self, ask: &AskGate) -> Result<Result<GateAnswer>> {
        let db = self.db.clone();
        let table = &db.sql.fence;
        let AskGate::Pass {
            resource,
            token,
            access,
            value,
        } = ask
        else {
            return self.read_gate(table, ask.resource()).await;
        };
        let value = value.as_deref();
        let asked = gate::admit::<Sqlite>(&mut self.conn, table, resource, *token, *access, value).await;
        let admitted = asked.map_err(|e| self.failed(e))?;
        Ok(admitted.map(GateAnswer::Admission))
    }

    async fn read_gate(&mut self, table: &str, resource: &LockName) -> Result<Result<GateAnswer>> {
        let runtime = self.runtime.clone();
        let mut patience = Patience::new(&*runtime, self.db.busy_budget);
        loop {
            match gate::read::<Sqlite>(&mut self.conn, table, resource).await {
                Ok(value) => return Ok(value.map(GateAnswer::Value)),
                Err(e) if is_busy(&e) && patience.wait().await => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    /// Writes what differs, and commits.
    pub(in crate::sqlite) async fn write_and_commit(
        &mut self,
        puts: &[(&LockName, Row<&Entry, &Watch>)],
        deletes: &[(&LockName, RequestId)],
        tokens: Option<(u64, u64)>,
    ) -> Result<()> {
        let db = self.db.clone();
        let seen = to_sql(Timestamp::now().as_nanos());
        let sql = &db.sql;
        // The usual change is one row and the token: all of it, commit included, is one message to the
        // connection's thread. Not in a database of somebody else's journal mode: there a reader can hold up
        // a commit, which must then be repeated alone, and of a text that failed it is not known at which
        // statement.
        let small = puts.len() + deletes.len() <= 2 && db.ours;
        if small {
            let mut text = String::with_capacity(256);
            let mut args = SqliteArguments::default();
            for (name, id) in deletes {
                text.push_str(&sql.delete[0]);
                bind_key(&mut args, name, *id)?;
            }
            for (name, row) in puts {
                text.push_str(&sql.put[0]);
                bind_row(&mut args, name, *row)?;
            }
            if let Some((last, ceiling)) = tokens {
                text.push_str(&sql.set_tokens);
                bind(&mut args, to_sql(last))?;
                bind(&mut args, to_sql(ceiling))?;
                bind(&mut args, seen)?;
            }
            text.push_str("COMMIT");
            return match self.run(&text, args).await {
                Ok(_) => {
                    self.in_transaction = false;
                    Ok(())
                }
                Err(e) => Err(self.undo(e).await),
            };
        }
        for these in in_chunks(deletes) {
            let mut args = SqliteArguments::default();
            for (name, id) in these {
                bind_key(&mut args, name, *id)?;
            }
            self.write(&sql.delete[usize::from(these.len() > 1)], args)
                .await?;
        }
        for these in in_chunks(puts) {
            let mut args = SqliteArguments::default();
            for (name, row) in these {
                bind_row(&mut args, name, *row)?;
            }
            self.write(&sql.put[usize::from(these.len() > 1)], args).await?;
        }
        if let Some((last, ceiling)) = tokens {
            let mut args = SqliteArguments::default();
            bind(&mut args, to_sql(last))?;
            bind(&mut args, to_sql(ceiling))?;
            bind(&mut args, seen)?;
            self.write(&sql.set_tokens, args).await?;
        }
        self.commit().await
    }

    async fn write(&mut self, sql: &str, args: SqliteArguments) -> Result<()> {
        let done = self.run(sql, args).await;
        done.map(drop).map_err(|e| self.failed(e))
    }

    /// Commits, and waits for readers that are in the way (they are only in the rollback journal modes).
    async fn commit(&mut self) -> Result<()> {
        let runtime = self.runtime.clone();
        let mut patience = Patience::new(&*runtime, self.db.busy_budget);
        loop {
            match self.run("COMMIT", SqliteArguments::default()).await {
                Ok(_) => {
                    self.in_transaction = false;
                    return Ok(());
                }
                Err(e) if is_busy(&e) && patience.wait().await => {}
                Err(e) => return Err(self.undo(e).await),
            }
        }
    }

    /// Judges the failure of a text that ended with a commit.
    ///
    /// A rollback that succeeds proves that the transaction was still open, so nothing was stored. If there
    /// is nothing to roll back, SQLite has ended the transaction by itself, and what a failed commit has
    /// written may yet be found in the log when the file is next opened: the outcome is not known, and the
    /// connection is made anew.
    async fn undo(&mut self, e: sqlx::Error) -> Error {
        self.in_transaction = false;
        if self.run("ROLLBACK", SqliteArguments::default()).await.is_ok() {
            return self.failed(e);
        }
        self.broken = true;
        perhaps_done(e, &self.db.at)
    }

    /// Undoes an open transaction. If there is none, so much the better.
    pub(in crate::sqlite) async fn rollback(&mut self) {
        self.in_transaction = false;
        let _ = self.run("ROLLBACK", SqliteArguments::default()).await;
    }
}

/// Parts of as many as a text of many statements takes, and then one by one.
fn in_chunks<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    let (many, rest) = all.split_at(all.len() / CHUNK * CHUNK);
    many.chunks(CHUNK).chain(rest.chunks(1))
}
