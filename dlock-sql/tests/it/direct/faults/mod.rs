//! What goes wrong in a database, and by which word it is told.

use dlock_sql::direct::Failure;

/// A table with two rows, and how the first of them is locked.
macro_rules! stock {
    ($db:ty, $open:path, $one:literal) => {
        async fn open() -> Site<$db> {
            let site = $open().await;
            table(&site).await;
            site
        }

        async fn table(site: &Site<$db>) {
            for text in [
                "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)",
                "INSERT INTO stock VALUES (1, 10), (2, 20)",
            ] {
                sqlx::query(text).execute(&site.pool).await.unwrap();
            }
        }

        fn row() -> Rows<$db> {
            Rows::of("stock", concat!("SELECT * FROM stock WHERE id = ", $one)).bind(1_i64)
        }
    };
}

/// A transaction that has read before somebody else wrote is told so when it locks.
macro_rules! stale {
    ($site:expr, $old:expr) => {{
        let (site, mut old) = ($site, $old);
        let read = sqlx::query("SELECT n FROM stock").fetch_all(&mut *old);
        read.await.unwrap();
        let write = sqlx::query("UPDATE stock SET n = n + 1").execute(&site.pool);
        write.await.unwrap();
        let e = row().lock(&mut old).await.unwrap_err();
        assert_eq!((e.failure(), e.is_retryable()), (Failure::Serialization, true));
    }};
}

/// Two transactions that lock two rows in opposite order: one is ended, and the other goes on.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! deadlock {
    ($site:expr, $one:literal) => {{
        let site = $site;
        let row = |id: i64| Rows::of("stock", concat!("SELECT * FROM stock WHERE id = ", $one)).bind(id);
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

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
