//! What can be done to a SQLite file, for the rules that need hands at the store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use dlock::spi::Lock;
use dlock::sqlite::{Config, SqliteLock};
use dlock::{Error, ErrorKind, LockName, Result, Runtime};
use dlock_conformance::hooks::{Hooks, Offer, Restart, Vitals};
use futures::FutureExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

/// The file, and the clients that opened it through here.
pub(crate) struct SqliteHooks {
    file: PathBuf,
    runtime: Arc<dyn Runtime>,
    opened: Mutex<Vec<Weak<SqliteLock>>>,
}

impl SqliteHooks {
    pub(crate) fn new(file: PathBuf, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            file,
            runtime,
            opened: Mutex::default(),
        }
    }

    /// Opens the file once more, as another process would.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Lock>> {
        self.open_on(self.runtime.clone()).await
    }

    pub(crate) async fn open_on(&self, runtime: Arc<dyn Runtime>) -> Result<Arc<dyn Lock>> {
        let opened = Arc::new(Config::new(&self.file).connect(runtime).await?);
        let mut all = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&opened));
        Ok(opened)
    }

    /// A connection that knows nothing of locks.
    async fn stranger(&self) -> Result<SqliteConnection> {
        let options = SqliteConnectOptions::new().filename(&self.file);
        options.connect().await.map_err(failed)
    }

    /// What all that have the file open share. It is made by the first to open it, and the last to close it
    /// deletes it.
    fn shared_memory(&self) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push("-shm");
        name.into()
    }

    async fn look(&self) -> Result<Vitals> {
        let mut conn = self.stranger().await?;
        // Only a read opens the shared memory.
        one_number(&mut conn, "SELECT last_token FROM dlock_meta").await?;
        let run = identity(&self.shared_memory());
        conn.close().await.map_err(failed)?;
        Ok(Vitals::new().run(run?))
    }

    /// Every process that has the file open ends. What is in the file is what there is.
    async fn everybody_ends(&self) -> Result<()> {
        let opened = std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner));
        for one in opened.iter().filter_map(Weak::upgrade) {
            one.close().await?;
        }
        for _ in 0..400 {
            if !self.shared_memory().exists() {
                return Ok(());
            }
            self.runtime.sleep(Duration::from_millis(5)).await;
        }
        let why = "somebody has the file open still";
        Err(Error::new(ErrorKind::Unavailable, why))
    }

    async fn change(&self, name: &LockName, text: &'static str, with: Option<&str>) -> Result<()> {
        let mut conn = self.stranger().await?;
        let change = sqlx::query(text).bind(name.as_bytes());
        let change = match with {
            Some(with) => change.bind(with),
            None => change,
        };
        change.execute(&mut conn).await.map_err(failed)?;
        conn.close().await.map_err(failed)
    }
}

fn failed(e: sqlx::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the file could not be tampered with").with_source(e)
}

/// When it was made: no later one is made at the same time.
fn identity(file: &Path) -> Result<String> {
    match std::fs::metadata(file).and_then(|m| m.created()) {
        Ok(created) => Ok(format!("{created:?}")),
        Err(e) => Err(Error::new(ErrorKind::Unavailable, "the file has no birth time").with_source(e)),
    }
}

async fn one_number(conn: &mut SqliteConnection, text: &'static str) -> Result<i64> {
    sqlx::query_scalar(text).fetch_one(conn).await.map_err(failed)
}

const REMOVE: &str = "DELETE FROM dlock_entry WHERE name = ?";
/// Of a phase that there is none of.
const FOREIGN: &str =
    "INSERT INTO dlock_entry VALUES (?1, x'00', 9, -1, 5, 0, 1, 1, 9223372036854775807, 0, ?2)";
const STORED: &str = "SELECT phase || ' ' || coalesce(owner, '') FROM dlock_entry WHERE name = ?";

impl Hooks for SqliteHooks {
    fn vitals(&self) -> Offer<'_, Vitals> {
        Some(self.look().boxed())
    }

    /// There is no server: a restart is that nobody has the file open, and then somebody has again.
    fn restart(&self, _: Restart) -> Offer<'_> {
        Some(self.everybody_ends().boxed())
    }

    fn set_counter<'a>(&'a self, _: &'a LockName, to: u64) -> Offer<'a> {
        let set = async move {
            let mut conn = self.stranger().await?;
            let to = i64::try_from(to).unwrap_or(i64::MAX);
            sqlx::query(
                "UPDATE dlock_meta SET last_token = ?1, token_ceiling = max(token_ceiling, ?1 + 1000000)",
            )
            .bind(to)
            .execute(&mut conn)
            .await
            .map_err(failed)?;
            conn.close().await.map_err(failed)
        };
        Some(set.boxed())
    }

    fn counter<'a>(&'a self, _: &'a LockName) -> Offer<'a, u64> {
        let read = async move {
            let mut conn = self.stranger().await?;
            let last = one_number(&mut conn, "SELECT last_token FROM dlock_meta").await?;
            conn.close().await.map_err(failed)?;
            Ok(u64::try_from(last).unwrap_or(0))
        };
        Some(read.boxed())
    }

    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        let spoil = async move {
            self.change(name, REMOVE, None).await?;
            self.change(name, FOREIGN, Some(with)).await
        };
        Some(spoil.boxed())
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        let read = async move {
            let mut conn = self.stranger().await?;
            let rows = sqlx::query(STORED)
                .bind(name.as_bytes())
                .fetch_all(&mut conn)
                .await;
            let mut stored = Vec::new();
            for row in rows.map_err(failed)? {
                stored.extend_from_slice(row.try_get::<String, _>(0).map_err(failed)?.as_bytes());
                stored.push(b'\n');
            }
            conn.close().await.map_err(failed)?;
            Ok(stored)
        };
        Some(read.boxed())
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        Some(self.change(name, REMOVE, None).boxed())
    }
}
