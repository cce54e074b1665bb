//! Futures that are dropped half-way leave the pool as it was: nothing open in it, and none of its places
//! lost.

use super::site::everywhere;

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use std::time::Duration;

        use dlock_core::LockName;
        use dlock_sql::direct::Tables;
        use dlock_sql::direct::optimistic::{Change, TRIES, Versioned};
        use dlock_sql::direct::reentrant::ReentrantRows;
        use sqlx::pool::PoolOptions;
        use sqlx::{Pool, Row as _};

        use crate::direct::site::{LONG, Site, polled, run};

        type Db = $db;

        /// A pool with few places beside that of the site, in which nobody is dropped.
        async fn open() -> (Site<Db>, Pool<Db>) {
            let site = $open().await;
            for text in [
                "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, version BIGINT NOT NULL)",
                "INSERT INTO stock VALUES (7, 0, 0)",
                "CREATE TABLE written (n BIGINT)",
            ] {
                sqlx::query(text).execute(&site.pool).await.unwrap();
            }
            let options = (*site.pool.connect_options()).clone();
            let small = PoolOptions::new().max_connections(2);
            let small = small
                .acquire_timeout(Duration::from_secs(10))
                .connect_with(options);
            (site, small.await.unwrap())
        }

        /// Writes on whichever connection the pool has, outside of any transaction that we know of, and looks
        /// by another whether it is there.
        async fn is_in_order(site: &Site<Db>, small: &Pool<Db>, n: i64) {
            let text = concat!("INSERT INTO written VALUES (", $one, ")");
            sqlx::query(text).bind(n).execute(small).await.unwrap();
            let count: i64 = sqlx::query("SELECT count(*) FROM written")
                .fetch_one(&site.pool)
                .await
                .unwrap()
                .get(0);
            assert_eq!(count, n);
        }

        #[test]
        fn of_re_entrant_rows() {
            run(async {
                let (site, small) = open().await;
                let rows = ReentrantRows::new(small.clone(), Tables::default(), site.runtime.clone());
                rows.create_table().await.unwrap();
                let name = LockName::new("a").unwrap();
                let mut dropped = 0;
                for n in 1..=40 {
                    let mut owner = rows.owner("one").unwrap();
                    // Never left: what was entered is over soon.
                    let entered = owner.enter(&name, Duration::from_millis(5));
                    dropped += u32::from(polled(n, entered).await.is_none());
                    is_in_order(&site, &small, n as i64).await;
                }
                assert!(dropped > 0);
            });
        }

        #[test]
        fn of_optimistic_updates() {
            run(async {
                let (site, small) = open().await;
                let stock = Versioned::<Db>::new("stock", "id", "version", "n");
                let (mut dropped, mut told) = (0, 0);
                for n in 1..=40 {
                    let update = stock.update(&small, &*site.runtime, TRIES, 7_i64, |row| {
                        let n: i64 = row.get("n");
                        Ok::<_, dlock_sql::direct::Error>(Some(Change::new().set("n", n + 1)))
                    });
                    match polled(n, update).await {
                        None => dropped += 1,
                        Some(done) => {
                            let _ = done.unwrap();
                            told += 1;
                        }
                    }
                    is_in_order(&site, &small, n as i64).await;
                }
                assert!(dropped > 0);
                let mut conn = small.acquire().await.unwrap();
                let read = stock.read(&mut conn, 7_i64);
                let (version, _) = tokio::time::timeout(LONG, read)
                    .await
                    .unwrap()
                    .unwrap()
                    .unwrap();
                // Those that were dropped were done or not.
                assert!((told..=told + dropped).contains(&version));
            });
        }
    };
}

everywhere!(tests);
