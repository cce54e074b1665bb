//! A file of SQLite: the bare driver, and a second process that wants the same lock.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Client, runtime};
use dlock_sql::sqlite::Config;
use rustix::time::{ClockId, clock_gettime};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Executor as _};

/// A file that is removed with its folder.
#[derive(Debug)]
pub struct Place(tempfile::TempDir);

impl Place {
    /// On a disk, if that is where temporary files are.
    ///
    /// # Panics
    /// If no folder can be made.
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder can be made"))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// A client of locks in that file.
///
/// # Panics
/// If it cannot be opened.
pub async fn file_client(file: &Path) -> Client {
    let here = runtime::detect().expect("tokio is current");
    let lock = Config::new(file)
        .connect(here.clone())
        .await
        .expect("a new file can be opened");
    Client::builder(Arc::new(lock), here)
        .build()
        .expect("it keeps its claims")
}

/// The bare driver: a row is inserted and deleted, each in a transaction of its own.
#[derive(Debug)]
pub struct BareFile(SqliteConnection);

impl BareFile {
    /// On a file of its own; `FULL` waits for the disk with each commit, `NORMAL` with none.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub async fn new(file: &Path, synchronous: SqliteSynchronous) -> Self {
        let url = format!("sqlite://{}", file.display());
        let options = SqliteConnectOptions::from_str(&url).expect("a good URL");
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous);
        let mut connection = options.connect().await.expect("a new file can be opened");
        let table = "CREATE TABLE IF NOT EXISTS raw (name BLOB PRIMARY KEY, owner BLOB, token INTEGER, ends \
            INTEGER) WITHOUT ROWID";
        connection.execute(table).await.expect("it answers");
        Self(connection)
    }

    /// The row is made and deleted.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn pair(&mut self) {
        let name = &b"a-name-of-twenty-one-r"[..];
        let owner = &[7_u8; 24][..];
        let insert = sqlx::query("INSERT INTO raw VALUES (?, ?, 1, 1)")
            .bind(name)
            .bind(owner);
        insert.execute(&mut self.0).await.expect("it answers");
        let delete = sqlx::query("DELETE FROM raw WHERE name = ? AND owner = ?")
            .bind(name)
            .bind(owner);
        delete.execute(&mut self.0).await.expect("it answers");
    }
}

/// When a process had the lock: from, and to, in nanoseconds of the one clock that both share.
pub type Turn = (u64, u64);

fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Takes the lock that often, and keeps it for so long each time.
///
/// # Panics
/// If the file cannot be used.
pub async fn take_turns(file: &Path, hold: Duration, rounds: u32) -> Vec<Turn> {
    let client = file_client(file).await;
    let lock = client.lock("to-and-fro").expect("a good name");
    let mut turns = Vec::new();
    for _ in 0..rounds {
        let guard = lock.acquire().await.expect("it is waited for");
        let from = clock();
        tokio::time::sleep(hold).await;
        turns.push((from, clock()));
        guard.release().await.expect("it was held");
    }
    client.close().await.expect("it answers");
    turns
}

/// Two processes want the lock all the time, the second of them made of this program by these words: how long
/// it was free each time that it went from one to the other.
///
/// # Panics
/// If the second cannot be started.
pub async fn gaps_between_processes(
    file: &Path,
    words: &[&str],
    hold: Duration,
    rounds: u32,
) -> Vec<Duration> {
    let program = std::env::current_exe().expect("it runs from a file");
    let other = Command::new(program)
        .args(words)
        .args([
            &file.display().to_string(),
            &hold.as_millis().to_string(),
            &rounds.to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started");
    let ours = take_turns(file, hold, rounds).await;
    let said = other.wait_with_output().expect("it ends").stdout;
    let said = String::from_utf8(said).expect("numbers");
    let theirs = said.lines().map(|line| {
        let (from, to) = line.split_once(' ').expect("two numbers");
        (from.parse().expect("a number"), to.parse().expect("a number"))
    });
    let mut all: Vec<(Turn, bool)> = ours.into_iter().map(|turn| (turn, true)).collect();
    all.extend(theirs.map(|turn: Turn| (turn, false)));
    all.sort_unstable();
    let handed = all.windows(2).filter(|two| two[0].1 != two[1].1);
    handed
        .map(|two| Duration::from_nanos(two[1].0.0.checked_sub(two[0].0.1).expect("never two holders")))
        .collect()
}
