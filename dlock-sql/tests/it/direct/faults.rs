//! What goes wrong in a database, and by which word it is told.

use dlock_sql::direct::Failure;

/// Two transactions that lock two rows in opposite order: one is ended, and the other goes on.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! deadlock {
    ($site:expr, $one:literal) => {{
        let site = $site;
        for text in [
            "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
            "INSERT INTO stock VALUES (1, 10), (2, 20)",
        ] {
            sqlx::query(text).execute(&site.pool).await.unwrap();
        }
        let row = |id: i64| Rows::of("stock").filter(concat!("id = ", $one)).bind(id);
        let meet = std::sync::Arc::new(tokio::sync::Barrier::new(2));
        let both = [(1, 2), (2, 1)].map(|(first, second)| {
            let (pool, meet) = (site.pool.clone(), meet.clone());
            let (first, second) = (row(first), row(second));
            tokio::spawn(async move {
                let mut tx = pool.begin().await.unwrap();
                drop(first.lock(&mut tx).await.unwrap());
                meet.wait().await;
                match second.lock(&mut tx).await {
                    Ok(locked) => {
                        assert!(matches!(locked, Locked::Held(_)));
                        drop(locked);
                        tx.commit().await.unwrap();
                        None
                    }
                    Err(e) => {
                        tx.rollback().await.unwrap();
                        Some((e.failure(), e.is_retryable()))
                    }
                }
            })
        });
        let mut told = Vec::new();
        for one in both {
            told.extend(one.await.unwrap());
        }
        assert_eq!(told, [(Failure::Deadlock, true)]);
    }};
}

#[cfg(feature = "postgres")]
mod postgres {
    use dlock_core::ErrorKind;
    use dlock_sql::direct::reentrant::{Entered, ReentrantRows};
    use dlock_sql::direct::row::{Locked, Rows, Wait};
    use dlock_sql::direct::{Failure, Tables};
    use sqlx::Postgres;

    use crate::direct::site::{SHORT, Site, pooled, postgres, postgres_at, run};
    use crate::servers::{PostgresServer, ReadOnly};

    async fn open() -> Site<Postgres> {
        let site = postgres().await;
        table(&site).await;
        site
    }

    async fn table(site: &Site<Postgres>) {
        for text in [
            "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
            "INSERT INTO stock VALUES (1, 10), (2, 20)",
        ] {
            sqlx::query(text).execute(&site.pool).await.unwrap();
        }
    }

    fn row() -> Rows<Postgres> {
        Rows::of("stock").filter("id = $1").bind(1_i64)
    }

    #[test]
    fn of_two_in_a_deadlock_one_is_told() {
        run(async { deadlock!(postgres().await, "$1") });
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
    fn who_reads_an_old_snapshot_is_told() {
        run(async {
            let site = open().await;
            let mut old = site
                .pool
                .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ")
                .await
                .unwrap();
            sqlx::query("SELECT n FROM stock")
                .fetch_all(&mut *old)
                .await
                .unwrap();
            sqlx::query("UPDATE stock SET n = 11")
                .execute(&site.pool)
                .await
                .unwrap();
            let e = row().lock(&mut old).await.unwrap_err();
            assert_eq!((e.failure(), e.is_retryable()), (Failure::Serialization, true));
        });
    }

    #[test]
    fn a_guard_whose_connection_is_ended_is_told_and_another_gets_the_row() {
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
    fn behind_a_pooler_that_shares_connections_by_transaction_all_goes_on() {
        run(async {
            let server = tokio::task::block_in_place(|| PostgresServer::start().unwrap());
            let (site, _pooler) = pooled(&server).await;
            tokio::task::block_in_place(|| {
                server
                    .ask("CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO stock VALUES (1, 0)")
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
                        if let Entered::Held(hold) = owner.enter(&name, SHORT).await.unwrap() {
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
}

#[cfg(feature = "mysql")]
mod mysql {
    use dlock_core::ErrorKind;
    use dlock_sql::direct::Failure;
    use dlock_sql::direct::row::{Locked, Rows, Wait};
    use sqlx::MySql;

    use crate::direct::site::{Site, mysql, mysql_at, run};
    use crate::servers::{MariaDbServer, ReadOnly};

    async fn open() -> Site<MySql> {
        let site = mysql().await;
        table(&site).await;
        site
    }

    async fn table(site: &Site<MySql>) {
        for text in [
            "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
            "INSERT INTO stock VALUES (1, 10), (2, 20)",
        ] {
            sqlx::query(text).execute(&site.pool).await.unwrap();
        }
    }

    fn row() -> Rows<MySql> {
        Rows::of("stock").filter("id = ?").bind(1_i64)
    }

    #[test]
    fn of_two_in_a_deadlock_one_is_told() {
        run(async { deadlock!(mysql().await, "?") });
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
    fn who_reads_an_old_snapshot_is_told_where_the_server_looks() {
        run(async {
            let site = open().await;
            let mut conn = site.pool.acquire().await.unwrap();
            let strict = "SET SESSION innodb_snapshot_isolation = ON";
            sqlx::query(strict).execute(&mut *conn).await.unwrap();
            let mut old = sqlx::Connection::begin(&mut *conn).await.unwrap();
            sqlx::query("SELECT n FROM stock")
                .fetch_all(&mut *old)
                .await
                .unwrap();
            sqlx::query("UPDATE stock SET n = n + 1")
                .execute(&site.pool)
                .await
                .unwrap();
            let e = row().lock(&mut old).await.unwrap_err();
            assert_eq!((e.failure(), e.is_retryable()), (Failure::Serialization, true));
        });
    }

    #[test]
    fn a_guard_whose_connection_is_ended_is_told_and_another_gets_the_row() {
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
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::time::Duration;

    use dlock_sql::direct::row::{Locked, Rows};
    use sqlx::Sqlite;
    use sqlx::sqlite::SqlitePoolOptions;

    use super::Failure;
    use crate::direct::site::{Site, run, sqlite};

    async fn open() -> Site<Sqlite> {
        let site = sqlite().await;
        for text in [
            "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
            "INSERT INTO stock VALUES (1, 10)",
        ] {
            sqlx::query(text).execute(&site.pool).await.unwrap();
        }
        site
    }

    fn row() -> Rows<Sqlite> {
        Rows::of("stock").filter("id = ?").bind(1_i64)
    }

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
    fn who_read_before_somebody_wrote_is_told() {
        run(async {
            let site = open().await;
            let mut old = site.pool.begin().await.unwrap();
            sqlx::query("SELECT n FROM stock")
                .fetch_all(&mut *old)
                .await
                .unwrap();
            sqlx::query("UPDATE stock SET n = 11")
                .execute(&site.pool)
                .await
                .unwrap();
            let e = row().lock(&mut old).await.unwrap_err();
            assert_eq!((e.failure(), e.is_retryable()), (Failure::Serialization, true));
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
}
