//! Readers that want to be alone: of two of them the second is told to give up, and one that has given up
//! itself keeps nobody from it.

use std::time::{Duration, Instant};

use dlock_core::Mode;
use dlock_core::spi::{Acquire, Converted, LeaseKey, Lock as _, Release, RenewItem, RwLock as _};
use dlock_redis::RedisLock;

use crate::{is_granted, key, open};
use dlock_testkit::RedisServer;

/// Of the one that asks first: so long its wish counts.
const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(30);

async fn reads(lock: &RedisLock, key: &LeaseKey, ttl: Duration) {
    let mut request = Acquire::new(key.clone(), ttl);
    request.mode = Mode::READER;
    assert!(is_granted(&lock.attempt(&request).await.unwrap()));
}

async fn upgrade(lock: &RedisLock, key: &LeaseKey) -> Converted {
    lock.convert(key, Mode::Exclusive).await.unwrap()
}

async fn two_readers(server: &RedisServer) -> (RedisLock, LeaseKey, LeaseKey) {
    let lock = open(server).await;
    let (a, b) = (key("x", 1, 1), key("x", 2, 1));
    reads(&lock, &a, SHORT).await;
    reads(&lock, &b, LONG).await;
    (lock, a, b)
}

/// It asks once, its task is gone, and it reads on for as long as it likes.
#[tokio::test]
async fn one_that_asked_once_is_forgotten_after_a_lease() {
    let server = RedisServer::start().unwrap();
    let (lock, a, b) = two_readers(&server).await;
    let asked = Instant::now();
    assert_eq!(upgrade(&lock, &a).await, Converted::Busy);
    assert_eq!(upgrade(&lock, &b).await, Converted::WouldDeadlock);
    let answer = loop {
        lock.renew()
            .unwrap()
            .renew(&[RenewItem::lease(a.clone(), SHORT)])
            .await;
        match upgrade(&lock, &b).await {
            Converted::WouldDeadlock if asked.elapsed() < 3 * SHORT => {}
            answer => break answer,
        }
        tokio::time::sleep(SHORT / 20).await;
    };
    assert_eq!(answer, Converted::Busy, "a wish of {:?} ago", asked.elapsed());
    assert!(
        asked.elapsed() >= SHORT,
        "only {:?} after it was asked",
        asked.elapsed()
    );
    // Now it is the other's turn to be told.
    assert_eq!(upgrade(&lock, &a).await, Converted::WouldDeadlock);
    lock.release(&a, Release::Now).await.unwrap();
    assert!(matches!(upgrade(&lock, &b).await, Converted::Done(_)));
}

/// However long, two that ask on never both wait.
#[tokio::test]
async fn one_that_asks_on_is_not_forgotten() {
    let server = RedisServer::start().unwrap();
    let (lock, a, b) = two_readers(&server).await;
    let from = Instant::now();
    while from.elapsed() < 3 * SHORT {
        lock.renew()
            .unwrap()
            .renew(&[RenewItem::lease(a.clone(), SHORT)])
            .await;
        assert_eq!(upgrade(&lock, &a).await, Converted::Busy);
        assert_eq!(upgrade(&lock, &b).await, Converted::WouldDeadlock);
        tokio::time::sleep(SHORT / 20).await;
    }
}

#[tokio::test]
async fn one_that_asks_to_share_has_given_up() {
    let server = RedisServer::start().unwrap();
    let (lock, a, b) = two_readers(&server).await;
    assert_eq!(upgrade(&lock, &a).await, Converted::Busy);
    assert!(matches!(
        lock.convert(&a, Mode::READER).await.unwrap(),
        Converted::Done(_)
    ));
    assert_eq!(upgrade(&lock, &b).await, Converted::Busy);
    // Only one's own wish is taken back by that.
    assert!(matches!(
        lock.convert(&a, Mode::READER).await.unwrap(),
        Converted::Done(_)
    ));
    assert_eq!(upgrade(&lock, &a).await, Converted::WouldDeadlock);
}

/// What a minimum hold keeps wants nothing any more.
#[tokio::test]
async fn one_that_has_let_go_wants_nothing() {
    let server = RedisServer::start().unwrap();
    let (lock, a, b) = two_readers(&server).await;
    assert_eq!(upgrade(&lock, &a).await, Converted::Busy);
    lock.release(&a, Release::KeepFor(LONG)).await.unwrap();
    assert_eq!(upgrade(&lock, &b).await, Converted::Busy);
}

/// What is watched keeps what is known of it.
#[tokio::test]
async fn one_that_was_alone_wants_it_no_more() {
    let server = RedisServer::start().unwrap();
    let (lock, a, b) = two_readers(&server).await;
    let _changes = lock.watch().unwrap().watch(&a.name).await.unwrap();
    assert_eq!(upgrade(&lock, &b).await, Converted::Busy);
    lock.release(&a, Release::Now).await.unwrap();
    assert!(matches!(upgrade(&lock, &b).await, Converted::Done(_)));
    lock.convert(&b, Mode::READER).await.unwrap();
    let c = key("x", 3, 1);
    reads(&lock, &c, LONG).await;
    assert_eq!(upgrade(&lock, &c).await, Converted::Busy);
}
