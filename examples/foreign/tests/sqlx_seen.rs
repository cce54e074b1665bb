//! What is seen of sqlx's advisory locks beside what they promise, without the kit. `DATABASE_URL` names the
//! server.

use std::time::Duration;

use futures::FutureExt;
use sqlx::Either;
use sqlx::postgres::{PgAdvisoryLock, PgPool};

async fn pool() -> PgPool {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is not set");
    PgPool::connect(&url).await.expect("PostgreSQL is there")
}

/// A lock of its own for each test.
fn lock(what: &str) -> PgAdvisoryLock {
    PgAdvisoryLock::new(format!("sqlx-seen-{}-{what}", std::process::id()))
}

/// 8.12, 9.03: the connection is back in its pool, and holds the lock.
#[tokio::test]
async fn a_release_that_is_dropped_keeps_the_lock() {
    let (lock, other) = (lock("released"), pool().await);
    let pool = loop {
        let pool = pool().await;
        let guard = lock.acquire(pool.acquire().await.expect("one is free")).await.expect("it is free");
        // As a `select!` does that has waited for something else. The server may have been faster.
        if guard.release_now().now_or_never().is_none() {
            break pool;
        }
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(pool.num_idle(), 1);
    let tried = lock.try_acquire(other.acquire().await.expect("one is free")).await;
    assert!(matches!(tried.expect("PostgreSQL answers"), Either::Right(_)));
}

/// 4.08, 9.11.
#[tokio::test]
async fn a_guard_dropped_outside_of_tokio_panics() {
    let (lock, pool) = (lock("dropped"), pool().await);
    let guard = lock.acquire(pool.acquire().await.expect("one is free")).await.expect("it is free");
    assert!(std::thread::spawn(move || drop(guard)).join().is_err());
}
