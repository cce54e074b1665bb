//! What it costs, by the server's own count.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Mode;
use dlock_core::spi::{Lock as _, Release};
use dlock_zk::ZkLock;

use crate::servers::ZkServer;
use crate::{at_once, builder, client_of, granted, hands, here, key, queued, start, turn, until, waits};

/// Long enough that no ping of a session comes between two counts.
const UNHURRIED: Duration = Duration::from_secs(60);

async fn open(server: &Arc<ZkServer>) -> ZkLock {
    let builder = builder().session_timeout(UNHURRIED);
    builder.open(&server.address().to_string(), here()).await.unwrap()
}

async fn received(server: &Arc<ZkServer>, lock: &ZkLock) -> u64 {
    let session = lock.session_id().unwrap();
    let clients = hands(server, |s| s.clients()).await;
    clients.iter().find(|c| c.session == session).unwrap().received
}

/// Until what goes on in the background after an opening is done: the count stands still.
async fn quiet(server: &Arc<ZkServer>, lock: &ZkLock) -> u64 {
    loop {
        let before = received(server, lock).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if received(server, lock).await == before {
            return before;
        }
    }
}

#[tokio::test]
async fn a_cycle_costs_three_requests() {
    let server = start().await;
    let lock = open(&server).await;
    let longest = Duration::from_secs(120);
    let cycle = async |n: u64| {
        let k = key("x", 1, n);
        let mut request = queued(&k, Mode::Exclusive);
        request.ttl = longest;
        granted(&lock, &request).await;
        lock.release(&k, Release::Now).await.unwrap();
    };
    cycle(0).await;
    let before = quiet(&server, &lock).await;
    for n in 1..=100 {
        cycle(n).await;
    }
    assert_eq!(received(&server, &lock).await - before, 300);
}

#[tokio::test]
async fn an_unfair_cycle_costs_two_requests() {
    let server = start().await;
    let builder = builder().session_timeout(UNHURRIED).unfair();
    let lock = builder.open(&server.address().to_string(), here()).await.unwrap();
    let cycle = async |n: u64| {
        let k = key("x", 1, n);
        let mut request = at_once(&k, Mode::Exclusive);
        request.ttl = Duration::from_secs(120);
        granted(&lock, &request).await;
        lock.release(&k, Release::Now).await.unwrap();
    };
    cycle(0).await;
    let before = quiet(&server, &lock).await;
    for n in 1..=100 {
        cycle(n).await;
    }
    assert_eq!(received(&server, &lock).await - before, 200);
}

/// Create and list to join, a look with a watch, a list when it fires, a deletion: five, however long the line is.
#[tokio::test]
async fn a_hand_over_costs_five_requests_and_wakes_one() {
    // Who asks for a name for the first time makes its line, to be sure.
    const MADE: u64 = 1;
    let server = start().await;
    for waiters in [2_u64, 100] {
        let holder = open(&server).await;
        let waiting = open(&server).await;
        let name = format!("line-{waiters}");
        let first = key(&name, 1, 0);
        let ask = |n| {
            let mut request = queued(&key(&name, 2, n), Mode::Exclusive);
            request.ttl = Duration::from_secs(120);
            request
        };
        let mut request = queued(&first, Mode::Exclusive);
        request.ttl = Duration::from_secs(120);
        granted(&holder, &request).await;
        let before = quiet(&server, &waiting).await;
        let mut line = Vec::new();
        for n in 0..waiters {
            line.push(waits(&waiting, &ask(n)).await);
        }
        assert_eq!(
            received(&server, &waiting).await - before,
            2 * waiters + MADE,
            "to join"
        );
        // In the order of the line, each beside the others, as in the engine.
        let served: Vec<_> = line
            .into_iter()
            .enumerate()
            .map(|(n, mut wait)| {
                let (lock, key) = (waiting.clone(), ask(n as u64).key);
                tokio::spawn(async move {
                    let grant = turn(&mut wait).await;
                    lock.release(&key, Release::Now).await.unwrap();
                    grant.token.unwrap()
                })
            })
            .collect();
        let watched = before + 3 * waiters + MADE;
        until("all watch", Duration::from_secs(10), async || {
            received(&server, &waiting).await == watched
        })
        .await;
        holder.release(&first, Release::Now).await.unwrap();
        let mut tokens = Vec::new();
        for one in served {
            tokens.push(one.await.unwrap());
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert_eq!(
            received(&server, &waiting).await - before,
            5 * waiters + MADE,
            "{waiters} in line"
        );
    }
}

/// One question for the whole session, however much it holds.
#[tokio::test]
async fn a_session_is_asked_for_once_whatever_it_holds() {
    let server = start().await;
    let lock = builder()
        .session_timeout(Duration::from_secs(3))
        .open(&server.address().to_string(), here())
        .await
        .unwrap();
    let client = client_of(lock.clone());
    let mut guards = Vec::new();
    for n in 0..200 {
        guards.push(client.lock(format!("held-{n}")).unwrap().acquire().await.unwrap());
    }
    let before = received(&server, &lock).await;
    let from = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = received(&server, &lock).await - before;
    // Three questions in a life of 2 s at the most, and as many pings.
    let lives = from.elapsed().as_secs_f64() / 2.0;
    assert!(guards.iter().all(dlock_core::Guard::is_valid));
    let most = lives.ceil() * 16.0;
    assert!((requests as f64) < most, "{requests} requests in {lives} lives");
}
