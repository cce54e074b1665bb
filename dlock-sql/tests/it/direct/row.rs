//! Rows that are locked in a transaction.

use super::site::everywhere;

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use std::time::Duration;

        use dlock_sql::direct::row::{Locked, Rows, Wait};
        use sqlx::{Row as _, Transaction};

        use crate::direct::site::{LONG, Site, run};

        type Db = $db;

        async fn open() -> Site<Db> {
            let site = $open().await;
            for text in [
                "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
                "INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30)",
            ] {
                sqlx::query(text).execute(&site.pool).await.unwrap();
            }
            site
        }

        async fn begin(site: &Site<Db>) -> Transaction<'static, Db> {
            site.pool.begin_with($begin).await.unwrap()
        }

        fn row(id: i64) -> Rows<Db> {
            Rows::of("stock", concat!("SELECT n FROM stock WHERE id = ", $one)).bind(id)
        }

        async fn n(site: &Site<Db>, id: i64) -> i64 {
            let text = concat!("SELECT n FROM stock WHERE id = ", $one);
            sqlx::query_scalar(text)
                .bind(id)
                .fetch_one(&site.pool)
                .await
                .unwrap()
        }

        const SET: &str = concat!("UPDATE stock SET n = ", $one, " WHERE id = ", $two);

        #[test]
        fn a_locked_row_is_busy_until_its_transaction_ends() {
            run(async {
                let site = open().await;
                let mut holder = begin(&site).await;
                let Locked::Held(mut held) = row(1).lock(&mut holder).await.unwrap() else {
                    panic!("not held");
                };
                assert_eq!(held.rows()[0].get::<i64, _>("n"), 10);
                sqlx::query(SET)
                    .bind(11_i64)
                    .bind(1_i64)
                    .execute(&mut *held)
                    .await
                    .unwrap();
                held.check().await.unwrap();
                drop(held); // which frees nothing

                // Not one that has the write lock: in SQLite that would wait to begin.
                let mut other = site.pool.begin().await.unwrap();
                let asked = row(1).wait(Wait::NoWait).lock(&mut other).await.unwrap();
                assert!(matches!(asked, Locked::Busy), "{asked:?}");
                // The transaction goes on.
                let asked = row(1).wait(Wait::NoWait).lock(&mut other).await.unwrap();
                assert!(matches!(asked, Locked::Busy), "{asked:?}");
                holder.commit().await.unwrap();
                let asked = row(1).wait(Wait::NoWait).lock(&mut other).await.unwrap();
                let Locked::Held(held) = asked else {
                    panic!("not held: {asked:?}");
                };
                assert_eq!(held.rows()[0].get::<i64, _>("n"), 11);
                sqlx::query(SET)
                    .bind(12_i64)
                    .bind(1_i64)
                    .execute(&mut *other)
                    .await
                    .unwrap();
                other.commit().await.unwrap();
                assert_eq!(n(&site, 1).await, 12);
            });
        }

        #[test]
        fn a_wait_with_an_end_ends_and_the_transaction_goes_on() {
            run(async {
                let site = open().await;
                let limit = Duration::from_millis(150);
                let mut holder = begin(&site).await;
                drop(row(1).lock(&mut holder).await.unwrap());
                let mut other = site.pool.begin().await.unwrap();
                let from = std::time::Instant::now();
                let asked = row(1)
                    .wait(Wait::AtMost(limit))
                    .lock(&mut other)
                    .await
                    .unwrap();
                assert!(matches!(asked, Locked::Busy), "{asked:?}");
                assert!(from.elapsed() >= limit && from.elapsed() < LONG);
                let none = Wait::AtMost(Duration::ZERO);
                let asked = row(1).wait(none).lock(&mut other).await.unwrap();
                assert!(matches!(asked, Locked::Busy), "{asked:?}");
                // Let go of while it is waited for.
                let ends = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    holder.commit().await.unwrap();
                });
                let asked = row(1)
                    .wait(Wait::AtMost(LONG))
                    .lock(&mut other)
                    .await
                    .unwrap();
                let Locked::Held(mut held) = asked else {
                    panic!("not held: {asked:?}");
                };
                ends.await.unwrap();
                sqlx::query(SET)
                    .bind(12_i64)
                    .bind(1_i64)
                    .execute(&mut *held)
                    .await
                    .unwrap();
                other.commit().await.unwrap();
                assert_eq!(n(&site, 1).await, 12);
            });
        }

        #[test]
        fn a_rollback_frees_and_takes_back() {
            run(async {
                let site = open().await;
                for leave_open in [true, false] {
                    let mut tx = begin(&site).await;
                    let held = row(2).lock(&mut tx).await.unwrap();
                    assert!(matches!(held, Locked::Held(_)));
                    drop(held);
                    sqlx::query(SET)
                        .bind(99_i64)
                        .bind(2_i64)
                        .execute(&mut *tx)
                        .await
                        .unwrap();
                    if leave_open {
                        drop(tx);
                    } else {
                        tx.rollback().await.unwrap();
                    }
                    let mut next = begin(&site).await;
                    let Locked::Held(held) = row(2).lock(&mut next).await.unwrap() else {
                        panic!("not held");
                    };
                    assert_eq!(held.rows()[0].get::<i64, _>("n"), 20);
                    drop(held);
                    next.rollback().await.unwrap();
                }
            });
        }

        #[test]
        fn a_waiter_sees_the_last_write() {
            run(async {
                let site = open().await;
                let mut holder = begin(&site).await;
                let held = row(1).lock(&mut holder).await.unwrap();
                assert!(matches!(held, Locked::Held(_)));
                drop(held);
                let pool = site.pool.clone();
                let waiter = tokio::spawn(async move {
                    let mut tx = pool.begin().await.unwrap();
                    let Locked::Held(held) = row(1).lock(&mut tx).await.unwrap() else {
                        panic!("not held");
                    };
                    held.rows()[0].get::<i64, _>("n")
                });
                tokio::time::sleep(Duration::from_millis(200)).await;
                assert!(!waiter.is_finished());
                sqlx::query(SET)
                    .bind(77_i64)
                    .bind(1_i64)
                    .execute(&mut *holder)
                    .await
                    .unwrap();
                holder.commit().await.unwrap();
                let seen = tokio::time::timeout(LONG, waiter).await.unwrap().unwrap();
                assert_eq!(seen, 77);
            });
        }

        #[test]
        fn no_update_is_lost() {
            run(async {
                let site = open().await;
                let workers = (0..6).map(|_| {
                    let pool = site.pool.clone();
                    tokio::spawn(async move {
                        for _ in 0..15 {
                            let mut tx = pool.begin_with($begin).await.unwrap();
                            let Locked::Held(mut held) = row(3).lock(&mut tx).await.unwrap() else {
                                panic!("not held");
                            };
                            let n: i64 = held.rows()[0].get("n");
                            sqlx::query(SET)
                                .bind(n + 1)
                                .bind(3_i64)
                                .execute(&mut *held)
                                .await
                                .unwrap();
                            tx.commit().await.unwrap();
                        }
                    })
                });
                for worker in workers.collect::<Vec<_>>() {
                    worker.await.unwrap();
                }
                assert_eq!(n(&site, 3).await, 30 + 6 * 15);
            });
        }

        #[test]
        fn what_is_not_there_is_not_held() {
            run(async {
                let site = open().await;
                for wait in [Wait::Block, Wait::NoWait, Wait::SkipLocked] {
                    let mut tx = begin(&site).await;
                    let found = row(4).wait(wait).lock(&mut tx).await.unwrap();
                    assert!(matches!(found, Locked::Nothing), "{wait:?} {found:?}");
                }
                let mut tx = begin(&site).await;
                let all = Rows::<Db>::of("stock", "SELECT * FROM stock ORDER BY id DESC LIMIT 2")
                    .lock(&mut tx)
                    .await
                    .unwrap();
                let Locked::Held(held) = all else {
                    panic!("not held");
                };
                let ids: Vec<i64> = held.rows().iter().map(|r| r.get("id")).collect();
                assert_eq!(ids, [3, 2]);
            });
        }
    };
}

everywhere!(tests);

/// What locks rows one by one, which SQLite does not.
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod one_by_one {
    use dlock_sql::direct::row::{Locked, Rows, Wait};
    use sqlx::Row as _;

    use crate::direct::site::run;

    macro_rules! workers_share {
        ($name:ident, $open:path) => {
            #[test]
            fn $name() {
                run(async {
                    let site = $open().await;
                    for text in [
                        "CREATE TABLE job (id BIGINT PRIMARY KEY)",
                        "INSERT INTO job VALUES (1), (2), (3)",
                    ] {
                        sqlx::query(text).execute(&site.pool).await.unwrap();
                    }
                    let mut taken = Vec::new();
                    let mut open = Vec::new();
                    for _ in 0..4 {
                        let mut tx = site.pool.begin().await.unwrap();
                        let job = Rows::of(
                            "job",
                            "SELECT * FROM job ORDER BY id LIMIT 1 -- the next one",
                        )
                        .wait(Wait::SkipLocked);
                        match job.lock(&mut tx).await.unwrap() {
                            Locked::Held(held) => taken.push(held.rows()[0].get::<i64, _>("id")),
                            other => assert!(
                                matches!(other, Locked::Nothing) && taken.len() == 3,
                                "{other:?}"
                            ),
                        }
                        open.push(tx);
                    }
                    assert_eq!(taken, [1, 2, 3]);
                });
            }
        };
    }

    #[cfg(feature = "postgres")]
    workers_share!(workers_of_postgres_get_a_row_each, crate::direct::site::postgres);
    #[cfg(feature = "mysql")]
    workers_share!(workers_of_mysql_get_a_row_each, crate::direct::site::mysql);
}
