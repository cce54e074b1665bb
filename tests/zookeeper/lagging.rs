//! A follower that lags: it stands still for a while, and then answers from what it had before it has caught up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::site::{Judge, LONG, acquired, blocking, client, ensemble};

/// How often each client takes its turn.
const ROUNDS: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_members_take_turns_while_a_follower_lags() {
    let all = ensemble().await;
    let judge = Arc::new(Judge::default());
    let mut clients = Vec::new();
    // Two of each member, which know no other.
    for at in all.addresses().into_iter().chain(all.addresses()) {
        let judge = judge.clone();
        clients.push(tokio::spawn(async move {
            let client = client(&[at]).await;
            for _ in 0..ROUNDS {
                let guard = acquired(&client).await;
                judge.sees(&guard);
                tokio::task::yield_now().await;
                // One that stood still itself may have lost it, and knows.
                let valid = guard.is_valid();
                let released = guard.release().await;
                assert!(released.is_ok() || !valid, "{released:?}");
            }
        }));
    }
    let done = Arc::new(AtomicBool::new(false));
    let (lagging, over) = (all.clone(), done.clone());
    let lags = tokio::task::spawn_blocking(move || {
        let follower = &lagging.members()[lagging.a_follower().unwrap()];
        let mut times = 0;
        while !over.load(Ordering::Relaxed) {
            follower.pause().unwrap();
            std::thread::sleep(Duration::from_millis(300));
            follower.go_on().unwrap();
            std::thread::sleep(Duration::from_millis(100));
            times += 1;
        }
        times
    });
    for client in clients {
        tokio::time::timeout(LONG, client).await.unwrap().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    assert!(lags.await.unwrap() > 3, "it lagged while they took turns");
    assert_eq!(judge.grants(), 6 * ROUNDS);
    blocking(move || all.wait_until_ok().unwrap()).await;
}
