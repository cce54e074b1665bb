//! Grants that count when the replicas have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::spi::{Acquire, Attempt, Lock as _, Release, RenewItem, RenewOutcome};
use dlock_core::{Client, ErrorKind, LossReason};
use dlock_redis::{Config, RedisLock};

use crate::counts::calls;
use crate::{client, config, here, is_granted, key, queued, until};
use dlock_testkit::{self, RedisOptions, RedisPair, RedisServer};

/// An operation of these clients, and the last try that it began within that time.
const LIMIT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);

fn pair() -> RedisPair {
    let pair = RedisPair::with(RedisOptions::new()).unwrap();
    wait_until_it_acknowledges(&pair);
    pair
}

/// The replica says that it is in sync up to a second before it acknowledges anything.
fn wait_until_it_acknowledges(pair: &RedisPair) {
    dlock_testkit::until("the replica acknowledges", Duration::from_secs(60), || {
        let mut connection = pair.serving().connection()?;
        connection.ask(&["SET", "written", "", "PX", "1"])?;
        Ok(connection.ask(&["WAIT", "1", "1000"])?.number()? == 1)
    })
    .unwrap();
}

/// After it was cut off.
fn join_again(pair: &RedisPair) {
    pair.serving().let_replicas_in().unwrap();
    wait_until_it_acknowledges(pair);
}

async fn open(pair: &RedisPair) -> RedisLock {
    let url = format!("redis://{}", pair.address());
    config(&url)
        .timeout(TIMEOUT)
        .replicas(1)
        .connect(here())
        .await
        .unwrap()
}

async fn strict(pair: &RedisPair) -> Client {
    client_of(open(pair).await)
}

fn client_of(lock: RedisLock) -> Client {
    let client = Client::builder(Arc::new(lock), here());
    client.op_timeout(TIMEOUT).build().unwrap()
}

/// A client that asks no replicas, at a server that has just moved.
async fn after_failover(pair: &RedisPair) -> Client {
    let from = Instant::now();
    loop {
        match config(&pair.serving().url()).connect(here()).await {
            Ok(lock) => return crate::client_of(lock),
            Err(e) => assert!(from.elapsed() < Duration::from_secs(20), "{e}"),
        }
    }
}

/// The keys of holds and queues.
fn held(server: &RedisServer) -> Vec<String> {
    let keys = server.ask(&["KEYS", "dlock{??}:1:*"]).unwrap().list().unwrap();
    keys.iter().map(dlock_testkit::Value::text).collect()
}

#[tokio::test]
async fn a_grant_that_was_told_outlives_the_master() {
    let pair = pair();
    let one = strict(&pair).await;
    let two = client(pair.serving()).await;
    for n in 0..5 {
        let name = format!("x{n}");
        let guard = one.lock(&name).unwrap().acquire().await.unwrap();
        pair.fail_over().unwrap();
        let lock = two.lock(&name).unwrap();
        until("the new master answers", Duration::from_secs(5), async || {
            lock.try_acquire().await.map(|g| assert!(g.is_none())).is_ok()
        })
        .await;
        assert!(guard.is_valid());
        until("it is released there", Duration::from_secs(5), async || {
            guard.renew().await.is_ok()
        })
        .await;
        guard.release().await.unwrap();
        lock.try_acquire()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn too_few_replicas_are_an_error_in_time_and_nothing_is_left() {
    let pair = pair();
    let one = strict(&pair).await;
    one.lock("w")
        .unwrap()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    pair.serving().cut_replicas().unwrap();
    for lag in [false, true] {
        if lag {
            // One that is there, and does not get on.
            join_again(&pair);
            pair.standing_by().pause().unwrap();
        }
        let lock = one.lock("x").unwrap();
        let from = Instant::now();
        for e in [
            lock.try_acquire().await.unwrap_err(),
            lock.acquire().await.unwrap_err(),
        ] {
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
            assert!(e.to_string().contains("0 of 1 replicas"), "{e}");
            assert!(e.to_string().contains("INFO replication"), "{e}");
        }
        assert!(from.elapsed() < LIMIT * 2, "{:?}", from.elapsed());
        until("nothing is held", Duration::from_secs(2), async || {
            held(pair.serving()).is_empty()
        })
        .await;
    }
    pair.standing_by().go_on().unwrap();
    let lock = one.lock("x").unwrap();
    until("the replica has caught up", Duration::from_secs(20), async || {
        lock.try_acquire().await.is_ok_and(|g| g.is_some())
    })
    .await;
}

#[tokio::test]
async fn a_renewal_that_no_replica_acknowledged_changes_nothing() {
    let pair = pair();
    let lock = open(&pair).await;
    let lease = key("x", 1, 1);
    let ttl = Duration::from_secs(4);
    let grant = lock.attempt(&Acquire::new(lease.clone(), ttl)).await.unwrap();
    assert!(is_granted(&grant));
    pair.serving().cut_replicas().unwrap();
    let renewed = lock
        .renew()
        .unwrap()
        .renew(&[RenewItem::lease(lease.clone(), ttl)])
        .await
        .pop();
    match renewed {
        Some(RenewOutcome::Failed(e)) => {
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
            assert!(e.to_string().contains("0 of 1"), "{e}");
        }
        other => panic!("{other:?}"),
    }
    lock.release(&lease, Release::Now).await.unwrap();
    // And at a guard: it ends by its own deadline.
    join_again(&pair);
    let client = client_of(lock);
    let options = dlock_core::LockOptions::new().ttl(ttl);
    let name = client.lock("y").unwrap().options(options).unwrap();
    let (guard, healed) = (name.acquire().await.unwrap(), client.lock("z").unwrap());
    pair.serving().cut_replicas().unwrap();
    let deadline = guard.deadline();
    let ends = Instant::now() + guard.remaining();
    let e = guard.renew().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
    assert_eq!(guard.deadline(), deadline);
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert!(ends.elapsed() < Duration::from_secs(1), "{:?}", ends.elapsed());
    // When they are back in time it lives on.
    join_again(&pair);
    let guard = healed.acquire().await.unwrap();
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
}

/// The next one has it only when the replicas know that: the push alone is no grant.
#[tokio::test]
async fn a_hand_over_counts_when_it_was_acknowledged() {
    let pair = pair();
    let (one, two) = (strict(&pair).await, strict(&pair).await);
    for cut in [false, true] {
        let guard = one.lock("x").unwrap().acquire().await.unwrap();
        let lock = two.lock("x").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("it is in line", Duration::from_secs(5), async || {
            !pair
                .serving()
                .ask(&["KEYS", "dlock{*}:1:x:q"])
                .unwrap()
                .list()
                .unwrap()
                .is_empty()
        })
        .await;
        if cut {
            pair.serving().cut_replicas().unwrap();
        }
        guard.release().await.unwrap();
        let got = waiting.await.unwrap();
        if cut {
            let e = got.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
            assert!(e.to_string().contains("0 of 1"), "{e}");
            until("nothing is held", Duration::from_secs(2), async || {
                held(pair.serving()).is_empty()
            })
            .await;
        } else {
            let got = got.unwrap();
            // What was pushed is good for a claim window until it is renewed.
            got.renew().await.unwrap();
            pair.fail_over().unwrap();
            let other = after_failover(&pair).await;
            assert!(other.lock("x").unwrap().try_acquire().await.unwrap().is_none());
            until("it is renewed there", Duration::from_secs(5), async || {
                got.renew().await.is_ok()
            })
            .await;
            got.release().await.unwrap();
        }
    }
}

/// The master dies while the replicas are asked, and one takes over that has never heard of the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_while_it_waits_is_no_grant() {
    let pair = Arc::new(pair());
    let lock = open(&pair).await;
    let other = client(pair.serving()).await;
    let (a, b) = (key("x", 1, 1), key("x", 1, 2));
    let granted = pair
        .fail_over_to_stale(|| {
            // It is granted at the master, and waits for a replica when that dies.
            let (lock, a) = (lock.clone(), a.clone());
            let asking = tokio::spawn(async move { lock.attempt(&queued(&a)).await });
            let from = Instant::now();
            while held(pair.serving()).is_empty() {
                assert!(from.elapsed() < Duration::from_secs(5));
            }
            asking
        })
        .unwrap()
        .await
        .unwrap();
    assert!(granted.is_err(), "{granted:?}");
    let name = other.lock("x").unwrap();
    until("another one has it", Duration::from_secs(5), async || {
        name.try_acquire().await.is_ok_and(|g| g.is_some())
    })
    .await;
    until(
        "it is granted at the new master",
        Duration::from_secs(5),
        async || {
            lock.attempt(&Acquire::new(b.clone(), Duration::from_secs(1)))
                .await
                .is_ok_and(|a| is_granted(&a))
        },
    )
    .await;
}

#[tokio::test]
async fn readers_conversions_and_tokens_are_acknowledged_too() {
    let pair = pair();
    let client = strict(&pair).await;
    let rw = client.rwlock("x").unwrap();
    let read = rw.read().acquire().await.unwrap();
    assert_eq!(read.try_upgrade().await.unwrap(), dlock_core::Upgrade::Done);
    let token = read.token();
    pair.fail_over().unwrap();
    let other = after_failover(&pair).await;
    assert!(
        other
            .rwlock("x")
            .unwrap()
            .read()
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    until("it is renewed there", Duration::from_secs(5), async || {
        read.renew().await.is_ok()
    })
    .await;
    assert_eq!(read.token(), token);
    pair.serving().cut_replicas().unwrap();
    let e = read.downgrade().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unknown, "{e:?}");
    join_again(&pair);
    until("it is settled", Duration::from_secs(5), async || {
        read.downgrade().await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_share_a_question() {
    let pair = pair();
    let client = strict(&pair).await;
    let before = |what| calls(pair.serving(), what);
    let lock = client.lock("w").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let (waits, scripts) = (before("wait"), before("evalsha"));
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!((before("wait"), before("evalsha")), (waits + 1, scripts + 3));
    let (waits, scripts) = (before("wait"), before("evalsha"));
    let all = (0..200).map(|n| {
        let lock = client.lock(format!("n{n}")).unwrap();
        tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let (waits, scripts) = (before("wait") - waits, before("evalsha") - scripts);
    assert!(
        waits < 100 && scripts < 500,
        "{waits} times WAIT, {scripts} scripts"
    );
    // Renewals: 128 in a script and in a mark, and few times WAIT.
    let lock = open(&pair).await;
    let leases: Vec<_> = (0..2_000).map(|n| key(&format!("lease-{n}"), 1, n)).collect();
    let ttl = Duration::from_secs(60);
    let asked = leases.iter().map(|l| {
        let (lock, request) = (lock.clone(), Acquire::new(l.clone(), ttl));
        async move { assert!(matches!(lock.attempt(&request).await, Ok(Attempt::Granted(_)))) }
    });
    futures::future::join_all(asked).await;
    let waits = before("wait");
    let items: Vec<_> = leases.iter().map(|l| RenewItem::lease(l.clone(), ttl)).collect();
    let outcomes = lock.renew().unwrap().renew(&items).await;
    assert!(outcomes.iter().all(|o| matches!(o, RenewOutcome::Renewed(_))));
    let waits = before("wait") - waits;
    assert!(waits <= 5, "{waits}");
}

#[tokio::test]
async fn a_server_without_the_replicas_is_refused() {
    let server = RedisServer::start().unwrap();
    let from = Instant::now();
    let e = config(&server.url())
        .replicas(1)
        .connect(here())
        .await
        .unwrap_err();
    assert!(from.elapsed() < Duration::from_secs(2));
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
    assert!(e.to_string().contains("has 0 replicas in sync, and 1"), "{e}");
    let pair = pair();
    let url = format!("redis://{}", pair.address());
    let e = config(&url).replicas(2).connect(here()).await.unwrap_err();
    assert!(e.to_string().contains("has 1 replicas in sync, and 2"), "{e}");
    // A client that is there already, with the second connection of its own.
    let own = dlock_redis::redis::Client::open(url).unwrap();
    let lock = Config::from_client(own)
        .replicas(1)
        .connect(here())
        .await
        .unwrap();
    client_of(lock).lock("x").unwrap().acquire().await.unwrap();
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn a_cluster_is_refused_before_it_is_asked() {
    let e = config("redis+cluster://127.0.0.1:9")
        .replicas(1)
        .connect(here())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}
