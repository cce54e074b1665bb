use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::RequestId;
use dlock_core::runtime::{Smol, Tokio};
use dlock_core::spi::{Acquire, Attempt, Grant, LeaseKey, Lock, RenewItem, RenewOutcome};
use dlock_core::{LockName, Mode, Runtime, Token};
use dlock_sql::sqlite::{Config, SqliteLock};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tempfile::TempDir;

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn permits(n: u32) -> Mode {
    Mode::permit(NonZeroU32::new(n).unwrap())
}

pub(crate) fn key(name: &str) -> LeaseKey {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let sequence = NEXT.fetch_add(1, Ordering::Relaxed);
    let client = (u128::from(std::process::id()) << 64) | 7;
    LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(client, sequence))
}

pub(crate) fn ask(name: &str) -> Acquire {
    Acquire::new(key(name), TTL)
}

pub(crate) fn join(name: &str, mode: Mode) -> Acquire {
    ask(name).with_mode(mode).with_queue(TTL)
}

/// A file that goes with the test.
pub(crate) struct Files {
    dir: TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("locks.db")
    }
}

/// The lease `dead`, of 20 ms, whose holder has gone.
pub(crate) async fn leave_a_dead_lease(files: &Files, runtime: &Arc<dyn Runtime>) {
    let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
    let mut dead = ask("dead");
    dead.ttl = ms(20);
    granted(&lock, &dead).await;
    lock.close().await.unwrap();
}

pub(crate) async fn granted(lock: &SqliteLock, a: &Acquire) -> Grant {
    match lock.attempt(a).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn queued(lock: &SqliteLock, a: &Acquire) {
    let answer = lock.attempt(a).await.unwrap();
    assert!(matches!(answer, Attempt::Queued(_)), "not queued: {answer:?}");
}

pub(crate) async fn held(lock: &SqliteLock, a: &Acquire) {
    let answer = lock.attempt(a).await.unwrap();
    assert!(matches!(answer, Attempt::Held(_)), "not held: {answer:?}");
}

pub(crate) async fn renew(lock: &SqliteLock, item: RenewItem) -> RenewOutcome {
    let lock: &dyn Lock = lock;
    lock.renew().unwrap().renew(&[item]).await.remove(0)
}

/// Asks again for a queued request: the token, if it has been granted.
pub(crate) async fn asked(lock: &SqliteLock, a: &Acquire) -> Option<Token> {
    match renew(lock, RenewItem::queued(a.key.clone(), TTL)).await {
        RenewOutcome::Granted(grant) => grant.token,
        RenewOutcome::Queued { .. } => None,
        other => panic!("neither granted nor queued: {other:?}"),
    }
}

/// Runs a test on each runtime, with a database in memory and with one in a file.
pub(crate) fn everywhere<F, T>(test: T)
where
    T: Fn(SqliteLock) -> F,
    F: Future<Output = ()>,
{
    let tokio = tokio();
    let smol = Smol::global().unwrap();
    let open = async |runtime: &Arc<dyn Runtime>| {
        let files = Files::new();
        let file = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        test(file.clone()).await;
        file.close().await.unwrap();
        let memory = Config::memory().connect(runtime.clone()).await.unwrap();
        test(memory).await;
    };
    tokio.block_on(async {
        open(&Tokio::current().unwrap()).await;
    });
    smol::block_on(open(&smol));
}

pub(crate) fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a test on tokio, with a place for files.
pub(crate) fn with_files<F>(test: impl FnOnce(Files, Arc<dyn Runtime>) -> F)
where
    F: Future<Output = ()>,
{
    tokio().block_on(async { test(Files::new(), Tokio::current().unwrap()).await });
}

/// A connection of somebody else to the file.
pub(crate) async fn stranger(files: &Files) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(files.path())
        .create_if_missing(true);
    options.connect().await.unwrap()
}

pub(crate) async fn sql(conn: &mut SqliteConnection, text: &'static str) {
    sqlx::raw_sql(text).execute(conn).await.unwrap();
}

pub(crate) async fn number(conn: &mut SqliteConnection, text: &'static str) -> i64 {
    sqlx::query_scalar(text).fetch_one(conn).await.unwrap()
}
