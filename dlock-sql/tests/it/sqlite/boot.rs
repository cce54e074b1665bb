//! Another boot id in the file: a restart of the machine, or somebody alive in another container.

use dlock_core::ErrorKind;
use dlock_core::spi::Lock as _;
use dlock_sql::sqlite::Config;
use sqlx::Connection as _;

use super::support::*;

const ENTRIES: &str = "SELECT count(*) FROM dlock_entry";

/// Leaves a hold of half a minute in the file, and answers the ceiling of its tokens.
async fn leave_a_hold(files: &Files, runtime: &std::sync::Arc<dyn dlock_core::Runtime>) -> u64 {
    let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
    granted(&lock, &ask("n")).await;
    lock.close().await.unwrap();
    let mut other = stranger(files).await;
    let ceiling = number(&mut other, "SELECT token_ceiling FROM dlock_meta").await;
    // As a power loss leaves it: an older boot, and the last commits gone.
    sql(
        &mut other,
        "UPDATE dlock_meta SET boot = randomblob(16), last_token = 0",
    )
    .await;
    other.close().await.unwrap();
    ceiling as u64
}

#[test]
fn a_restart_ends_all_leases_and_tokens_go_on_from_the_ceiling() {
    with_files(|files, runtime| async move {
        let ceiling = leave_a_hold(&files, &runtime).await;
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let next = granted(&lock, &ask("n")).await;
        assert!(next.token.unwrap().get() > ceiling);
    });
}

#[test]
fn concurrent_opens_after_a_restart_succeed() {
    with_files(|files, runtime| async move {
        for _ in 0..5 {
            leave_a_hold(&files, &runtime).await;
            let opening = (0..4).map(|_| Config::new(files.path()).connect(runtime.clone()));
            let opened = futures::future::join_all(opening).await;
            let opened: Vec<_> = opened.into_iter().map(Result::unwrap).collect();
            let a = ask("n");
            granted(&opened[0], &a).await;
            for lock in &opened[1..] {
                held(lock, &ask("n")).await;
            }
            opened[0].abandon(&[a.key]).await.remove(0).unwrap();
            for lock in &opened {
                lock.close().await.unwrap();
            }
        }
    });
}

#[test]
fn a_live_hold_of_another_boot_id_stays_while_the_file_is_open() {
    with_files(|files, runtime| async move {
        leave_a_hold(&files, &runtime).await;
        let mut other = stranger(&files).await;
        assert_eq!(number(&mut other, ENTRIES).await, 1);
        let open = || {
            let config = Config::new(files.path()).busy_budget(ms(100));
            config.connect(runtime.clone())
        };
        let e = open().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e:?}");
        for part in ["locks.db", "open elsewhere", "boot_id", "try again"] {
            assert!(e.to_string().contains(part), "{e}");
        }
        assert_eq!(number(&mut other, ENTRIES).await, 1);
        other.close().await.unwrap();
        granted(&open().await.unwrap(), &ask("n")).await;
    });
}

#[test]
fn without_wal_a_live_hold_of_another_boot_id_is_left_alone() {
    with_files(|files, runtime| async move {
        leave_a_hold(&files, &runtime).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "PRAGMA journal_mode = DELETE").await;
        other.close().await.unwrap();
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(files.path());
        let pool = sqlx::sqlite::SqlitePoolOptions::new().connect_lazy_with(options);
        let config = Config::from_pool(&pool).busy_budget(ms(100));
        let e = config.connect(runtime).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e:?}");
        assert_eq!(number(&mut stranger(&files).await, ENTRIES).await, 1);
    });
}

#[test]
fn what_was_stored_later_than_now_was_stored_before_a_restart() {
    with_files(|files, runtime| async move {
        leave_a_hold(&files, &runtime).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "UPDATE dlock_meta SET seen = 1 << 62").await;
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("n")).await;
        assert_eq!(
            number(&mut other, "SELECT seen < 1 << 62 FROM dlock_meta").await,
            1
        );
    });
}

#[test]
fn each_stored_entry_moves_the_time_of_the_last_store() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let a = ask("n");
        granted(&lock, &a).await;
        let mut other = stranger(&files).await;
        let granted = number(&mut other, "SELECT seen FROM dlock_meta").await;
        renew(&lock, dlock_core::spi::RenewItem::lease(a.key.clone(), TTL)).await;
        let renewed = number(&mut other, "SELECT seen FROM dlock_meta").await;
        assert!(renewed > granted);
    });
}

#[test]
fn a_file_of_another_boot_id_without_a_live_hold_is_taken_over() {
    with_files(|files, runtime| async move {
        leave_a_hold(&files, &runtime).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "UPDATE dlock_entry SET expires = 1").await;
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("n")).await;
    });
}

#[test]
fn whose_file_was_taken_over_is_told_so() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("n")).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "UPDATE dlock_meta SET boot = randomblob(16)").await;
        let e = lock.attempt(&ask("other")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData);
        assert!(e.to_string().contains("another boot id"), "{e}");
    });
}

#[test]
fn tables_of_the_first_schema_are_brought_up_to_date() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let a = ask("n");
        let grant = granted(&lock, &a).await;
        lock.close().await.unwrap();
        let mut other = stranger(&files).await;
        let back = "ALTER TABLE dlock_meta DROP COLUMN seen; UPDATE dlock_meta SET schema_version = 1";
        sql(&mut other, back).await;
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        assert_eq!(granted(&lock, &a).await.token, grant.token);
    });
}
