//! Leases that end: what hung on them is lost, nothing of them counts any more, and another one is made
//! without a new client.

use std::sync::Arc;
use std::time::Instant;

use dlock_core::spi::{Lock as _, LostLeases, Release, Released, Signal};
use dlock_core::{Client, ErrorKind, LockOptions, LossReason};
use dlock_etcd::Config;
use dlock_testkit::{EtcdServer, Proxy};
use futures::StreamExt as _;

use crate::late::Late;
use crate::{
    LONG, SESSION, X, at_once, brief, client, client_of, granted, granted_in_the_end, hands, here, key, keys,
    leases, line, open, open_at, queued, revoke, start, turn, until, waits,
};

/// A renewal is due every third of its ttl. The mark tells it long before.
#[tokio::test]
async fn locks_on_a_revoked_lease_are_told_as_lost_at_once() {
    let server = start().await;
    let lock = open(&server).await;
    let client = client_of(lock.clone());
    let mut guards = Vec::new();
    for name in ["x", "y", "z"] {
        guards.push(client.lock(name).unwrap().acquire().await.unwrap());
    }
    let lease = lock.lease_id().unwrap();
    revoke(&server, lease).await;
    let from = Instant::now();
    for guard in &guards {
        let why = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert_eq!(why, LossReason::SessionLost);
        assert!(!guard.is_valid());
    }
    assert!(from.elapsed() < LONG / 6, "{:?}", from.elapsed());
    let again = client.lock("x").unwrap().acquire().await.unwrap();
    assert!(again.token() > guards[0].token());
    assert_ne!(lock.lease_id().unwrap(), lease);
    assert_eq!(leases(&server).await, [lock.lease_id().unwrap()]);
}

#[tokio::test]
async fn a_request_of_an_ended_lease_is_made_anew_on_the_next() {
    let server = start().await;
    let lock = open(&server).await;
    let mut signals = lock.signals();
    let k = key("x", 1, 1);
    let before = granted(&lock, &at_once(&k, X)).await;
    let lease = lock.lease_id().unwrap();
    revoke(&server, lease).await;
    loop {
        match tokio::time::timeout(LONG, signals.next()).await.unwrap() {
            Some(Signal::Lost(LostLeases::All, LossReason::SessionLost)) => break,
            Some(Signal::Doubt | Signal::Back) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::NotHeld);
    let next = key("x", 1, 2);
    let after = granted_in_the_end(&lock, &at_once(&next, X)).await;
    assert!(after.token > before.token);
    assert_eq!(line(&server).await.len(), 1);
}

/// Who renews nothing any more loses its lease, also if its driver is there yet (etcd's issue 17470).
#[tokio::test]
async fn nothing_stays_of_a_client_that_is_dropped() {
    let server = start().await;
    let lock = brief(&server).await;
    let (lease, next) = (lock.lease_id().unwrap(), open(&server).await);
    let client = client_of(lock);
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    client.abort();
    drop(client);
    let mut wait = waits(&next, &queued(&key("x", 2, 1), X)).await;
    let from = Instant::now();
    turn(&mut wait).await;
    // It is late by a second at the most.
    let took = from.elapsed();
    assert!(took < SESSION + SESSION / 2 + LONG / 20, "{took:?}");
    assert!(!guard.is_valid());
    until("its lease is gone", LONG, async || {
        !leases(&server).await.contains(&lease)
    })
    .await;
}

#[tokio::test]
async fn a_client_that_holds_nothing_is_gone_when_it_is_dropped() {
    let server = start().await;
    let lock = open(&server).await;
    let client = client_of(lock);
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    guard.release().await.unwrap();
    drop(client);
    let took = until("its lease is gone", LONG, async || {
        leases(&server).await.is_empty()
    })
    .await;
    assert!(took < LONG / 4, "{took:?}");
}

#[tokio::test]
async fn a_client_that_is_closed_is_gone_at_once() {
    let server = start().await;
    let lock = open(&server).await;
    let client = client_of(lock.clone());
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    client.close().await.unwrap();
    assert!(!guard.is_valid());
    let took = until("its lease is gone", LONG, async || {
        leases(&server).await.is_empty()
    })
    .await;
    assert!(took < LONG / 4, "{took:?}");
    assert!(keys(&server, "dlock").await.is_empty());
    let e = lock.attempt(&at_once(&key("x", 1, 1), X)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn closing_one_client_of_a_lease_ends_nothing_of_the_others() {
    let server = start().await;
    let lock = brief(&server).await;
    let lease = lock.lease_id();
    let (a, b) = (client_of(lock.clone()), client_of(lock.clone()));
    let kept = b.lock("x").unwrap().acquire().await.unwrap();
    let ended = a.lock("y").unwrap().acquire().await.unwrap();
    a.close().await.unwrap();
    assert!(!ended.is_valid());
    // It is renewed past its ttl.
    tokio::time::sleep(SESSION + SESSION / 2).await;
    assert!(kept.is_valid(), "{:?}", kept.loss());
    assert_eq!((line(&server).await.len(), lock.lease_id()), (1, lease));
    b.close().await.unwrap();
    until("its lease is gone", LONG, async || {
        leases(&server).await.is_empty()
    })
    .await;
}

/// The upkeep ends when the last one has gone, and begins again with the next: who comes just then waits for
/// neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_as_the_last_one_goes_is_served() {
    let server = start().await;
    let lock = open(&server).await;
    for n in 0..1_000 {
        let client = client_of(lock.clone());
        let from = Instant::now();
        client.inspect("x").await.unwrap();
        assert!(from.elapsed() < LONG / 10, "{n}: {:?}", from.elapsed());
        drop(client);
        // Not long enough for a timer.
        for _ in 0..fastrand::u32(0..6_000) {
            std::hint::spin_loop();
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lock_stays_held_while_its_server_is_started_again() {
    let server = start().await;
    let (lock, other) = (open(&server).await, client(&server).await);
    let lease = lock.lease_id();
    let client = client_of(lock.clone());
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("x").unwrap().acquire().await });
    until("it waits", LONG, async || line(&server).await.len() == 2).await;
    for end in [EtcdServer::crash, EtcdServer::stop_in_order] {
        hands(&server, move |s| {
            end(s)?;
            s.start_again()
        })
        .await;
        until("it goes on", LONG, async || {
            let lock = client.lock("y").unwrap();
            matches!(lock.try_acquire().await, Ok(Some(_)))
        })
        .await;
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert_eq!(lock.lease_id(), lease);
    }
    assert!(!waiting.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(LONG, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(next.token() > token);
}

/// The data are put back from a snapshot that was taken before.
#[tokio::test]
async fn a_lease_that_the_server_forgot_is_lost_and_another_one_made() {
    let server = start().await;
    let snapshot = hands(&server, |s| s.snapshot()).await;
    let lock = open(&server).await;
    let lease = lock.lease_id();
    let client = client_of(lock.clone());
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    hands(&server, move |s| s.restore(&snapshot)).await;
    let from = Instant::now();
    let why = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
    assert_eq!(why, LossReason::SessionLost);
    assert!(from.elapsed() < LONG / 2, "it was not its deadline");
    let again = client.lock("x").unwrap().acquire().await.unwrap();
    assert!(again.is_valid());
    assert_ne!(lock.lease_id(), lease);
    assert_eq!(line(&server).await.len(), 1);
}

/// The holder hears nothing, and no other is granted before it stops believing.
#[tokio::test]
async fn a_guard_ends_by_its_own_clock_while_nothing_is_heard() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let config = crate::config(proxy.address()).session_timeout(SESSION);
    let client = client_of(config.connect(here()).await.unwrap());
    let next = open(&server).await;
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let mut wait = waits(&next, &queued(&key("x", 2, 1), X)).await;
    proxy.bar(|_| true);
    let lost = async {
        tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        Instant::now()
    };
    let granted = async {
        turn(&mut wait).await;
        Instant::now()
    };
    let (lost, granted) = futures::join!(lost, granted);
    assert!(lost < granted, "{:?}", lost - granted);
    next.release(&key("x", 2, 1), Release::Now).await.unwrap();
    proxy.bar(|_| false);
    until("the same client has it again", LONG, async || {
        matches!(client.lock("x").unwrap().try_acquire().await, Ok(Some(_)))
    })
    .await;
}

/// Without a connection to it a client goes on with the lease that it has.
#[tokio::test]
async fn a_connection_that_breaks_costs_no_lease() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let lock = open_at(proxy.address()).await;
    let (lease, k) = (lock.lease_id(), key("x", 1, 1));
    let before = granted(&lock, &at_once(&k, X)).await;
    for _ in 0..5 {
        proxy.cut();
        let again = granted_in_the_end(&lock, &at_once(&k, X)).await;
        assert_eq!(again.token, before.token);
    }
    assert_eq!(lock.lease_id(), lease);
    assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::Released);
}

/// What was asked on it before goes on, so that it does not break.
#[tokio::test]
async fn a_connection_that_takes_no_more_is_replaced() {
    let server = start().await;
    let late = Late::before(server.address());
    let lock = open_at(late.address()).await;
    let (lease, k) = (lock.lease_id(), key("x", 1, 1));
    let before = granted(&lock, &at_once(&k, X)).await;
    late.go_away();
    let from = Instant::now();
    let mut n = 1;
    while late.count() < 2 {
        n += 1;
        // It is known of each that it was not sent.
        if let Err(e) = lock.attempt(&queued(&key("x", 1, n), X)).await {
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        }
        assert!(from.elapsed() < LONG, "there is no other one");
    }
    let again = granted_in_the_end(&lock, &at_once(&k, X)).await;
    assert_eq!((again.token, lock.lease_id()), (before.token, lease));
}

/// It takes connections, and never says a word. The member behind it is asked before the lease runs out,
/// however long a connection may take.
#[tokio::test]
async fn a_member_that_says_nothing_costs_no_lease() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let all = [proxy.address(), silent.local_addr().unwrap(), server.address()];
    let config = Config::new(&all.map(|address| address.to_string()).join(","));
    let config = config.session_timeout(SESSION * 2).timeout(LONG);
    let lock = config.connect(here()).await.unwrap();
    let (lease, client) = (lock.lease_id(), client_of(lock.clone()));
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    proxy.bar(|_| true);
    until("it asks the third", LONG, async || {
        matches!(client.lock("y").unwrap().try_acquire().await, Ok(Some(_)))
    })
    .await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    assert_eq!(lock.lease_id(), lease);
    assert_eq!(keys(&server, "dlock/x/").await[0].lease(), lease.unwrap());
}

/// The lease would last for a minute yet.
#[tokio::test]
async fn a_silent_member_is_found_out_long_before_the_lease_ends() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let all = [proxy.address(), server.address()].map(|address| address.to_string());
    let config = Config::new(&all.join(",")).session_timeout(LONG * 3);
    let lock = Arc::new(config.connect(here()).await.unwrap());
    let client = Client::builder(lock, here()).defaults(LockOptions::new().ttl(LONG * 3));
    let client = client.build().unwrap();
    proxy.mute();
    let took = until("it asks the other", LONG, async || {
        matches!(client.lock("x").unwrap().try_acquire().await, Ok(Some(_)))
    })
    .await;
    assert!(took < LONG / 2, "{took:?}");
}
