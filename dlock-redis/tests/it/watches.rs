//! Watches miss nothing, or say so.

use std::time::Duration;

use dlock_core::spi::{Acquire, Lock as _, Release};
use dlock_core::{Change, LockName, Result};
use dlock_redis::RedisLock;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::{is_granted, key, open, until};
use dlock_testkit::RedisServer;

type Changes = BoxStream<'static, Result<Change>>;

const SOON: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(1);

async fn watch(lock: &RedisLock) -> Changes {
    let mut changes = lock
        .watch()
        .unwrap()
        .watch(&LockName::new("x").unwrap())
        .await
        .unwrap();
    assert!(!begins_anew(&mut changes).await, "nothing was skipped yet");
    changes
}

async fn next(changes: &mut Changes) -> Change {
    let next = tokio::time::timeout(SOON, changes.next()).await;
    next.expect("a change is told").unwrap().unwrap()
}

/// Whether the snapshot that comes next says that something was skipped.
async fn begins_anew(changes: &mut Changes) -> bool {
    match next(changes).await {
        Change::Snapshot { skipped, .. } => skipped,
        other => panic!("{other:?}"),
    }
}

async fn take(lock: &RedisLock, n: u64) {
    let request = Acquire::new(key("x", 1, n), TTL);
    assert!(is_granted(&lock.attempt(&request).await.unwrap()));
}

async fn let_go(lock: &RedisLock, n: u64) {
    lock.release(&key("x", 1, n), Release::Now).await.unwrap();
}

/// One change, and that it is told.
async fn hears(changes: &mut Changes, lock: &RedisLock, n: u64) {
    take(lock, n).await;
    let change = next(changes).await;
    assert!(matches!(change, Change::Granted(_)), "{change:?}");
    let_go(lock, n).await;
    let change = next(changes).await;
    assert!(matches!(change, Change::Released { .. }), "{change:?}");
}

/// On one thread: what the drop has left to be done runs after the new one has begun.
pub(crate) async fn watch_again_at_once(lock: &RedisLock) {
    for n in 0..20 {
        let changes = watch(lock).await;
        drop(changes);
        let mut changes = watch(lock).await;
        // What is left of the first is done by now.
        tokio::time::sleep(Duration::from_millis(20)).await;
        hears(&mut changes, lock, n).await;
        // And with another one beside it, which stays.
        let more = watch(lock).await;
        drop(changes);
        let mut more = [more, watch(lock).await];
        tokio::time::sleep(Duration::from_millis(5)).await;
        for changes in &mut more {
            take(lock, n + 100).await;
            next(changes).await;
            let_go(lock, n + 100).await;
        }
    }
}

#[tokio::test]
async fn one_that_begins_just_as_another_one_is_dropped_hears() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    watch_again_at_once(&lock).await;
    // And nobody listens when all are gone.
    until("all is ended", SOON, async || {
        let channels = server.ask(&["PUBSUB", "CHANNELS", "*:1:x"]).unwrap();
        channels.list().unwrap().is_empty()
    })
    .await;
}

/// After the connection broke, one that was not asked for anything since counts all the same.
#[tokio::test]
async fn one_that_sleeps_is_not_made_deaf_by_another_one_that_goes() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, open(&server).await);
    let (one, mut sleeper) = (watch(&lock).await, watch(&lock).await);
    server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    until("it listens again", SOON, async || {
        let channels = server.ask(&["PUBSUB", "CHANNELS", "*:1:x"]).unwrap();
        channels.list().unwrap().len() == 1
    })
    .await;
    lock.ready().await.unwrap();
    drop(one);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(begins_anew(&mut sleeper).await);
    hears(&mut sleeper, &other, 1).await;
}

#[tokio::test]
async fn one_that_ends_makes_no_other_client_deaf() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, open(&server).await);
    let (one, mut stays) = (watch(&lock).await, watch(&other).await);
    drop(one);
    // Its client says that it has stopped listening.
    tokio::time::sleep(Duration::from_millis(50)).await;
    hears(&mut stays, &lock, 1).await;
}

/// All is forgotten, numbers as well, and then changes go on: it begins anew, and says so.
#[tokio::test]
async fn what_a_flushed_server_did_not_tell_is_said_to_be_skipped() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, open(&server).await);
    let mut changes = watch(&lock).await;
    for n in 0..10 {
        hears(&mut changes, &other, n).await;
    }
    // It looks again when this one's time is over.
    take(&other, 100).await;
    assert!(matches!(next(&mut changes).await, Change::Granted(_)));
    server.ask(&["FLUSHALL"]).unwrap();
    take(&other, 101).await;
    let_go(&other, 101).await;
    assert!(begins_anew(&mut changes).await);
    hears(&mut changes, &other, 102).await;
}

/// As after a minute in which this program was stopped: nothing is told any more.
#[tokio::test]
async fn what_was_not_told_for_a_while_is_said_to_be_skipped() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, open(&server).await);
    let no_longer_told = || {
        let keys = server.ask(&["KEYS", "dlock{*}:1:x:e"]).unwrap().list().unwrap();
        let key = keys.first().unwrap().text();
        assert_eq!(server.ask(&["HDEL", &key, "o"]).unwrap().number().unwrap(), 1);
    };
    let mut changes = watch(&lock).await;
    hears(&mut changes, &other, 1).await;
    // It finds out on its own.
    take(&other, 2).await;
    assert!(matches!(next(&mut changes).await, Change::Granted(_)));
    no_longer_told();
    let_go(&other, 2).await;
    assert!(begins_anew(&mut changes).await);
    hears(&mut changes, &other, 3).await;
    // Another one is the first to look, and then there is a change: it is told with a number that does not go
    // on from the last one.
    no_longer_told();
    take(&other, 4).await;
    let_go(&other, 4).await;
    let _second = watch(&other).await;
    take(&other, 5).await;
    assert!(begins_anew(&mut changes).await);
    let_go(&other, 5).await;
    assert!(matches!(next(&mut changes).await, Change::Released { .. }));
    hears(&mut changes, &other, 6).await;
}
