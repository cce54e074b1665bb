//! Rows with a version.

use super::site::everywhere;

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use std::num::NonZeroU32;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        use dlock_sql::direct::Error;
        use dlock_sql::direct::optimistic::{Change, TRIES, Updated, Versioned};
        use sqlx::Row as _;

        use crate::direct::site::{Site, run};

        type Db = $db;

        async fn open() -> (Site<Db>, Versioned<Db>) {
            let site = $open().await;
            for text in [
                "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, version INTEGER NOT NULL)",
                "INSERT INTO stock VALUES (7, 100, 3)",
            ] {
                sqlx::query(text).execute(&site.pool).await.unwrap();
            }
            (site, Versioned::new("stock", "id", "version", "n"))
        }

        #[test]
        fn an_old_version_is_refused() {
            run(async {
                let (site, stock) = open().await;
                let mut conn = site.pool.acquire().await.unwrap();
                let (version, row) = stock.read(&mut conn, 7_i64).await.unwrap().unwrap();
                assert_eq!((version, row.get::<i64, _>("n")), (3, 100));
                let first = stock
                    .write(&mut conn, 7_i64, 3, Change::new().set("n", 99_i64))
                    .await;
                assert_eq!(first.unwrap(), Some(4));
                let late = stock
                    .write(&mut conn, 7_i64, 3, Change::new().set("n", 50_i64))
                    .await;
                assert_eq!(late.unwrap(), None);
                let nobody = stock.write(&mut conn, 8_i64, 3, Change::new()).await;
                assert_eq!(nobody.unwrap(), None);
                let (version, row) = stock.read(&mut conn, 7_i64).await.unwrap().unwrap();
                assert_eq!((version, row.get::<i64, _>("n")), (4, 99));
                assert!(stock.read(&mut conn, 8_i64).await.unwrap().is_none());
            });
        }

        #[test]
        fn in_a_transaction_a_write_goes_with_it() {
            run(async {
                let (site, stock) = open().await;
                let mut tx = site.pool.begin_with($begin).await.unwrap();
                let done = stock
                    .write(&mut tx, 7_i64, 3, Change::new().set("n", 1_i64))
                    .await;
                assert_eq!(done.unwrap(), Some(4));
                tx.rollback().await.unwrap();
                let mut conn = site.pool.acquire().await.unwrap();
                let (version, row) = stock.read(&mut conn, 7_i64).await.unwrap().unwrap();
                assert_eq!((version, row.get::<i64, _>("n")), (3, 100));
            });
        }

        #[test]
        fn every_update_counts_once_and_every_conflict_is_told() {
            run(async {
                let (site, _) = open().await;
                let calls = Arc::new(AtomicU32::new(0));
                let workers = (0..6).map(|_| {
                    let (pool, runtime, calls) = (site.pool.clone(), site.runtime.clone(), calls.clone());
                    tokio::spawn(async move {
                        let stock = Versioned::<Db>::new("stock", "id", "version", "n");
                        let retry = NonZeroU32::new(10_000).unwrap();
                        let mut told = 0;
                        for _ in 0..10 {
                            let done = stock.update(&pool, &*runtime, retry, 7_i64, |row| {
                                calls.fetch_add(1, Ordering::Relaxed);
                                let n: i64 = row.get("n");
                                Ok::<_, Error>(Some(Change::new().set("n", n + 1)))
                            });
                            match done.await.unwrap() {
                                Updated::Written { conflicts, .. } => told += conflicts,
                                other => panic!("{other:?}"),
                            }
                        }
                        told
                    })
                });
                let mut told = 0;
                for worker in workers.collect::<Vec<_>>() {
                    told += worker.await.unwrap();
                }
                let stock = Versioned::<Db>::new("stock", "id", "version", "n");
                let mut conn = site.pool.acquire().await.unwrap();
                let (version, row) = stock.read(&mut conn, 7_i64).await.unwrap().unwrap();
                assert_eq!((version, row.get::<i64, _>("n")), (63, 160));
                // Each time that it was decided, it was written, or told.
                assert_eq!(calls.load(Ordering::Relaxed), 60 + told);
            });
        }

        #[test]
        fn what_is_not_written_is_told_apart() {
            run(async {
                let (site, stock) = open().await;
                let retry = TRIES;
                let nobody = stock.update(&site.pool, &*site.runtime, retry, 8_i64, |_| {
                    Ok::<_, Error>(Some(Change::new()))
                });
                assert_eq!(nobody.await.unwrap(), Updated::Missing { conflicts: 0 });
                let nothing = stock.update(&site.pool, &*site.runtime, retry, 7_i64, |_| {
                    Ok::<_, Error>(None)
                });
                let same = Updated::Unchanged {
                    version: 3,
                    conflicts: 0,
                };
                assert_eq!(nothing.await.unwrap(), same);
                let mine = || Box::<dyn std::error::Error + Send + Sync>::from("no");
                let failed = stock.update(&site.pool, &*site.runtime, retry, 7_i64, |_| Err(mine()));
                assert_eq!(failed.await.unwrap_err().to_string(), "no");
            });
        }

        #[test]
        fn it_gives_up_after_as_many_tries_as_were_said() {
            run(async {
                let (site, stock) = open().await;
                let retry = NonZeroU32::new(3).unwrap();
                let mut calls = 0;
                let pool = site.pool.clone();
                let handle = tokio::runtime::Handle::current();
                let beaten = stock.update(&site.pool, &*site.runtime, retry, 7_i64, |_| {
                    calls += 1;
                    // Somebody is faster each time.
                    tokio::task::block_in_place(|| {
                        handle.block_on(async {
                            let raise = "UPDATE stock SET version = version + 1";
                            sqlx::query(raise).execute(&pool).await.unwrap();
                        });
                    });
                    Ok::<_, Error>(Some(Change::new().set("n", 0_i64)))
                });
                // On a worker of the runtime, which may block.
                assert_eq!(beaten.await.unwrap(), Updated::GaveUp { conflicts: 3 });
                assert_eq!(calls, 3);
                let mut conn = site.pool.acquire().await.unwrap();
                let (version, row) = stock.read(&mut conn, 7_i64).await.unwrap().unwrap();
                assert_eq!((version, row.get::<i64, _>("n")), (6, 100));
            });
        }
    };
}

everywhere!(tests);
