//! In MariaDB.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_sql::direct::Failure;
use dlock_sql::direct::row::{Locked, Rows, Wait};
use sqlx::MySql;

use crate::direct::site::{Site, mysql, mysql_at, run};
use dlock_testkit::{MariaDbServer, ReadOnly};

stock!(MySql, mysql, "?");

#[test]
fn of_two_in_a_deadlock_one_is_told() {
    run(async { deadlock!(open().await, "?") });
}

#[test]
fn a_wait_that_is_too_long_is_told() {
    run(async {
        let site = open().await;
        let mut holder = site.pool.begin().await.unwrap();
        drop(row().lock(&mut holder).await.unwrap());
        let mut conn = site.pool.acquire().await.unwrap();
        let limit = "SET SESSION innodb_lock_wait_timeout = 1";
        sqlx::query(limit).execute(&mut *conn).await.unwrap();
        let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
        let e = row().lock(&mut tx).await.unwrap_err();
        assert_eq!(
            (e.failure(), e.kind()),
            (Failure::LockTimeout, ErrorKind::Timeout)
        );
        let asked = row().wait(Wait::NoWait).lock(&mut tx).await.unwrap();
        assert!(matches!(asked, Locked::Busy));
    });
}

#[test]
fn a_limit_of_one_request_is_not_that_of_the_next() {
    run(async {
        let site = open().await;
        let mut holder = site.pool.begin().await.unwrap();
        drop(row().lock(&mut holder).await.unwrap());
        let mut conn = site.pool.acquire().await.unwrap();
        let own = "SET SESSION innodb_lock_wait_timeout = 7";
        sqlx::query(own).execute(&mut *conn).await.unwrap();
        let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
        let short = Wait::AtMost(Duration::from_millis(20));
        for (id, busy) in [(1_i64, true), (2, false)] {
            let row = Rows::of("stock", "SELECT * FROM stock WHERE id = ?").bind(id);
            let asked = row.wait(short).lock(&mut tx).await.unwrap();
            assert_eq!(matches!(asked, Locked::Busy), busy, "{asked:?}");
            let shown: i64 = sqlx::query_scalar("SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            assert_eq!(shown, 7);
        }
        tx.commit().await.unwrap();
    });
}

#[test]
fn an_old_snapshot_is_reported_if_the_server_checks() {
    run(async {
        let site = open().await;
        let mut conn = site.pool.acquire().await.unwrap();
        let strict = "SET SESSION innodb_snapshot_isolation = ON";
        sqlx::query(strict).execute(&mut *conn).await.unwrap();
        let old = sqlx::Connection::begin(&mut *conn).await.unwrap();
        stale!(site, old);
    });
}

#[test]
fn a_guard_is_told_of_an_ended_connection_and_its_row_is_free() {
    run(async {
        let site = open().await;
        let mut tx = site.pool.begin().await.unwrap();
        let Locked::Held(mut held) = row().lock(&mut tx).await.unwrap() else {
            panic!("not held");
        };
        let id: i64 = sqlx::query_scalar("SELECT CAST(connection_id() AS SIGNED)")
            .fetch_one(&mut *held)
            .await
            .unwrap();
        held.check().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {id}")))
            .execute(&site.pool)
            .await
            .unwrap();
        let mut other = site.pool.begin().await.unwrap();
        let next = row().lock(&mut other).await.unwrap();
        assert!(matches!(next, Locked::Held(_)));
        assert_eq!(held.check().await.unwrap_err().failure(), Failure::ConnectionLost);
    });
}

#[test]
fn what_takes_no_writes_is_told() {
    run(async {
        let server = tokio::task::spawn_blocking(|| MariaDbServer::start().unwrap());
        let server = std::sync::Arc::new(server.await.unwrap());
        let keeper = mysql_at(&server.url(), "dlock").await;
        table(&keeper).await;
        let set = server.clone();
        let done = tokio::task::spawn_blocking(move || {
            set.ask(
                "CREATE USER app@'%' IDENTIFIED BY 'app'; GRANT SELECT, UPDATE ON dlock.stock TO app@'%'",
            )?;
            set.set_read_only(ReadOnly::On)
        });
        done.await.unwrap().unwrap();
        let site = mysql_at(&server.url_of("app", "app"), "dlock").await;
        let write = sqlx::query("UPDATE stock SET n = 1").execute(&site.pool).await;
        assert_eq!(Failure::of(&write.unwrap_err()), Failure::ReadOnly);
        let denied = sqlx::query("DELETE FROM stock").execute(&site.pool).await;
        assert_eq!(Failure::of(&denied.unwrap_err()), Failure::Denied);
        let nothing = sqlx::query("SELECT nothing FROM stock").execute(&site.pool).await;
        assert_eq!(Failure::of(&nothing.unwrap_err()), Failure::Schema);
    });
}
