use std::time::Duration;

use dlock_core::runtime::Tokio;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

use super::*;
use crate::sqlite::boot::BootId;
use crate::sqlite::schema::Statements;

fn with_store<F: Future<Output = ()>>(
    journal: SqliteJournalMode,
    test: impl FnOnce(Store, SqliteConnection, Arc<dyn Runtime>) -> F,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(journal);
        let db = Arc::new(Database {
            options: options.clone(),
            at: "of the test".into(),
            sql: Statements::new("dlock_"),
            boot: BootId::current().unwrap(),
            private: false,
            ours: false,
            busy_budget: Duration::from_secs(10),
        });
        let runtime = Tokio::current().unwrap();
        let store = Store::open(db, runtime.clone()).await.unwrap();
        let stranger = options.connect().await.unwrap();
        test(store, stranger, runtime).await;
    });
}

#[test]
fn a_durable_commit_is_durable_in_every_journal_mode() {
    let (normal, full, extra) = (1i64, 2, 3);
    for (journal, ordinary, durable) in [
        (SqliteJournalMode::Wal, normal, full),
        (SqliteJournalMode::Delete, full, extra),
        (SqliteJournalMode::Truncate, full, extra),
        (SqliteJournalMode::Persist, full, extra),
    ] {
        with_store(journal, |mut store, _, _| async move {
            for (sync, expected) in [(Sync::Ordinary, ordinary), (Sync::Durable, durable)] {
                store.begin(sync).await.unwrap();
                let rows = store
                    .run("PRAGMA synchronous", SqliteArguments::default())
                    .await
                    .unwrap();
                assert_eq!(rows[0].get::<i64, _>(0), expected, "{journal:?} {sync:?}");
                store.rollback().await;
            }
        });
    }
}

#[test]
fn a_read_waits_for_a_commit_that_keeps_readers_out() {
    with_store(
        SqliteJournalMode::Delete,
        |mut store, mut stranger, runtime| async move {
            sqlx::raw_sql("BEGIN EXCLUSIVE")
                .execute(&mut stranger)
                .await
                .unwrap();
            let name = LockName::new("n").unwrap();
            let finish = async {
                runtime.sleep(Duration::from_millis(50)).await;
                sqlx::raw_sql("COMMIT").execute(&mut stranger).await.unwrap();
            };
            let names = [name.clone()];
            let (loaded, ()) = futures::join!(store.load(&names), finish);
            assert!(loaded.unwrap().contains_key(&name));
        },
    );
}
