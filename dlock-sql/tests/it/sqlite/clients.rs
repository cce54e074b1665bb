//! Through the engine: what a user sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::Client;
use dlock_sql::sqlite::Config;

use super::support::*;

#[test]
fn tasks_of_two_clients_and_two_connections_take_turns() {
    with_files(|files, runtime| async move {
        let mut clients = Vec::new();
        for _ in 0..2 {
            let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
            for _ in 0..2 {
                let backend = Arc::new(lock.clone());
                clients.push(Client::builder(backend, runtime.clone()).build().unwrap());
            }
        }
        let (inside, turns) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let tasks = clients.iter().flat_map(|c| [c.clone(), c.clone()]).map(|client| {
            let (inside, turns) = (inside.clone(), turns.clone());
            tokio::spawn(async move {
                let mut last = None;
                for _ in 0..20 {
                    let guard = client.lock("n").unwrap().acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                    assert!(guard.token() > last);
                    last = guard.token();
                    tokio::task::yield_now().await;
                    turns.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            })
        });
        for task in futures::future::join_all(tasks).await {
            task.unwrap();
        }
        assert_eq!(turns.load(Ordering::SeqCst), 160);
    });
}

#[test]
fn a_hand_over_between_connections_takes_milliseconds_not_a_ttl() {
    with_files(|files, runtime| async move {
        let mut clients = Vec::new();
        for _ in 0..2 {
            let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
            clients.push(Client::builder(Arc::new(lock), runtime.clone()).build().unwrap());
        }
        let first = clients[0].lock("n").unwrap().acquire().await.unwrap();
        let lock = clients[1].lock("n").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        runtime.sleep(ms(100)).await;
        let released = std::time::Instant::now();
        first.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        let gap = released.elapsed();
        assert!(gap < ms(2000), "{gap:?}");
    });
}
