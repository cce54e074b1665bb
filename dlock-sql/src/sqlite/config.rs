//! Opening: by path, in memory, with the options of a pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::FutureExt as _;
use futures::channel::mpsc;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use super::boot::BootId;
use super::job::{Link, Stamps};
use super::lock::SqliteLock;
use super::schema::{Statements, check_prefix};
use super::store::{Database, Store};
use super::writer::Writer;

/// What the names of the tables begin with unless another prefix is chosen.
pub const DEFAULT_PREFIX: &str = "dlock_";

/// Settings for opening a [`SqliteLock`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    source: Source,
    prefix: String,
    busy_budget: Duration,
}

#[derive(Clone, Debug)]
enum Source {
    File(PathBuf),
    Memory,
}

impl Builder {
    /// Uses tables whose names begin with `prefix`: a letter or underscore, then letters, digits and underscores.
    /// [`DEFAULT_PREFIX`] unless set. Two prefixes are two sets of locks.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long an operation waits for another process's write transaction before it answers `Unavailable`. 2 seconds unless set.
    pub fn busy_budget(mut self, budget: Duration) -> Self {
        self.busy_budget = budget;
        self
    }

    /// Opens the database, creates or updates the tables, and starts the task that owns the connection.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left but perhaps the empty tables.
    ///
    /// # Errors
    /// `InvalidInput` for a bad prefix or a path that is a directory, `Unsupported` on a network file system, on a system without a shared clock since boot, or if
    /// a newer dlock has used the database; `BackendData` if the file or the table is not ours, or if somebody with another boot id may
    /// hold locks in it; `PermissionDenied`; `Unavailable`.
    pub async fn open(self, runtime: Arc<dyn Runtime>) -> Result<SqliteLock> {
        check_prefix(&self.prefix)?;
        let (options, at, private) = match &self.source {
            Source::Memory => (SqliteConnectOptions::new(), ":memory:".to_owned(), true),
            Source::File(path) => {
                refuse_a_network(path)?;
                let options = SqliteConnectOptions::new()
                    .filename(plain(path))
                    .create_if_missing(true);
                (options, path.display().to_string(), false)
            }
        };
        let ours = true;
        self.open_with(options, at, private, ours, runtime).await
    }

    /// Opens the database of that pool, on a connection of its own.
    ///
    /// The connection is made with the pool's options and does not count among the pool's, so a small pool cannot run dry by it.
    /// The journal mode of the database is left as it is (`wal` serves locks best, `delete`, `truncate` and `persist` work;
    /// `off` and `memory`, which a crash can damage, are refused); the hooks of the pool are not run.
    /// The path that this builder was made with is not used.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open), `InvalidInput` for a pool of in-memory connections, each of which is a database of its own,
    /// and `Unsupported` for the journal modes `off` and `memory`.
    pub async fn open_pool(self, pool: &SqlitePool, runtime: Arc<dyn Runtime>) -> Result<SqliteLock> {
        check_prefix(&self.prefix)?;
        let options = pool.connect_options();
        let path = options.get_filename().to_owned();
        let shown = path.to_string_lossy();
        if shown == ":memory:" || shown.is_empty() || shown.starts_with("file:") && shown.contains("memory") {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a pool of in-memory connections cannot be shared with dlock; use SqliteLock::memory instead",
            ));
        }
        refuse_a_network(&path)?;
        let at = shown.into_owned();
        self.open_with((*options).clone(), at, false, false, runtime)
            .await
    }

    async fn open_with(
        self,
        options: SqliteConnectOptions,
        at: String,
        private: bool,
        ours: bool,
        runtime: Arc<dyn Runtime>,
    ) -> Result<SqliteLock> {
        let boot = if private {
            BootId::PROCESS
        } else {
            BootId::current()?
        };
        let db = Arc::new(Database {
            options,
            sql: Statements::new(&self.prefix),
            at,
            boot,
            private,
            ours,
            busy_budget: self.busy_budget,
        });
        let store = Store::open(db.clone(), runtime.clone()).await?;
        let stamps = Arc::new(Stamps::new());
        let (send, inbox) = mpsc::unbounded();
        let writer = Writer::new(store, runtime.clone(), stamps.clone());
        runtime.spawn(writer.serve(inbox).boxed());
        let link = Link {
            send,
            closed: Arc::new(AtomicBool::new(false)),
            open: Arc::new(AtomicUsize::new(1)),
            stamps,
            runtime,
            private,
        };
        Ok(SqliteLock::new(link, &db.at))
    }
}

impl SqliteLock {
    /// Settings for the file at that path; it is created if it does not exist. `:memory:` is as [`memory`](Self::memory).
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        let path = path.as_ref();
        Builder {
            source: if path.as_os_str() == ":memory:" {
                Source::Memory
            } else {
                Source::File(path.to_owned())
            },
            prefix: DEFAULT_PREFIX.to_owned(),
            busy_budget: Duration::from_secs(2),
        }
    }

    /// Opens the file at that path with the default settings.
    ///
    /// # Cancel safety
    /// As [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open`].
    pub async fn open(path: impl AsRef<Path>, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::builder(path).open(runtime).await
    }

    /// Opens a database in memory, which is seen through this value and its clones only and ends with them.
    ///
    /// # Cancel safety
    /// Cancelled, nothing is left.
    ///
    /// # Errors
    /// `Unavailable` if no thread can be started for the connection.
    pub async fn memory(runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::builder(":memory:").open(runtime).await
    }

    /// Opens the database of a pool of yours with the default settings: [`Builder::open_pool`].
    ///
    /// # Cancel safety
    /// As [`Builder::open`].
    ///
    /// # Errors
    /// As [`Builder::open_pool`].
    pub async fn from_pool(pool: &SqlitePool, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Self::builder("").open_pool(pool, runtime).await
    }
}

/// SQLite takes a name that begins with `file:` for a URI with options.
fn plain(path: &Path) -> PathBuf {
    if path.to_string_lossy().starts_with("file:") {
        return Path::new(".").join(path);
    }
    path.to_owned()
}

/// The file locks of a network file system are unreliable, and its other machines have clocks of their own.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn refuse_a_network(path: &Path) -> Result<()> {
    // NFS, SMB (three generations), AFS, Ceph, Lustre, GPFS, Coda, NCP, GFS2, 9p (which virtual machines share files by).
    const NETWORKS: &[u32] = &[
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x5346_414f,
        0x00c3_6400,
        0x0bd0_0bd0,
        0x4750_4653,
        0x7375_7245,
        0x564c,
        0x0116_1970,
        0x0102_1997,
    ];
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // A symbolic link leads to where the file really is. What cannot be asked is judged by the attempt to open it.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| directory.to_owned());
    let Ok(stat) = rustix::fs::statfs(&target) else {
        return Ok(());
    };
    if NETWORKS.contains(&(stat.f_type as u32)) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the SQLite database {} is on a network file system, where its leases would not exclude other machines; \
                 use a local disk, or a backend with a server",
                path.display()
            ),
        ));
    }
    Ok(())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn refuse_a_network(_: &Path) -> Result<()> {
    Ok(())
}
