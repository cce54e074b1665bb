//! The options of a SQLite database.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use dlock_core::spi::Url;
use dlock_core::{Result, Runtime};
use futures::FutureExt as _;
use futures::channel::mpsc;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use super::bell::Bell;
use super::boot::BootId;
use super::connection::Connection;
use super::failure::directory_of;
use super::lock::SqliteLock;
use super::schema::Database;
use super::store::Store;
use super::task::Task;
use crate::direct::is_prefix;
use crate::failure::{invalid, unsupported};

/// Which SQLite database to use, and how.
#[derive(Clone, Debug)]
#[must_use]
pub struct Config {
    options: SqliteConnectOptions,
    source: Source,
    table_prefix: String,
    busy_budget: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    File,
    Memory,
    Pool,
}

impl Config {
    /// Uses the file at that path, and creates it if it does not exist. `:memory:` means
    /// [`memory`](Self::memory).
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        if path.as_os_str() == ":memory:" {
            return Self::memory();
        }
        // SQLite takes a name that begins with `file:` for a URI with options.
        let options = match path.to_string_lossy().starts_with("file:") {
            true => SqliteConnectOptions::new().filename(Path::new(".").join(path)),
            false => SqliteConnectOptions::new().filename(path),
        };
        Self::of(Source::File, options.create_if_missing(true))
    }

    /// Uses a database in memory. Only the connected [`SqliteLock`] and its clones see it, and it ends with
    /// them.
    pub fn memory() -> Self {
        Self::of(Source::Memory, SqliteConnectOptions::new())
    }

    /// Uses the database of a pool, on a connection of its own with the pool's options. It does not count
    /// among the pool's connections, and does not run the pool's hooks.
    ///
    /// The journal mode stays as it is: `wal` suits locks best; `delete`, `truncate` and `persist` work;
    /// `off` and `memory`, which a crash can damage, are refused.
    pub fn from_pool(pool: &SqlitePool) -> Self {
        Self::of(Source::Pool, (*pool.connect_options()).clone())
    }

    /// Reads a URL: see [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(Url::parse(url)?)
    }

    /// Reads a parsed URL: `sqlite:///absolute/path`, `sqlite://path/to/file`, or `sqlite::memory:`.
    ///
    /// | key | sets |
    /// |---|---|
    /// | `table_prefix` | [`table_prefix`](Self::table_prefix) |
    /// | `busy_budget` | [`busy_budget`](Self::busy_budget), as in `2s` |
    /// | `mode` | `rwc`, the default, or `rw`: the file must exist |
    /// | `cache`, `immutable` | only the defaults `private` and `false` |
    ///
    /// # Errors
    /// `InvalidInput` if the path is missing, the URL has a user, password, host or port, or a key is
    /// unknown.
    pub fn read(mut url: Url) -> Result<Self> {
        let path = url.file()?;
        if path.is_empty() {
            return Err(invalid(
                "a `sqlite` URL needs a path, as in `sqlite://locks.db`, or is `sqlite::memory:`",
            ));
        }
        // Taken for a path, it would be shown in errors with whatever password it has.
        if url.names_a_host() && path != ":memory:" {
            return Err(invalid(
                "a `sqlite` URL names a file, without user, password, host or port; write an `@` or `:` at \
                 the beginning of a path as `%40` or `%3A`, or put `./` before it",
            ));
        }
        let mut config = Self::new(path);
        // What the driver's URLs may say, as far as it suits locks.
        for (key, fits, why) in [
            (
                "mode",
                "rwc rw",
                "locks write to the database; one in memory is `sqlite::memory:`",
            ),
            (
                "cache",
                "private",
                "connections that share a cache block one another",
            ),
            ("immutable", "false 0", "a lock writes"),
            ("vfs", "", "locks need the file locks of the default one"),
        ] {
            match url.take::<String>(key)? {
                Some(value) if !fits.split(' ').any(|fit| fit == value) => {
                    return Err(invalid(format!(
                        "the URL's `{key}` cannot have that value: {why}"
                    )));
                }
                Some(value) if value == "rw" => config.options = config.options.create_if_missing(false),
                _ => {}
            }
        }
        if let Some(prefix) = url.take::<String>("table_prefix")? {
            config = config.table_prefix(prefix);
        }
        if let Some(budget) = url.take("busy_budget")? {
            config = config.busy_budget(budget);
        }
        url.finish()?;
        Ok(config)
    }

    /// The file, unless the database is in memory.
    pub fn path(&self) -> Option<&Path> {
        (self.source != Source::Memory).then(|| self.options.get_filename())
    }

    /// The prefix of the names of all tables.
    pub fn prefix(&self) -> &str {
        &self.table_prefix
    }

    fn of(source: Source, options: SqliteConnectOptions) -> Self {
        Self {
            options,
            source,
            table_prefix: "dlock_".to_owned(),
            busy_budget: Duration::from_secs(2),
        }
    }

    /// Sets the prefix of the names of all tables: a letter or underscore, then letters, digits and
    /// underscores, at most 40. `dlock_` unless set. Different prefixes are different sets of locks.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = prefix.into();
        self
    }

    /// Sets how long an operation waits for the write transaction of another process; 2 seconds unless set.
    pub fn busy_budget(mut self, budget: Duration) -> Self {
        self.busy_budget = budget;
        self
    }

    /// Opens the database, creates or updates the tables, and starts the task that owns the connection.
    ///
    /// # Cancel safety
    /// If the future is dropped, at most empty tables are left.
    ///
    /// # Errors
    /// * `InvalidInput` for a bad prefix, a path that is a directory, or a pool of in-memory connections.
    /// * `Unsupported` on a network file system, on a system without a shared clock since boot, for the
    ///   journal modes `off` and `memory`, or if a newer version of dlock has used the database.
    /// * `BackendData` if the file or the table is not dlock's, or if a process with another boot id may hold
    ///   locks in it.
    /// * `PermissionDenied` and `Unavailable`, if the file cannot be opened.
    pub async fn connect(self, runtime: Arc<dyn Runtime>) -> Result<SqliteLock> {
        if !is_prefix(&self.table_prefix) {
            return Err(invalid(
                "a table prefix is a letter or underscore, then letters, digits and underscores, 40 at most, \
                 and not `sqlite_`",
            ));
        }
        let path = self.options.get_filename();
        let at = path.to_string_lossy().into_owned();
        let private = self.source == Source::Memory;
        let in_memory = at == ":memory:" || at.is_empty() || at.starts_with("file:") && at.contains("memory");
        if in_memory && !private {
            return Err(invalid(
                "each connection in memory has a database of its own; use `Config::memory`",
            ));
        }
        let boot = match private {
            true => BootId::PROCESS,
            false => {
                refuse_a_network(path)?;
                BootId::current()?
            }
        };
        let db = Arc::new(Database {
            prefix: self.table_prefix,
            at,
            boot,
            private,
            ours: self.source != Source::Pool,
            busy_budget: self.busy_budget,
            options: self.options,
        });
        let store = Store::open(db.clone(), runtime.clone()).await?;
        let (send, inbox) = mpsc::unbounded();
        runtime.spawn(Task::new(store, runtime.clone()).serve(inbox).boxed());
        let connection = Connection {
            send,
            closed: Arc::default(),
            open: Arc::new(AtomicUsize::new(1)),
            runtime,
            private,
            bell: Bell::new(db.options.get_filename()),
        };
        Ok(SqliteLock::new(connection, &db.at))
    }
}

/// The file locks of a network file system are unreliable, and its other machines have clocks of their own.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn refuse_a_network(path: &Path) -> Result<()> {
    // A symbolic link leads to where the file is. What cannot be asked is judged by the attempt to open it.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| directory_of(path).to_owned());
    let Ok(stat) = rustix::fs::statfs(&target) else {
        return Ok(());
    };
    let is_network = matches!(
        stat.f_type as u32,
        // NFS, SMB (three generations), AFS, Ceph.
        0x6969 | 0x517b | 0xff53_4d42 | 0xfe53_4d42 | 0x5346_414f | 0x00c3_6400
        // Lustre, GPFS, Coda, NCP, GFS2, 9p (which virtual machines share files by).
        | 0x0bd0_0bd0 | 0x4750_4653 | 0x7375_7245 | 0x564c | 0x0116_1970 | 0x0102_1997
    );
    if !is_network {
        return Ok(());
    }
    let text = format!(
        "the SQLite database {} is on a network file system, where its leases would not exclude other \
         machines; use a local disk, or a backend with a server",
        path.display()
    );
    Err(unsupported(text))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn refuse_a_network(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_prefix_that_is_not_an_identifier_is_refused() {
        let runtime = dlock_core::runtime::Tokio::current().unwrap();
        let connect = |prefix: &str| Config::memory().table_prefix(prefix).connect(runtime.clone());
        connect("_A1").await.unwrap();
        for bad in ["", "a;drop", "SQLite_x", &"a".repeat(41)] {
            let e = connect(bad).await.unwrap_err();
            assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput, "{bad:?}");
        }
    }
    #[tokio::test]
    async fn driver_keys_that_suit_a_lock_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("locks.sqlite");
        let read = |query: &str| Config::from_url(&format!("sqlite://{}?{query}", file.display()));
        for (query, why) in [
            ("mode=ro", "`mode` cannot have that value: locks write"),
            ("mode=memory", "`sqlite::memory:`"),
            ("cache=shared", "`cache`"),
            ("immutable=1", "`immutable`"),
            ("vfs=unix-none", "`vfs`"),
        ] {
            let e = read(query).unwrap_err();
            assert_eq!(e.kind(), dlock_core::ErrorKind::InvalidInput, "{query}");
            assert!(e.to_string().contains(why), "{query}: {e}");
        }
        let runtime = dlock_core::runtime::Tokio::current().unwrap();
        let there = read("mode=rw").unwrap();
        assert!(there.clone().connect(runtime.clone()).await.is_err() && !file.exists());
        let made = read("mode=rwc&cache=private&immutable=false").unwrap();
        made.connect(runtime.clone()).await.unwrap();
        there.connect(runtime).await.unwrap();
    }
}
