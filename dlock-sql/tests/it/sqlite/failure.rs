use std::time::Instant;

use dlock_core::spi::{Lock as _, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{ErrorKind, Mode};
use dlock_sql::sqlite::{Config, SqliteLock};
use futures::StreamExt as _;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use super::support::*;

#[test]
fn a_file_that_stays_busy_is_unavailable_and_nothing_is_doubled() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path())
            .busy_budget(ms(100))
            .connect(runtime)
            .await
            .unwrap();
        granted(&lock, &ask("warm")).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "BEGIN IMMEDIATE").await;
        let a = ask("n");
        let asked = Instant::now();
        let e = lock.attempt(&a).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.is_retryable() && !e.may_be_held());
        assert!(asked.elapsed() >= ms(100));
        // Looking needs no lock on the file.
        let part: &dyn dlock_core::spi::Lock = &lock;
        let warm = part.watch().unwrap().inspect(&key("warm").name).await.unwrap();
        assert_eq!(warm.holders.len(), 1);
        sql(&mut other, "COMMIT").await;
        granted(&lock, &a).await;
        assert_eq!(number(&mut other, "SELECT count(*) FROM dlock_entry").await, 2);
    });
}

#[test]
fn a_short_foreign_write_is_waited_for() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let mut other = stranger(&files).await;
        sql(&mut other, "BEGIN IMMEDIATE").await;
        let a = ask("n");
        let finish = async {
            runtime.sleep(ms(100)).await;
            sql(&mut other, "COMMIT").await;
        };
        let (grant, ()) = futures::join!(granted(&lock, &a), finish);
        // The time in the queue for the file is part of the lease, as the holder counts it.
        assert!(grant.counted_from.until(dlock_core::Timestamp::now()) >= ms(90));
        assert_eq!(grant.expires_in, TTL);
    });
}

#[test]
fn a_file_that_is_no_database_is_told_apart() {
    with_files(|files, runtime| async move {
        std::fs::write(files.path(), vec![b'x'; 8192]).unwrap();
        let e = Config::new(files.path())
            .connect(runtime.clone())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e:?}");
        assert!(e.to_string().contains("not a SQLite database"), "{e}");
        let missing = files.path().join("deeper").join("locks.db");
        let e = Config::new(missing).connect(runtime).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
    });
}

#[test]
fn a_removed_or_replaced_file_is_noticed_at_the_next_change() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let a = ask("n");
        granted(&lock, &a).await;
        for suffix in ["", "-wal", "-shm"] {
            let mut file = files.path().into_os_string();
            file.push(suffix);
            std::fs::remove_file(file).unwrap();
        }
        let newcomer = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&newcomer, &ask("n")).await;
        let first = renew(&lock, RenewItem::lease(a.key.clone(), TTL)).await;
        assert!(
            matches!(&first, RenewOutcome::Failed(e) if e.kind() == ErrorKind::Unavailable),
            "{first:?}"
        );
        // From here on both are in the same file.
        let second = renew(&lock, RenewItem::lease(a.key, TTL)).await;
        assert!(matches!(second, RenewOutcome::Gone), "{second:?}");
        held(&lock, &ask("n")).await;
    });
}

#[test]
fn a_foreign_table_is_left_alone() {
    with_files(|files, runtime| async move {
        let mut other = stranger(&files).await;
        sql(&mut other, "CREATE TABLE dlock_meta (mine TEXT)").await;
        let e = Config::new(files.path())
            .connect(runtime.clone())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e:?}");
        assert!(e.to_string().contains("another table prefix"), "{e}");
        let tables = "SELECT count(*) FROM sqlite_master WHERE type = 'table'";
        assert_eq!(number(&mut other, tables).await, 1);
    });
}

#[test]
fn a_damaged_table_of_ours_is_not_taken_for_a_foreign_one() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        lock.close().await.unwrap();
        let mut conn = stranger(&files).await;
        let page = number(
            &mut conn,
            "SELECT rootpage FROM sqlite_master WHERE name = 'dlock_meta'",
        );
        let page = page.await as usize;
        let size = number(&mut conn, "PRAGMA page_size").await as usize;
        sql(&mut conn, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        conn.close().await.unwrap();
        let mut bytes = std::fs::read(files.path()).unwrap();
        bytes[(page - 1) * size..page * size].fill(0xff);
        std::fs::write(files.path(), bytes).unwrap();
        let e = Config::new(files.path()).connect(runtime).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData);
        assert!(e.to_string().contains("is damaged"), "{e}");
    });
}

#[test]
fn a_foreign_row_spoils_only_its_own_name() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let mut other = stranger(&files).await;
        let row = "INSERT INTO dlock_entry VALUES (CAST('bad' AS BLOB), x'00', 9, 0, 0, 0, NULL, 0, \
            9223372036854775807, 0, NULL)";
        sql(&mut other, row).await;
        let (bad, good) = (ask("bad"), ask("good"));
        // Both go into one transaction.
        let (bad, good) = futures::join!(lock.attempt(&bad), lock.attempt(&good));
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::BackendData);
        good.unwrap();
    });
}

#[test]
fn a_dropped_table_is_an_error_and_not_a_free_lock() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("n")).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "DROP TABLE dlock_entry").await;
        let e = lock.attempt(&ask("n")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e:?}");
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_refused_with_the_reason() {
    with_files(|files, runtime| async move {
        let file = files.path();
        let directory = file.parent().unwrap();
        let missing = directory.join("missing").join("locks.db");
        let locked = directory.join("locked");
        std::fs::create_dir(&locked).unwrap();
        let mut cases = vec![
            (directory.to_owned(), ErrorKind::InvalidInput, "is a directory"),
            (missing, ErrorKind::Unavailable, "its directory does not exist"),
        ];
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o555)).unwrap();
            // Root is refused nothing.
            if std::fs::write(locked.join("probe"), "").is_err() {
                cases.push((
                    locked.join("locks.db"),
                    ErrorKind::PermissionDenied,
                    "this user must be able",
                ));
            }
        }
        for (path, kind, says) in cases {
            let e = Config::new(&path).connect(runtime.clone()).await.unwrap_err();
            assert_eq!(e.kind(), kind, "{e:?}");
            let text = e.to_string();
            assert!(
                text.contains(says) && text.contains(&path.display().to_string()),
                "{text}"
            );
        }
    });
}

#[test]
fn a_pool_of_ours_is_used_by_its_options_and_never_runs_dry() {
    with_files(|files, runtime| async move {
        let options = SqliteConnectOptions::new()
            .filename(files.path())
            .create_if_missing(true);
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options.clone())
            .await
            .unwrap();
        let _taken = pool.acquire().await.unwrap();
        let lock = Config::from_pool(&pool).connect(runtime.clone()).await.unwrap();
        // The journal mode is the user's own: here SQLite's default, not WAL.
        let mut other = stranger(&files).await;
        let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
            .fetch_one(&mut other)
            .await
            .unwrap();
        assert_eq!(mode, "delete");
        granted(&lock, &ask("n")).await;
        queued(&lock, &join("n", Mode::Exclusive)).await;

        let read_only =
            SqlitePoolOptions::new().connect_lazy_with(options.read_only(true).create_if_missing(false));
        let fresh = Config::from_pool(&read_only).table_prefix("fresh_");
        let e = fresh.connect(runtime.clone()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e:?}");
        let memory = SqlitePoolOptions::new().connect_lazy("sqlite::memory:").unwrap();
        let e = Config::from_pool(&memory).connect(runtime).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e:?}");
    });
}

#[test]
fn a_commit_waits_for_a_reader_in_its_way_or_stores_nothing() {
    with_files(|files, runtime| async move {
        // Only without WAL does a reader hold up a commit.
        let options = SqliteConnectOptions::new()
            .filename(files.path())
            .create_if_missing(true);
        let pool = SqlitePoolOptions::new().connect_lazy_with(options);
        let lock = Config::from_pool(&pool)
            .busy_budget(ms(150))
            .connect(runtime.clone())
            .await
            .unwrap();
        let mut reader = stranger(&files).await;
        sql(&mut reader, "BEGIN; SELECT * FROM dlock_meta").await;
        let a = ask("n");
        let e = lock.attempt(&a).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
        let finish = async {
            runtime.sleep(ms(50)).await;
            sql(&mut reader, "COMMIT").await;
        };
        let (_, ()) = futures::join!(granted(&lock, &a), finish);
        assert_eq!(number(&mut reader, "SELECT count(*) FROM dlock_entry").await, 1);
    });
}

/// Only without WAL does a reader hold up a commit, and a writer the readers.
async fn without_wal(
    files: &Files,
    budget: u64,
    runtime: std::sync::Arc<dyn dlock_core::Runtime>,
) -> SqliteLock {
    let options = SqliteConnectOptions::new()
        .filename(files.path())
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new().connect_lazy_with(options);
    let config = Config::from_pool(&pool).busy_budget(ms(budget));
    config.connect(runtime).await.unwrap()
}

#[test]
fn a_release_whose_commit_failed_has_not_happened() {
    with_files(|files, runtime| async move {
        let lock = without_wal(&files, 50, runtime).await;
        let a = ask("n");
        let grant = granted(&lock, &a).await;
        let mut reader = stranger(&files).await;
        sql(&mut reader, "BEGIN; SELECT * FROM dlock_meta").await;
        let e = lock.release(&a.key, Release::Now).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
        sql(&mut reader, "COMMIT").await;
        // The lease stands: its holder is told so, and not that it had released it.
        assert_eq!(granted(&lock, &a).await.token, grant.token);
        for _ in 0..2 {
            let released = lock.release(&a.key, Release::Now).await.unwrap();
            assert_eq!(released, Released::Released);
        }
    });
}

#[test]
fn a_watch_outlasts_a_file_that_is_busy_for_a_while() {
    with_files(|files, runtime| async move {
        let lock = without_wal(&files, 20, runtime.clone()).await;
        let part: &dyn dlock_core::spi::Lock = &lock;
        let a = ask("n");
        let mut changes = part.watch().unwrap().watch(&a.key.name).await.unwrap();
        changes.next().await.unwrap().unwrap();
        let mut other = stranger(&files).await;
        sql(&mut other, "BEGIN EXCLUSIVE").await;
        let busy = runtime.sleep(ms(300));
        let select = futures::future::select(changes.next(), busy).await;
        assert!(
            matches!(select, futures::future::Either::Right(_)),
            "the watch has ended"
        );
        drop(select);
        sql(&mut other, "COMMIT").await;
        granted(&lock, &a).await;
        let change = changes.next().await.unwrap().unwrap();
        assert!(matches!(change, dlock_core::Change::Granted(_)), "{change:?}");
    });
}

#[test]
fn a_journal_that_a_crash_can_damage_is_refused() {
    with_files(|files, runtime| async move {
        for mode in [SqliteJournalMode::Off, SqliteJournalMode::Memory] {
            let options = SqliteConnectOptions::new()
                .filename(files.path())
                .create_if_missing(true)
                .journal_mode(mode);
            let pool = SqlitePoolOptions::new().connect_lazy_with(options);
            let e = Config::from_pool(&pool)
                .connect(runtime.clone())
                .await
                .unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e:?}");
        }
    });
}

#[test]
fn opening_waits_for_a_file_that_is_busy() {
    with_files(|files, runtime| async move {
        // Setting this mode reads the file, from which a writer locks out all others.
        let options = SqliteConnectOptions::new()
            .filename(files.path())
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Delete);
        let pool = SqlitePoolOptions::new().connect_lazy_with(options);
        let first = Config::from_pool(&pool).connect(runtime.clone()).await.unwrap();
        first.close().await.unwrap();
        let mut other = stranger(&files).await;
        sql(&mut other, "BEGIN EXCLUSIVE").await;
        let later = async {
            runtime.sleep(ms(200)).await;
            sql(&mut other, "COMMIT").await;
        };
        let (second, ()) = futures::join!(Config::from_pool(&pool).connect(runtime.clone()), later);
        granted(&second.unwrap(), &ask("n")).await;
    });
}
