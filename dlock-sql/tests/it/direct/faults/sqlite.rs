//! In SQLite.

use std::time::Duration;

use dlock_sql::direct::row::{Locked, Rows, Wait};
use sqlx::Sqlite;
use sqlx::sqlite::SqlitePoolOptions;

use super::Failure;
use crate::direct::site::{Site, run, sqlite};

stock!(Sqlite, sqlite, "?");

#[test]
fn a_wait_that_is_too_long_is_told() {
    run(async {
        let site = open().await;
        let mut holder = site.pool.begin().await.unwrap();
        let held = row().lock(&mut holder).await.unwrap();
        assert!(matches!(held, Locked::Held(_)));
        let options = site.pool.connect_options();
        let hasty = (*options).clone().busy_timeout(Duration::from_millis(50));
        let hasty = SqlitePoolOptions::new().connect_with(hasty).await.unwrap();
        let mut tx = hasty.begin().await.unwrap();
        let e = row().lock(&mut tx).await.unwrap_err();
        assert_eq!((e.failure(), e.is_retryable()), (Failure::LockTimeout, true));
    });
}

#[test]
fn a_limit_of_one_request_is_not_that_of_the_next() {
    run(async {
        let site = open().await;
        let mut holder = site.pool.begin().await.unwrap();
        drop(row().lock(&mut holder).await.unwrap());
        let mut conn = site.pool.acquire().await.unwrap();
        let before: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
            .fetch_one(&mut *conn)
            .await
            .unwrap();
        assert!(before > 1_000);
        let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
        let short = Wait::AtMost(Duration::from_millis(20));
        let asked = row().wait(short).lock(&mut tx).await.unwrap();
        assert!(matches!(asked, Locked::Busy), "{asked:?}");
        let after: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert_eq!(after, before);
    });
}

#[test]
fn a_read_before_another_write_is_reported() {
    run(async {
        let site = open().await;
        let old = site.pool.begin().await.unwrap();
        stale!(site, old);
    });
}

#[test]
fn a_file_that_takes_no_writes_is_told() {
    run(async {
        let site = open().await;
        let options = site.pool.connect_options();
        let reader = (*options).clone().read_only(true).create_if_missing(false);
        let reader = SqlitePoolOptions::new().connect_with(reader).await.unwrap();
        let mut tx = reader.begin().await.unwrap();
        let e = row().lock(&mut tx).await.unwrap_err();
        assert_eq!((e.failure(), e.is_retryable()), (Failure::ReadOnly, false));
    });
}
