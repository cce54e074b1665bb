//! What it costs the server, counted there: a promise about commands and keys, not about time.

use std::time::Duration;

use dlock_core::Mode;
use dlock_core::spi::{Acquire, Lock as _, Release, RenewItem, RenewOutcome};
use futures::StreamExt as _;

use crate::{TTL, client, key, open, queued, until};
use dlock_testkit::{RedisServer, field};

/// How many commands clients have sent, by its statistics: those of scripts are counted apart.
pub(crate) fn calls(server: &RedisServer, command: &str) -> u64 {
    let text = server.ask(&["INFO", "commandstats"]).unwrap().text();
    let line = field(&text, &format!("cmdstat_{command}")).unwrap_or_default();
    let calls = line.split(',').find_map(|part| part.strip_prefix("calls="));
    calls.map_or(0, |n| n.parse().unwrap())
}

fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.ask(&["KEYS", "*"]).unwrap().list().unwrap();
    keys.iter().map(dlock_testkit::Value::text).collect()
}

#[tokio::test]
async fn an_uncontended_cycle_is_two_commands() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    let lock = client.lock("x").unwrap();
    // The first one loads the scripts and begins to listen.
    lock.acquire().await.unwrap().release().await.unwrap();
    let before = (
        calls(&server, "evalsha"),
        calls(&server, "eval"),
        calls(&server, "subscribe"),
    );
    for _ in 0..100 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let after = (
        calls(&server, "evalsha"),
        calls(&server, "eval"),
        calls(&server, "subscribe"),
    );
    assert_eq!(after, (before.0 + 200, before.1, before.2));
}

#[tokio::test]
async fn ten_thousand_leases_are_renewed_in_a_hundred_commands() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let leases: Vec<_> = (0..10_000).map(|n| key(&format!("lease-{n}"), 1, n)).collect();
    for lease in &leases {
        let request = Acquire::new(lease.clone(), Duration::from_secs(60)).with_owner("host-1".into());
        lock.attempt(&request).await.unwrap();
    }
    let before = calls(&server, "evalsha");
    let items: Vec<_> = leases
        .iter()
        .map(|lease| RenewItem::lease(lease.clone(), Duration::from_secs(60)))
        .collect();
    let outcomes = lock.renew().unwrap().renew(&items).await;
    let renewed = |o: &&RenewOutcome| matches!(o, RenewOutcome::Renewed(_));
    assert_eq!(outcomes.iter().filter(renewed).count(), 10_000);
    // One more where the script was not there yet.
    let commands = calls(&server, "evalsha") - before;
    assert!(commands <= 100, "{commands}");
}

/// Of names that nobody uses any more the counters stay, which 256 buckets share, and nothing else.
#[tokio::test]
async fn nothing_is_left_of_names_but_the_counters_of_their_buckets() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    for n in 0..1_000 {
        let lease = key(&format!("name-{n}"), 1, n);
        lock.attempt(&Acquire::new(lease.clone(), TTL)).await.unwrap();
        lock.release(&lease, Release::Now).await.unwrap();
        lock.watch().unwrap().inspect(&lease.name).await.unwrap();
    }
    let left = keys(&server);
    assert!(
        left.len() <= 256 && left.iter().all(|k| k.ends_with("}:t")),
        "{left:?}"
    );
}

/// With waiters, readers, permits and watches too, once they are gone.
#[tokio::test]
async fn waiters_leave_no_keys() {
    let server = RedisServer::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let held = one.lock("x").unwrap().acquire().await.unwrap();
    let (pool, rw) = (two.semaphore("p", 2).unwrap(), two.rwlock("rw").unwrap());
    let (a, b) = (pool.acquire().await.unwrap(), rw.read().acquire().await.unwrap());
    let lock = two.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.release().await.unwrap();
    waiting.await.unwrap();
    a.release().await.unwrap();
    b.release().await.unwrap();
    let left: Vec<_> = keys(&server)
        .into_iter()
        .filter(|k| !k.ends_with("}:t"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Watches too: at once, and not when they would run out.
#[tokio::test]
async fn watches_leave_no_keys() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    for n in 0..50 {
        let name = dlock_core::LockName::new(format!("name-{n}")).unwrap();
        let mut changes = lock.watch().unwrap().watch(&name).await.unwrap();
        changes.next().await.unwrap().unwrap();
    }
    until("nothing is left", Duration::from_secs(5), async || {
        let channels = server.ask(&["PUBSUB", "CHANNELS", "dlock{*"]).unwrap();
        keys(&server).is_empty() && channels.list().unwrap().is_empty()
    })
    .await;
}

/// A watcher that is gone costs one message more: by the next change, or by one that closes its own watch.
#[tokio::test]
async fn changes_are_told_only_while_someone_listens() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let reads = |n| Acquire::new(key("x", 1, n), TTL * 5).with_mode(Mode::READER);
    lock.attempt(&reads(0)).await.unwrap();
    let found = keys(&server);
    let entries = found.iter().find(|k| k.ends_with(":1:x:e")).unwrap();
    let told = async || server.ask(&["HEXISTS", entries, "o"]).unwrap().number().unwrap() == 1;

    let mut changes = lock.watch().unwrap().watch(&reads(0).key.name).await.unwrap();
    changes.next().await.unwrap().unwrap();
    assert!(told().await);
    drop(changes);
    until(
        "it is told that nobody listens",
        Duration::from_secs(5),
        async || !told().await,
    )
    .await;

    // As of a watcher whose machine is gone.
    let watch = || server.ask(&["HSET", entries, "o", "9999999999999"]).unwrap();
    watch();
    lock.attempt(&reads(1)).await.unwrap();
    assert!(!told().await);
    lock.release(&reads(0).key, Release::Now).await.unwrap();
    watch();
    lock.release(&reads(1).key, Release::Now).await.unwrap();
    let left = keys(&server);
    assert!(left.iter().all(|k| k.ends_with("}:t")), "{left:?}");
}

/// However long it waited, and however long ago the client heard of the server's time: one command to join
/// the line, one that hands over, and where it is held for longer than a part of the claim window one that
/// confirms.
#[tokio::test]
async fn a_hand_over_to_a_client_that_was_idle_is_three_commands() {
    let server = RedisServer::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    for (hold, commands) in [(Duration::ZERO, 1), (Duration::from_millis(500), 2)] {
        let held = one.lock("x").unwrap().acquire().await.unwrap();
        let before = calls(&server, "evalsha");
        let lock = two.lock("x").unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(calls(&server, "evalsha") - before, 1, "to join the line");
        held.release().await.unwrap();
        let next = waiting.await.unwrap();
        tokio::time::sleep(hold).await;
        assert_eq!(
            calls(&server, "evalsha") - before,
            1 + commands,
            "held for {hold:?}"
        );
        next.release().await.unwrap();
        // The visit at the end of the claim window is no part of a hand-over, and there is one.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(calls(&server, "evalsha") - before, 3 + commands);
    }
}

#[tokio::test]
async fn readers_are_renewed_together_too() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let reads = |name: &str, n, ttl| Acquire::new(key(name, 1, n), ttl).with_mode(Mode::READER);
    for (name, ttl, many) in [("x", 60_000, 1_000), ("y", 1_500, 10)] {
        let time = Duration::from_millis(ttl as u64);
        let leases: Vec<_> = (0..many).map(|n| reads(name, n, time)).collect();
        for lease in &leases {
            lock.attempt(lease).await.unwrap();
        }
        let keys = || {
            keys(&server)
                .into_iter()
                .filter(|k| k.contains(&format!(":1:{name}:")))
        };
        // As after some renewals.
        for key in keys() {
            server.ask(&["PEXPIRE", &key, &(ttl - 100).to_string()]).unwrap();
        }
        let renewals = leases.iter().map(|l| RenewItem::lease(l.key.clone(), time));
        let before = calls(&server, "evalsha");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let outcomes = lock.renew().unwrap().renew(&renewals.collect::<Vec<_>>()).await;
        assert!(
            outcomes.iter().all(|o| matches!(o, RenewOutcome::Renewed(_))),
            "{outcomes:?}"
        );
        let commands = calls(&server, "evalsha") - before;
        assert!(commands <= 9, "{commands}");
        // All of them have all of their time again, and what they stand in lives as long.
        let name = dlock_core::LockName::new(name).unwrap();
        for holder in lock.watch().unwrap().inspect(&name).await.unwrap().holders {
            assert!(
                holder.expires_in > time - Duration::from_millis(200),
                "{holder:?}"
            );
        }
        for key in keys() {
            let life = server.ask(&["PTTL", &key]).unwrap().number().unwrap();
            assert!(life >= ttl - 200, "{key} goes in {life} ms");
        }
    }
    // What is over is not extended, though nobody has met its end.
    let brief = reads("x", 2_000, Duration::from_millis(50));
    lock.attempt(&brief).await.unwrap();
    tokio::time::sleep(brief.ttl * 2).await;
    let late = lock
        .renew()
        .unwrap()
        .renew(&[RenewItem::lease(brief.key, brief.ttl)])
        .await;
    assert!(matches!(late[..], [RenewOutcome::Gone]), "{late:?}");
}

/// A waiter is told of its turn, and is asked whether it is there where readers could pass it. It is sent no
/// more than that, and an operator's look costs watchers nothing.
#[tokio::test]
async fn nobody_is_told_of_what_changes_nothing() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, open(&server).await);
    let reads = |n| Acquire::new(key("x", 1, n), TTL * 5).with_mode(Mode::READER);
    for n in 0..2 {
        lock.attempt(&reads(n)).await.unwrap();
    }
    let writer = queued(&key("x", 2, 1));
    other.attempt(&writer).await.unwrap();
    let told = || calls(&server, "publish");
    let before = told();
    lock.release(&reads(0).key, Release::Now).await.unwrap();
    assert_eq!(told(), before, "a reader goes, another stays");
    lock.attempt(&Acquire::new(key("x", 1, 2), TTL)).await.unwrap();
    assert_eq!(told(), before, "another writer tries");
    other.attempt(&writer).await.unwrap();
    assert_eq!(told(), before, "the waiter asks");
    lock.attempt(&reads(3)).await.unwrap();
    assert_eq!(told(), before + 1, "a reader asks whether it is there");

    let name = dlock_core::LockName::new("y").unwrap();
    let mut changes = other.watch().unwrap().watch(&name).await.unwrap();
    changes.next().await.unwrap().unwrap();
    let before = told();
    lock.watch().unwrap().inspect(&name).await.unwrap();
    assert_eq!(told(), before, "an operator looks");
}
