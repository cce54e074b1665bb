//! In PostgreSQL.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_sql::direct::reentrant::{Entered, ReentrantRows};
use dlock_sql::direct::row::{Locked, Rows, Wait};
use dlock_sql::direct::{Failure, Tables};
use sqlx::Postgres;

use crate::direct::site::{LONG, SHORT, Site, polled, pooled, postgres, postgres_at, run};
use dlock_testkit::{PostgresServer, Proxy, ReadOnly};

stock!(Postgres, postgres, "$1");

#[test]
fn of_two_in_a_deadlock_one_is_told() {
    run(async { deadlock!(open().await, "$1") });
}

#[test]
fn a_wait_that_is_too_long_is_told_and_the_transaction_is_over() {
    run(async {
        let site = open().await;
        let mut holder = site.pool.begin().await.unwrap();
        drop(row().lock(&mut holder).await.unwrap());
        let mut tx = site.pool.begin().await.unwrap();
        sqlx::query("SET LOCAL lock_timeout = '100ms'")
            .execute(&mut *tx)
            .await
            .unwrap();
        let e = row().lock(&mut tx).await.unwrap_err();
        assert_eq!(
            (e.failure(), e.kind()),
            (Failure::LockTimeout, ErrorKind::Timeout)
        );
        let e = row().lock(&mut tx).await.unwrap_err();
        assert_eq!(e.failure(), Failure::Aborted);
        // A wait that was not to be takes nothing with it.
        let mut tx = site.pool.begin().await.unwrap();
        let asked = row().wait(Wait::NoWait).lock(&mut tx).await.unwrap();
        assert!(matches!(asked, Locked::Busy));
        sqlx::query("UPDATE stock SET n = 5 WHERE id = 2")
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    });
}

#[test]
fn a_limit_of_one_request_is_not_that_of_the_next() {
    run(async {
        let site = open().await;
        let mut holder = site.pool.begin().await.unwrap();
        drop(row().lock(&mut holder).await.unwrap());
        let mut tx = site.pool.begin().await.unwrap();
        sqlx::query("SET LOCAL lock_timeout = '7s'")
            .execute(&mut *tx)
            .await
            .unwrap();
        let short = Wait::AtMost(Duration::from_millis(20));
        for (id, busy) in [(1_i64, true), (2, false)] {
            let row = Rows::of("stock", "SELECT * FROM stock WHERE id = $1").bind(id);
            let asked = row.wait(short).lock(&mut tx).await.unwrap();
            assert_eq!(matches!(asked, Locked::Busy), busy, "{asked:?}");
            let shown: String = sqlx::query_scalar("SHOW lock_timeout")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            assert_eq!(shown, "7s");
        }
        tx.commit().await.unwrap();
    });
}

/// What the driver's own savepoints would do: dropped while one is made, the whole transaction is rolled
/// back, and later statements autocommit.
#[test]
fn a_request_that_is_dropped_leaves_the_transaction_whole() {
    run(async {
        let site = open().await;
        let mut dropped = 0;
        for n in 2..60 {
            let wait = match n % 2 {
                0 => Wait::NoWait,
                _ => Wait::AtMost(SHORT),
            };
            let mut tx = site.pool.begin().await.unwrap();
            let asked = polled(1 + n / 2 % 4, row().wait(wait).lock(&mut tx)).await;
            dropped += u32::from(asked.is_none());
            drop(asked);
            sqlx::query("INSERT INTO stock VALUES (99, 1)")
                .execute(&mut *tx)
                .await
                .unwrap();
            tx.rollback().await.unwrap();
            let left: i64 = sqlx::query_scalar("SELECT count(*) FROM stock WHERE id = 99")
                .fetch_one(&site.pool)
                .await
                .unwrap();
            assert_eq!(left, 0);
        }
        assert!(dropped > 0);
    });
}

#[test]
fn an_old_snapshot_is_reported() {
    run(async {
        let site = open().await;
        let old = site.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let old = old.await.unwrap();
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
        sqlx::query("UPDATE stock SET n = 99")
            .execute(&mut *held)
            .await
            .unwrap();
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut *held)
            .await
            .unwrap();
        held.check().await.unwrap();
        let ended: bool = sqlx::query_scalar("SELECT pg_terminate_backend($1, 5000)")
            .bind(pid)
            .fetch_one(&site.pool)
            .await
            .unwrap();
        assert!(ended);
        let mut other = site.pool.begin().await.unwrap();
        let next = row().wait(Wait::NoWait).lock(&mut other).await.unwrap();
        assert!(matches!(next, Locked::Held(_)));
        assert_eq!(held.check().await.unwrap_err().failure(), Failure::ConnectionLost);
        tx.commit().await.unwrap_err();
        drop(next);
        let n: i64 = sqlx::query_scalar("SELECT n FROM stock WHERE id = 1")
            .fetch_one(&mut *other)
            .await
            .unwrap();
        assert_eq!(n, 10);
    });
}

#[test]
fn rows_are_locked_behind_a_pooler_that_shares_by_transaction() {
    run(async {
        let server = tokio::task::block_in_place(|| PostgresServer::start().unwrap());
        let (site, _pooler) = pooled(&server).await;
        tokio::task::block_in_place(|| {
            server
                .ask(
                    "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO stock \
                    VALUES (1, 0)",
                )
                .unwrap();
        });
        let rows = ReentrantRows::new(site.pool.clone(), Tables::default(), site.runtime.clone());
        rows.create_table().await.unwrap();
        let workers = (0..6).map(|_| {
            let (pool, rows) = (site.pool.clone(), rows.clone());
            tokio::spawn(async move {
                let name = dlock_core::LockName::new("a").unwrap();
                for _ in 0..5 {
                    let mut owner = rows.owner("one of many").unwrap();
                    let mut tx = pool.begin().await.unwrap();
                    let Locked::Held(mut held) = row().unprepared().lock(&mut tx).await.unwrap() else {
                        panic!("not held");
                    };
                    let text = "UPDATE stock SET n = n + 1";
                    let write = sqlx::query(text).persistent(false);
                    write.execute(&mut *held).await.unwrap();
                    tx.commit().await.unwrap();
                    if let Entered::Held(hold) = owner.enter(&name, LONG).await.unwrap() {
                        owner.leave(hold).await.unwrap();
                    }
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        let n = tokio::task::block_in_place(|| server.number("SELECT n FROM stock").unwrap());
        assert_eq!(n, 30);
    });
}

#[test]
fn what_takes_no_writes_and_what_comes_back_is_told() {
    run(async {
        let server = tokio::task::spawn_blocking(|| PostgresServer::start().unwrap());
        let server = std::sync::Arc::new(server.await.unwrap());
        let site = postgres_at(&server.url(), "dlock").await;
        table(&site).await;
        let rows = ReentrantRows::new(site.pool.clone(), Tables::default(), site.runtime.clone());
        rows.create_table().await.unwrap();
        let mut owner = rows.owner("one").unwrap();
        let name = dlock_core::LockName::new("a").unwrap();
        drop(owner.enter(&name, SHORT).await.unwrap());

        let set = server.clone();
        let done = tokio::task::spawn_blocking(move || set.set_read_only(ReadOnly::On));
        done.await.unwrap().unwrap();
        let mut tx = site.pool.begin().await.unwrap();
        let e = row().lock(&mut tx).await.unwrap_err();
        assert_eq!(
            (e.failure(), e.kind()),
            (Failure::ReadOnly, ErrorKind::PermissionDenied)
        );
        drop(tx);
        let set = server.clone();
        let done = tokio::task::spawn_blocking(move || {
            set.set_read_only(ReadOnly::Off)?;
            set.stop_in_order()
        });
        done.await.unwrap().unwrap();
        // Nobody is there: nothing has happened, and nothing may have.
        let e = owner.enter(&name, SHORT).await.unwrap_err();
        assert!(
            matches!(e.failure(), Failure::ConnectionLost | Failure::NoConnection),
            "{e:?}"
        );
        let again = server.clone();
        let done = tokio::task::spawn_blocking(move || again.start_again());
        done.await.unwrap().unwrap();
        drop(owner.enter(&name, SHORT).await.unwrap());
        assert!(rows.inspect(&name).await.unwrap().is_some());
    });
}

/// Commits take so long that their answers can be lost.
#[test]
fn a_re_entrant_change_with_an_unanswered_commit_counts_once() {
    run(async {
        let server = tokio::task::block_in_place(|| PostgresServer::start().unwrap());
        let proxy = tokio::task::block_in_place(|| Proxy::start(server.address()).unwrap());
        let (there, far) = (server.address().to_string(), proxy.address().to_string());
        let site = postgres_at(&server.url().replace(&there, &far), "dlock").await;
        let rows = ReentrantRows::new(site.pool.clone(), Tables::default(), site.runtime.clone());
        rows.create_table().await.unwrap();
        let ask = |sql: &str| tokio::task::block_in_place(|| server.ask(sql).unwrap());
        ask("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END'");
        let count = |sql: &str| tokio::task::block_in_place(|| server.number(sql).unwrap());
        let stored = || count("SELECT holds FROM dlock_reentrant");
        macro_rules! lost {
            ($change:expr) => {{
                ask(
                    "CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON dlock_reentrant DEFERRABLE INITIALLY \
                     DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()",
                );
                let lose = async {
                    let commits =
                        "SELECT count(*) FROM pg_stat_activity WHERE query = 'COMMIT' AND state = 'active'";
                    while count(commits) == 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    proxy.lose_answers();
                    while count(commits) > 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    proxy.cut();
                };
                let (changed, ()) = tokio::join!($change, lose);
                assert!(changed.unwrap_err().may_have_happened());
                ask("DROP TRIGGER slow ON dlock_reentrant");
            }};
        }
        let name = dlock_core::LockName::new("a").unwrap();
        let mut owner = rows.owner("one").unwrap();
        let mut all = Vec::new();
        for n in 1..=2 {
            lost!(owner.enter(&name, LONG));
            assert_eq!(stored(), n);
            let Entered::Held(hold) = owner.enter(&name, LONG).await.unwrap() else {
                panic!("not held");
            };
            assert_eq!((i64::from(hold.holds()), stored()), (n, n));
            all.push(hold);
        }
        assert_eq!(all[0].token(), all[1].token());
        for n in [1, 0] {
            lost!(owner.leave(all.pop().unwrap()));
            assert_eq!(stored(), n);
            owner.settle().await.unwrap();
            assert_eq!(stored(), n);
        }
    });
}
