//! The tables, their migrations, and the statements on them.
//!
//! | table | holds |
//! |---|---|
//! | `…meta` | one row: schema version, boot of the leases, last token and its ceiling, when it was last stored |
//! | `…entry` | one row per holder and waiter, and one for a name that is watched; a free name has none |
//! | `…fence` | one row per resource of the fence gate |
//!
//! # Tokens across power loss
//!
//! Locks need no durability against power loss: after it the boot id is another one and every lease has
//! ended. So commits do not wait for the disk (`synchronous = NORMAL` in WAL), and a power loss may take back
//! the last of them. Tokens must not come again, however: `token_ceiling` is raised in blocks by a commit
//! that *does* wait for the disk, before any token beyond the old ceiling is handed out, and the first
//! process of a new boot goes on from the ceiling.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Timestamp};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _, Sqlite};

use super::boot::BootId;
use super::failure::{foreign_row, nothing_done, primary_code};
use super::row::{WATCHED, column, number, time, to_sql};
use crate::direct::Dialect as _;
use crate::gate;

/// How many tokens one commit that waits for the disk makes safe.
pub(super) const TOKEN_BLOCK: u64 = 1_000_000;

/// How many statements of one kind go to the connection in one message.
pub(super) const CHUNK: usize = 32;

/// At most that many names with something that has run out are looked through at a time.
pub(super) const DUE: usize = 256;

/// Step `n` leads from version `n` to `n + 1`. A step is never changed after a release; a new version adds
/// one.
const MIGRATIONS: &[&[&str]] = &[V1, V2, V3];

const V1: &[&str] = &[
    "CREATE TABLE {p}meta (
       only INTEGER PRIMARY KEY CHECK (only = 1),
       schema_version INTEGER NOT NULL,
       boot BLOB NOT NULL,
       last_token INTEGER NOT NULL,
       token_ceiling INTEGER NOT NULL
     ) STRICT",
    "INSERT INTO {p}meta VALUES (1, 0, zeroblob(16), 0, 0)",
    // phase: 0 queued, 1 offered, 2 held, 3 kept by a minimum hold. share: -1 exclusive, 0 reader, n one of n
    // permits. ttl and expires: nanoseconds, the latter since the boot named in meta.
    "CREATE TABLE {p}entry (
       name BLOB NOT NULL,
       id BLOB NOT NULL,
       phase INTEGER NOT NULL,
       share INTEGER NOT NULL,
       priority INTEGER NOT NULL,
       arrival INTEGER NOT NULL,
       token INTEGER,
       ttl INTEGER NOT NULL,
       expires INTEGER NOT NULL,
       upgrading INTEGER NOT NULL,
       owner TEXT,
       PRIMARY KEY (name, id)
     ) STRICT, WITHOUT ROWID",
    "{fence}",
];

/// seen: the clock since boot when entries were last stored, in nanoseconds.
const V2: &[&str] = &["ALTER TABLE {p}meta ADD COLUMN seen INTEGER NOT NULL DEFAULT 0"];

/// A row of phase 4 says that the name is watched: arrival counts the changes of its holders, expires is
/// until when. No new columns; but who does not know that row would not count.
const V3: &[&str] = &[];

/// A database that is chosen and checked.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) options: SqliteConnectOptions,
    /// The path, for messages.
    pub(super) at: String,
    pub(super) sql: Statements,
    pub(super) boot: BootId,
    /// Nobody but this connection sees it, and it ends with it.
    pub(super) private: bool,
    /// Whether we may choose the journal mode.
    pub(super) ours: bool,
    /// How long a transaction waits for the write lock.
    pub(super) busy_budget: Duration,
}

impl Database {
    /// How to connect without a log, and without waiting in a way that cannot be cancelled.
    pub(super) fn quiet(&self) -> SqliteConnectOptions {
        let options = self.options.clone().disable_statement_logging();
        options.busy_timeout(Duration::ZERO)
    }
}

/// The statements, with the table prefix filled in once.
#[derive(Debug)]
pub(super) struct Statements {
    prefix: String,
    pub(super) load: [String; 2],
    pub(super) glance: String,
    pub(super) put: [String; 2],
    pub(super) delete: [String; 2],
    pub(super) due: String,
    pub(super) meta: String,
    pub(super) set_tokens: String,
    pub(super) read_fence: String,
    /// The name of the table of the fence gate.
    pub(super) fence: String,
}

impl Statements {
    /// For tables whose names begin with `prefix`, which was checked.
    pub(super) fn new(prefix: &str) -> Self {
        let load = format!(
            "SELECT name, id, phase, share, priority, arrival, token, ttl, expires, upgrading, owner FROM \
             {prefix}entry WHERE name = ?;"
        );
        let put = format!("INSERT OR REPLACE INTO {prefix}entry VALUES (?,?,?,?,?,?,?,?,?,?,?);");
        let delete = format!("DELETE FROM {prefix}entry WHERE name = ? AND id = ?;");
        let many = |s: String| [s.clone(), s.repeat(CHUNK)];
        Self {
            load: many(load),
            // One row for all that are queued, and one for each holder; not the row of a watch.
            glance: format!(
                "SELECT CASE phase WHEN 0 THEN NULL ELSE id END AS holder, phase, MIN(expires) \
                 FROM {prefix}entry WHERE name = ? AND phase <> {WATCHED} GROUP BY holder"
            ),
            put: many(put),
            delete: many(delete),
            due: format!(
                "SELECT DISTINCT name FROM {prefix}entry WHERE expires <= ? AND name > ? ORDER BY name \
                 LIMIT {DUE}"
            ),
            meta: format!("SELECT schema_version, boot, last_token, token_ceiling, seen FROM {prefix}meta"),
            set_tokens: format!("UPDATE {prefix}meta SET last_token = ?, token_ceiling = ?, seen = ?;"),
            read_fence: format!("SELECT max_exclusive, max_any, value FROM {prefix}fence WHERE resource = ?"),
            fence: format!("{prefix}fence"),
            prefix: prefix.to_owned(),
        }
    }
}

/// What the one row of the meta table says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) boot: Vec<u8>,
    pub(super) last_token: u64,
    pub(super) token_ceiling: u64,
    /// No entry was stored later than this.
    pub(super) seen: Timestamp,
}

impl Meta {
    /// Reads the meta row and refuses what a newer version wrote.
    pub(super) fn read(row: Option<&SqliteRow>, at: &str) -> Result<Self> {
        let row = row.ok_or_else(|| foreign_row("the meta table is empty"))?;
        refuse_newer(column(row, 0)?, at)?;
        Ok(Self {
            boot: column(row, 1)?,
            last_token: number(row, 2)?,
            token_ceiling: number(row, 3)?,
            seen: time(row, 4)?,
        })
    }
}

fn refuse_newer(version: i64, at: &str) -> Result<()> {
    let known = MIGRATIONS.len() as i64;
    if version <= known {
        return Ok(());
    }
    let text = format!(
        "the lock tables in {at} have schema version {version}, this program knows up to {known}: a newer \
         dlock has used the database; update this program"
    );
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Brings the tables up to date and makes the current boot theirs. Runs inside a transaction of the caller,
/// who rolls it back after a no: they belong to another boot, of which somebody may be alive and hold a lock.
///
/// The first process of a new boot deletes what the boot before left, and continues the tokens from the
/// ceiling. Two processes that open at once are put in order by the write lock of the caller's transaction.
///
/// Another boot id need not be another boot: containers on one kernel can each have an id of their own, while
/// their clock is the same. So what another boot left is deleted only if it is over whichever it was: the
/// caller is proven to be alone with the database, or entries were stored at a time that this clock has not
/// reached yet, so that it was started anew since, or no hold runs on by this clock.
pub(super) async fn migrate(conn: &mut SqliteConnection, db: &Database, is_alone: bool) -> Result<bool> {
    let (sql, prefix) = (&db.sql, &db.sql.prefix);
    let refuse = |e| nothing_done(e, &db.at);
    let version = current_version(conn, db).await?;
    for (n, steps) in MIGRATIONS.iter().enumerate().skip(version) {
        for step in *steps {
            let text = match *step {
                "{fence}" => gate::table::<Sqlite>(&sql.fence),
                step => step.replace("{p}", prefix),
            };
            ask(conn, text).await.map_err(refuse)?;
        }
        let text = format!("UPDATE {prefix}meta SET schema_version = {}", n + 1);
        ask(conn, text).await.map_err(refuse)?;
    }
    let rows = ask(conn, sql.meta.clone()).await.map_err(refuse)?;
    let meta = Meta::read(rows.first(), &db.at)?;
    let mut last = meta.last_token;
    let now = Timestamp::now();
    if meta.boot != db.boot.as_bytes() {
        if !is_alone && meta.seen <= now {
            // Waiters and watchers do not count: they hold nothing, and ask again.
            let holds = format!(
                "SELECT 1 FROM {prefix}entry WHERE phase IN (1, 2, 3) AND expires > {} LIMIT 1",
                to_sql(now.as_nanos())
            );
            if !ask(conn, holds).await.map_err(refuse)?.is_empty() {
                return Ok(false);
            }
        }
        last = last.max(meta.token_ceiling);
        let boot = Sqlite::bytes(db.boot.as_bytes());
        let text = format!("DELETE FROM {prefix}entry; UPDATE {prefix}meta SET boot = {boot}");
        ask(conn, text).await.map_err(refuse)?;
    }
    let ceiling = meta.token_ceiling.max(last.saturating_add(TOKEN_BLOCK));
    let [last, ceiling, seen] = [last, ceiling, now.as_nanos()].map(to_sql);
    let text =
        format!("UPDATE {prefix}meta SET last_token = {last}, token_ceiling = {ceiling}, seen = {seen}");
    ask(conn, text).await.map_err(refuse)?;
    Ok(true)
}

/// 0 if there are no tables yet.
async fn current_version(conn: &mut SqliteConnection, db: &Database) -> Result<usize> {
    let (at, meta) = (&db.at, format!("{}meta", db.sql.prefix));
    let table =
        format!("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{meta}' COLLATE NOCASE");
    let found = ask(conn, table).await.map_err(|e| nothing_done(e, at))?;
    if found.is_empty() {
        return Ok(0);
    }
    let text = format!("the table `{meta}` in {at} is not dlock's; choose another table prefix");
    let foreign = Error::new(ErrorKind::BackendData, text);
    let stored = ask(conn, format!("SELECT schema_version FROM {meta}")).await;
    match stored.and_then(|rows| rows.first().map(|r| r.try_get::<i64, _>(0)).transpose()) {
        Ok(Some(version)) if version >= 1 => {
            refuse_newer(version, at)?;
            usize::try_from(version).map_err(|_| foreign)
        }
        Ok(_) => Err(foreign),
        // SQL_ERROR: there is no such column. Anything else that SQLite says is about the file, and whoever
        // chose another prefix for that would lock beside those who did not.
        Err(e) if primary_code(&e).is_some_and(|code| code != 1) => Err(nothing_done(e, at)),
        Err(e) => Err(foreign.with_source(e)),
    }
}

async fn ask(conn: &mut SqliteConnection, text: String) -> Result<Vec<SqliteRow>, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await
}
