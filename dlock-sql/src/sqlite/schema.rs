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
//! After a power loss the boot id has changed and every lease has ended. So commits do not wait for the disk
//! (`synchronous = NORMAL` in WAL), and a power loss may undo the last of them. But tokens must not be
//! reused: `token_ceiling` is raised in blocks by a commit that *does* wait for the disk, before any token
//! beyond the old ceiling is handed out, and the first process of a new boot goes on from there.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions};
use sqlx::{ConnectOptions as _, Row as _, Sqlite};

use super::boot::BootId;
use super::failure::nothing_done;
use super::row::{number, time};
use super::store::Store;
use crate::admit::Tokens;
use crate::direct::{Dialect as _, Failure};
use crate::failure::{foreign, known_version};
use crate::gate;
use crate::keys::get;

/// How many tokens one commit that waits for the disk makes safe.
pub(super) const TOKEN_BLOCK: u64 = 1_000_000;

// The statements. The prefix of the tables is filled in where they are run.
pub(super) const LOAD: &str = "SELECT name, id, phase, share, priority, arrival, token, ttl, expires, \
    upgrading, owner FROM {p}entry WHERE name = ?;";
/// One row for all that are queued, and one for each holder; not the row of a watch.
pub(super) const GLANCE: &str = "SELECT CASE phase WHEN 0 THEN NULL ELSE id END AS holder, phase, share, \
    MIN(expires) FROM {p}entry WHERE name = ? AND phase <> 4 GROUP BY holder";
pub(super) const PUT: &str = "INSERT OR REPLACE INTO {p}entry VALUES (?,?,?,?,?,?,?,?,?,?,?);";
pub(super) const DELETE: &str = "DELETE FROM {p}entry WHERE name = ? AND id = ?;";
pub(super) const DUE: &str = "SELECT DISTINCT name FROM {p}entry WHERE expires <= ? AND name > ? \
    ORDER BY name LIMIT ?";
pub(super) const LIST: &str = "SELECT DISTINCT name FROM {p}entry WHERE expires > ? AND phase < 4 \
    AND name >= ? AND (? IS NULL OR name < ?) ORDER BY name LIMIT ?";
pub(super) const SET_TOKENS: &str = "UPDATE {p}meta SET last_token = ?, token_ceiling = ?, seen = ?;";
pub(super) const READ_FENCE: &str = "SELECT max_exclusive, max_any, value FROM {p}fence WHERE resource = ?";

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
];

/// seen: the clock since boot when entries were last stored, in nanoseconds.
const V2: &[&str] = &["ALTER TABLE {p}meta ADD COLUMN seen INTEGER NOT NULL DEFAULT 0"];

/// A row of phase 4 says that the name is watched: arrival counts the changes of its holders, expires is
/// until when. Who does not know that row would not count.
const V3: &[&str] = &[];

/// A database that is chosen and checked.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) options: SqliteConnectOptions,
    /// The path, for messages.
    pub(super) at: String,
    /// What the names of the tables begin with. It was checked.
    pub(super) prefix: String,
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

/// What the one row of the meta table says.
pub(super) struct Meta {
    pub(super) boot: Vec<u8>,
    pub(super) tokens: Tokens,
    /// No entry was stored later than this.
    seen: Timestamp,
}

impl Meta {
    pub(super) async fn read(store: &mut Store) -> Result<Self> {
        let text = "SELECT schema_version, boot, last_token, token_ceiling, seen FROM {p}meta";
        let rows = store.ask(text).await?;
        let row = rows.first().ok_or_else(|| foreign("the meta table is empty"))?;
        known_version(get(row, 0)?, MIGRATIONS.len(), &store.db.at)?;
        let (last, ceiling, dirty) = (number(row, 2)?, number(row, 3)?, false);
        Ok(Self {
            boot: get(row, 1)?,
            tokens: Tokens { last, ceiling, dirty },
            seen: time(row, 4)?,
        })
    }
}

/// Brings the tables up to date, makes the current boot theirs, and commits the transaction of the caller,
/// who rolls it back after a no: they belong to another boot, of which somebody may be alive and hold a lock.
///
/// The first process of a new boot deletes what the boot before left, and continues the tokens from the
/// ceiling. Two processes that open at once are put in order by the write lock of the transaction.
///
/// Another boot id need not be another boot: containers on one kernel can each have an id of their own, while
/// their clock is the same. So what another boot left is deleted only if the caller is proven to be alone
/// with the database, or entries were stored at a time that this clock has not reached yet, so that it was
/// started anew since, or no hold runs on by this clock.
pub(super) async fn migrate(store: &mut Store, is_alone: bool) -> Result<bool> {
    let version = current_version(store).await?;
    for (n, steps) in MIGRATIONS.iter().enumerate().skip(version) {
        for step in *steps {
            store.ask(step).await?;
        }
        let set = format!("UPDATE {{p}}meta SET schema_version = {}", n + 1);
        store.ask(&set).await?;
    }
    store.ask(&gate::table::<Sqlite>("{p}fence")).await?;
    let meta = Meta::read(store).await?;
    let mut tokens = meta.tokens;
    if meta.boot != store.db.boot.as_bytes() {
        let now = Timestamp::now();
        if !is_alone && meta.seen <= now {
            // Waiters and watchers do not count: they hold nothing, and ask again.
            let now = now.as_nanos();
            let holds =
                format!("SELECT 1 FROM {{p}}entry WHERE phase IN (1, 2, 3) AND expires > {now} LIMIT 1");
            if !store.ask(&holds).await?.is_empty() {
                return Ok(false);
            }
        }
        tokens.last = tokens.last.max(tokens.ceiling);
        let boot = Sqlite::bytes(store.db.boot.as_bytes());
        let text = format!("DELETE FROM {{p}}entry; UPDATE {{p}}meta SET boot = {boot}");
        store.ask(&text).await?;
    }
    tokens.ceiling = tokens.ceiling.max(tokens.last.saturating_add(TOKEN_BLOCK));
    store.write_and_commit(&[], Some(&tokens)).await?;
    Ok(true)
}

/// 0 if there are no tables yet.
async fn current_version(store: &mut Store) -> Result<usize> {
    let table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{p}meta' COLLATE NOCASE";
    if store.ask(table).await?.is_empty() {
        return Ok(0);
    }
    let stored = "SELECT schema_version FROM {p}meta";
    let stored = store.run(stored, SqliteArguments::default()).await;
    let (at, prefix) = (&store.db.at, &store.db.prefix);
    let text = format!("the table `{prefix}meta` in {at} is not dlock's; choose another table prefix");
    let foreign = Error::new(ErrorKind::BackendData, text);
    match stored.and_then(|rows| rows.first().map(|r| r.try_get::<i64, _>(0)).transpose()) {
        Ok(Some(version)) if version >= 1 => known_version(version, MIGRATIONS.len(), at),
        Ok(_) => Err(foreign),
        // There is no such column. Any other error of SQLite is about the file, and a program that chose
        // another prefix because of it would not exclude the others.
        Err(e) if Failure::of(&e) == Failure::Schema => Err(foreign.with_source(e)),
        Err(e) => Err(nothing_done(e, at)),
    }
}
