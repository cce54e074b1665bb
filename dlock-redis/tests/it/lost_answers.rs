//! Lost answers: the request was carried out, and its sender does not know.

use std::time::Duration;

use dlock_core::LockName;
use dlock_core::spi::{Acquire, Lock as _, Release, Released, Watch as _};
use futures::FutureExt as _;

use crate::{TTL, is_granted, key, open, until};
use dlock_testkit::RedisServer;

const LIMIT: Duration = Duration::from_secs(5);

fn holder(server: &RedisServer) -> Option<String> {
    let keys = server.ask(&["KEYS", "dlock{*}:1:x"]).unwrap().list().unwrap();
    keys.first().map(dlock_testkit::Value::text)
}

/// Sends it, and is gone before the answer comes.
async fn send_and_drop<T>(server: &RedisServer, request: impl Future<Output = T>) {
    server.pause().unwrap();
    let mut request = Box::pin(request);
    assert!(request.as_mut().now_or_never().is_none());
    // It is written by another task.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(request);
    server.go_on().unwrap();
}

#[tokio::test]
async fn a_release_without_its_answer_is_still_released() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let a = key("x", 1, 1);
    assert!(is_granted(
        &lock.attempt(&Acquire::new(a.clone(), TTL)).await.unwrap()
    ));
    send_and_drop(&server, lock.release(&a, Release::Now)).await;
    until("it is released", LIMIT, async || holder(&server).is_none()).await;
    let again = lock.release(&a, Release::Now).await.unwrap();
    assert_eq!(again, Released::Released);
    // Nothing is remembered for ever.
    let again = lock.release(&a, Release::Now).await.unwrap();
    assert_eq!(again, Released::NotHeld);
}

/// It leaves a tombstone, which needs memory, and is written after what needs none.
#[tokio::test]
async fn what_may_come_twice_is_released_where_memory_is_full() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let a = key("x", 1, 1);
    send_and_drop(&server, lock.attempt(&Acquire::new(a.clone(), LIMIT))).await;
    until("it is granted", LIMIT, async || holder(&server).is_some()).await;
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let released = lock.release(&a, Release::Now).await.unwrap();
    assert_eq!(released, Released::Released);
}

/// That its acquire was sent twice does not make a release of a lease that was taken away a good one.
#[tokio::test]
async fn a_lease_that_was_lost_is_lost_however_it_was_taken() {
    let server = RedisServer::start().unwrap();
    let (lock, operator) = (open(&server).await, open(&server).await);
    let a = key("x", 1, 1);
    let request = Acquire::new(a.clone(), TTL);
    send_and_drop(&server, lock.attempt(&request)).await;
    until("it is granted", LIMIT, async || holder(&server).is_some()).await;
    assert!(is_granted(&lock.attempt(&request).await.unwrap()));
    let name = LockName::new("x").unwrap();
    assert_eq!(operator.force_release(&name).await.unwrap(), 1);
    let released = lock.release(&a, Release::Now).await.unwrap();
    assert_eq!(released, Released::NotHeld);
    // And a copy of the acquire that comes now is not heard.
    assert!(lock.attempt(&request).await.is_err());
}
