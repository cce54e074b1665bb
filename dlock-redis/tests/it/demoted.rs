//! A master that becomes a replica while clients stay connected to it: they hear nothing of it, and what its
//! new master tells *its* clients is not for them.

use std::time::Duration;

use dlock_core::spi::{Acquire, Lock as _};
use dlock_core::{ErrorKind, LockOptions};

use crate::{TTL, client, key, open, until};
use dlock_testkit::{RedisOptions, RedisServer};

const SOON: Duration = Duration::from_secs(10);

/// On the new master the turn of the one that waits at the old one finds nobody, and goes to another.
#[tokio::test]
async fn a_turn_that_another_server_gave_away_is_not_taken() {
    let old = RedisServer::start().unwrap();
    let new = RedisServer::with(RedisOptions::new().replica_of(old.address())).unwrap();
    new.wait_until_in_sync(SOON).unwrap();
    let here = client(&old).await;
    let held = here.lock("x").unwrap().acquire().await.unwrap();
    let ttl = LockOptions::new().ttl(Duration::from_secs(30));
    let waiter = client(&old).await.lock("x").unwrap().options(ttl).unwrap();
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    let queued = |at: &RedisServer| at.ask(&["KEYS", "dlock{*}:1:x:q"]).unwrap().list().unwrap().len() == 1;
    until("the replica has it in line", SOON, async || queued(&new)).await;

    // They change places, as by FAILOVER, and nobody is sent away.
    new.follow(None).unwrap();
    old.follow(Some(new.address())).unwrap();
    old.wait_until_in_sync(SOON).unwrap();

    let there = client(&new).await;
    assert_eq!(there.force_release("x").await.unwrap(), 1);
    let guard = there.lock("x").unwrap().try_acquire().await.unwrap();
    let guard = guard.expect("nobody else is there");
    // Whatever the new master wrote, the old one has.
    let far = new.ask(&["WAIT", "1", "5000"]).unwrap().number().unwrap();
    assert_eq!(far, 1);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "two hold it: {:?}", waiting.await);
    assert!(guard.is_valid());
    waiting.abort();
    drop(held);
}

/// The request fails, and the next one looks for the master anew.
#[tokio::test]
async fn a_request_at_a_replica_gives_up_its_connection() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let connections = || {
        let text = server.ask(&["CLIENT", "LIST"]).unwrap().text();
        text.lines().filter(|c| c.contains("cmd=evalsha")).count()
    };
    let request = |n| Acquire::new(key("x", 1, n), TTL);
    lock.attempt(&request(1)).await.unwrap();
    assert_eq!(connections(), 1);
    // Nobody is there: it stays what it is meanwhile.
    server.follow(Some("127.0.0.1:1".parse().unwrap())).unwrap();
    let refused = lock.attempt(&request(2)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    until("it is given up", SOON, async || connections() == 0).await;
}
