use std::sync::Arc;
use std::time::Duration;

use dlock_core::runtime::Tokio;
use dlock_core::{LockName, Runtime};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode};
use sqlx::{ConnectOptions as _, Row as _};
use tempfile::TempDir;

use super::boot::BootId;
use super::schema::Database;
use super::store::{Store, Sync};
use super::task::Task;

/// A store, another connection to its file, and the file.
async fn open(journal: SqliteJournalMode) -> (Store, SqliteConnection, Arc<dyn Runtime>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(dir.path().join("locks.db"))
        .create_if_missing(true)
        .journal_mode(journal);
    let db = Arc::new(Database {
        options: options.clone(),
        at: "of the test".into(),
        prefix: "dlock_".into(),
        boot: BootId::current().unwrap(),
        private: false,
        ours: false,
        busy_budget: Duration::from_secs(10),
    });
    let runtime: Arc<dyn Runtime> = Tokio::current().unwrap();
    let store = Store::open(db, runtime.clone()).await.unwrap();
    (store, options.connect().await.unwrap(), runtime, dir)
}

#[tokio::test]
async fn a_durable_commit_is_durable_in_every_journal_mode() {
    let (normal, full, extra) = (1i64, 2, 3);
    for (journal, ordinary, durable) in [
        (SqliteJournalMode::Wal, normal, full),
        (SqliteJournalMode::Delete, full, extra),
        (SqliteJournalMode::Truncate, full, extra),
        (SqliteJournalMode::Persist, full, extra),
    ] {
        let (mut store, _stranger, _runtime, _dir) = open(journal).await;
        for (sync, expected) in [(Sync::Ordinary, ordinary), (Sync::Durable, durable)] {
            store.begin(sync).await.unwrap();
            let rows = store.run("PRAGMA synchronous", SqliteArguments::default()).await;
            assert_eq!(
                rows.unwrap()[0].get::<i64, _>(0),
                expected,
                "{journal:?} {sync:?}"
            );
            store.rollback().await;
        }
    }
}

#[tokio::test]
async fn a_read_waits_for_a_commit_that_keeps_readers_out() {
    let (mut store, mut stranger, runtime, _dir) = open(SqliteJournalMode::Delete).await;
    let begin = sqlx::raw_sql("BEGIN EXCLUSIVE").execute(&mut stranger);
    begin.await.unwrap();
    let name = LockName::new("n").unwrap();
    let finish = async {
        runtime.sleep(Duration::from_millis(50)).await;
        sqlx::raw_sql("COMMIT").execute(&mut stranger).await.unwrap();
    };
    let names = [name.clone()];
    let (loaded, ()) = futures::join!(store.load(&names), finish);
    assert!(loaded.unwrap().contains_key(&name));
}

#[tokio::test]
async fn what_one_connection_loaded_is_not_trusted_on_the_next() {
    let (store, _stranger, runtime, _dir) = open(SqliteJournalMode::Wal).await;
    let mut writer = Task::new(store, runtime);
    let mut names = vec![LockName::new("n").unwrap()];
    let (store, view) = writer.connected().await.unwrap();
    let version = store.version().await.unwrap();
    view.load(store, version, &mut names).await.unwrap();
    assert!(view.version.is_some() && !view.names.is_empty());

    // As raising the ceiling of the tokens does, whose failure is nobody's.
    store.broken = true;
    let (_, view) = writer.connected().await.unwrap();
    assert!(view.version.is_none() && view.names.is_empty());
}
