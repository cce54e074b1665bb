//! The lock goes from one to the next inside the release; and what happens if the next one is not there.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock as _, Push, Release, RenewItem, RenewOutcome, Wake};
use dlock_core::{Mode, Token};
use futures::StreamExt as _;

use crate::{client, config, here, is_granted, key, open, queued, until};
use dlock_testkit::RedisServer;

const WINDOW: Duration = Duration::from_millis(400);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(600);

async fn with_window(server: &RedisServer) -> dlock_redis::RedisLock {
    config(&server.url())
        .claim_window(WINDOW)
        .connect(here())
        .await
        .unwrap()
}

/// A waiter that was stopped when its turn came: its connection is there and hears the push, and nobody says
/// so.
#[tokio::test]
async fn one_that_does_not_answer_costs_a_window() {
    let server = RedisServer::start().unwrap();
    let (holder, stopped, next) = (
        with_window(&server).await,
        with_window(&server).await,
        with_window(&server).await,
    );
    let [a, b, c] = [key("x", 1, 1), key("x", 2, 1), key("x", 3, 1)];
    assert!(is_granted(&holder.attempt(&queued(&a)).await.unwrap()));
    let unheard = stopped.attempt(&queued(&b)).await.unwrap();
    let Attempt::Queued(wait) = next.attempt(&queued(&c)).await.unwrap() else {
        panic!("it is held")
    };
    let Wake::Push(mut pushes) = wait.wake else {
        panic!("Redis pushes")
    };
    let from = Instant::now();
    holder.release(&a, Release::Now).await.unwrap();
    let push = tokio::time::timeout(WINDOW + SLACK, pushes.next()).await.unwrap();
    assert!(matches!(push, Some(Push::Granted(_))), "{push:?}");
    assert!(from.elapsed() >= WINDOW, "{:?}", from.elapsed());
    drop(unheard);
}

/// A client that was stopped costs one window, however much it waits for; two of them cost two.
#[tokio::test]
async fn each_client_that_does_not_answer_costs_one_window() {
    let server = RedisServer::start().unwrap();
    let (holder, next) = (with_window(&server).await, open(&server).await);
    let stopped = [with_window(&server).await, with_window(&server).await];
    for (name, mode) in [("x", Mode::Exclusive), ("y", Mode::permit(NonZeroU32::MIN))] {
        let asks = |client, n| queued(&key(name, client, n)).with_mode(mode);
        let first = asks(1, 1);
        assert!(is_granted(&holder.attempt(&first).await.unwrap()));
        let mut unheard = Vec::new();
        for n in 0..6 {
            unheard.push(stopped[n / 3].attempt(&asks(2, n as u64)).await.unwrap());
        }
        let Attempt::Queued(wait) = next.attempt(&asks(3, 1)).await.unwrap() else {
            panic!("it is held")
        };
        let Wake::Push(mut pushes) = wait.wake else {
            panic!("Redis pushes")
        };
        let from = Instant::now();
        holder.release(&first.key, Release::Now).await.unwrap();
        let push = tokio::time::timeout(WINDOW * 2 + SLACK, pushes.next())
            .await
            .unwrap();
        assert!(matches!(push, Some(Push::Granted(_))), "{push:?}");
        assert!(from.elapsed() >= WINDOW * 2, "{:?}", from.elapsed());
    }
}

/// One whose connection is gone is passed over at once, keeps its place, and has its turn when it is back.
#[tokio::test]
async fn one_that_is_cut_off_is_passed_over_and_keeps_its_place() {
    let server = RedisServer::start().unwrap();
    let (holder, gone, next) = (open(&server).await, open(&server).await, open(&server).await);
    let [a, b, c, d] = [key("x", 1, 1), key("x", 2, 1), key("x", 3, 1), key("x", 3, 2)];
    assert!(is_granted(&holder.attempt(&queued(&a)).await.unwrap()));
    let _ = gone.attempt(&queued(&b)).await.unwrap();
    let Attempt::Queued(wait) = next.attempt(&queued(&c)).await.unwrap() else {
        panic!("it is held")
    };
    let Wake::Push(mut pushes) = wait.wake else {
        panic!("Redis pushes")
    };
    let _later = next.attempt(&queued(&d)).await.unwrap();
    gone.close().await.unwrap();
    drop(gone);
    until("two listen", Duration::from_secs(5), async || {
        server
            .ask(&["PUBSUB", "CHANNELS", "dlock/c/*"])
            .unwrap()
            .list()
            .unwrap()
            .len()
            == 2
    })
    .await;
    let from = Instant::now();
    holder.release(&a, Release::Now).await.unwrap();
    assert!(matches!(pushes.next().await, Some(Push::Granted(_))));
    assert!(from.elapsed() < SLACK, "{:?}", from.elapsed());
    // Back again, under the same id: before the one that came after it.
    let back = open(&server).await;
    let Attempt::Queued(wait) = back.attempt(&queued(&b)).await.unwrap() else {
        panic!("it is held")
    };
    assert_eq!(wait.ahead, Some(0));
    let Wake::Push(mut pushes) = wait.wake else {
        panic!("Redis pushes")
    };
    next.release(&c, Release::Now).await.unwrap();
    let push = tokio::time::timeout(SLACK, pushes.next()).await.unwrap();
    assert!(matches!(push, Some(Push::Granted(_))), "{push:?}");
}

/// A waiter that died in the queue is not waited for, however long its place would have been kept.
#[tokio::test]
async fn a_dead_waiter_costs_nothing() {
    let server = RedisServer::start().unwrap();
    let (holder, dead, next) = (open(&server).await, open(&server).await, client(&server).await);
    let a = key("x", 1, 1);
    assert!(is_granted(&holder.attempt(&queued(&a)).await.unwrap()));
    // More than are tried in one script.
    for n in 0..300 {
        let _ = dead.attempt(&queued(&key("x", 2, n))).await.unwrap();
    }
    dead.close().await.unwrap();
    drop(dead);
    let lock = next.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(|g| g.token()) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let from = Instant::now();
    holder.release(&a, Release::Now).await.unwrap();
    waiting.await.unwrap().unwrap();
    assert!(from.elapsed() < SLACK, "{:?}", from.elapsed());
}

/// A try that does not queue does not wait either.
#[tokio::test]
async fn a_try_is_one_command_and_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let (one, two) = (open(&server).await, open(&server).await);
    let a = key("x", 1, 1);
    assert!(is_granted(&one.attempt(&queued(&a)).await.unwrap()));
    let tried = two
        .attempt(&Acquire::new(key("x", 2, 1), Duration::from_secs(1)))
        .await
        .unwrap();
    assert!(matches!(tried, Attempt::Held(_)), "{tried:?}");
    one.release(&a, Release::Now).await.unwrap();
    let left = server.ask(&["KEYS", "*"]).unwrap().list().unwrap();
    assert_eq!(left.len(), 1, "the counter of the bucket alone: {left:?}");
}

/// What stands in the way ends sooner than was known, and nobody else would say so.
#[tokio::test]
async fn a_writer_waits_for_a_reader_no_longer_than_its_minimum_hold() {
    let server = RedisServer::start().unwrap();
    let (one, two) = (open(&server).await, client(&server).await);
    let a = key("x", 1, 1);
    let mut reads = Acquire::new(a.clone(), Duration::from_secs(30));
    reads.mode = Mode::READER;
    assert!(is_granted(&one.attempt(&reads).await.unwrap()));
    let lock = two.rwlock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.write().acquire().await.map(|g| g.token()) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let from = Instant::now();
    one.release(&a, Release::KeepFor(WINDOW)).await.unwrap();
    waiting.await.unwrap().unwrap();
    let took = from.elapsed();
    assert!(took >= WINDOW && took < WINDOW + SLACK, "{took:?}");
}

/// Nor does a reader wait for a writer that is gone: not even one that does not queue.
#[tokio::test]
async fn a_writer_that_is_gone_keeps_no_reader_out() {
    let server = RedisServer::start().unwrap();
    let (one, gone) = (open(&server).await, open(&server).await);
    let tried = async |n| {
        let reads = Acquire::new(key("x", 1, n), Duration::from_secs(30)).with_mode(Mode::READER);
        is_granted(&one.attempt(&reads).await.unwrap())
    };
    assert!(tried(1).await);
    let unheard = gone.attempt(&queued(&key("x", 2, 1))).await.unwrap();
    assert!(!tried(2).await);
    drop(unheard);
    gone.close().await.unwrap();
    drop(gone);
    until("a reader is let in", Duration::from_secs(5), async || {
        tried(2).await
    })
    .await;
}

/// A raise may be the first that meets the end of another lease, or the late renewal of that one.
#[tokio::test]
async fn a_turn_that_others_bring_has_a_window_too() {
    let server = RedisServer::start().unwrap();
    let (one, stopped) = (with_window(&server).await, open(&server).await);
    let long = Duration::from_secs(30);
    for name in ["raised", "renewed"] {
        let [a, b, c] = [1, 2, 3].map(|n| key(name, n, 1));
        let permit = |key: &LeaseKey, ttl| {
            Acquire::new(key.clone(), ttl).with_mode(Mode::permit(NonZeroU32::new(2).unwrap()))
        };
        assert!(is_granted(&one.attempt(&permit(&a, long)).await.unwrap()));
        assert!(is_granted(&one.attempt(&permit(&b, WINDOW)).await.unwrap()));
        let _unheard = stopped.attempt(&permit(&c, long).with_queue(long)).await.unwrap();
        tokio::time::sleep(WINDOW + SLACK / 10).await;
        if name == "raised" {
            one.fencing().unwrap().raise(&a, Token::MIN).await.unwrap();
        } else {
            let late = one.renew().unwrap().renew(&[RenewItem::lease(b, long)]).await;
            assert!(matches!(late[..], [RenewOutcome::Gone]), "{late:?}");
        }
        let seen = one.watch().unwrap().inspect(&a.name).await.unwrap();
        let next = &seen.holders[1];
        assert!(next.id == c.id && next.expires_in <= WINDOW, "{seen:?}");
    }
}

/// A short window, and a client that has heard nothing of the server for longer than the window can bear: it
/// asks, and keeps its place.
#[tokio::test]
async fn one_that_was_idle_for_long_is_served_in_a_short_window_too() {
    let server = RedisServer::start().unwrap();
    let lock = config(&server.url()).claim_window(Duration::from_millis(50));
    let (one, two) = (
        crate::client_of(lock.connect(here()).await.unwrap()),
        client(&server).await,
    );
    let held = one.lock("x").unwrap().acquire().await.unwrap();
    let lock = two.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let third = two.lock("x").unwrap();
    let behind = tokio::spawn(async move { third.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_secs(6)).await;
    let token = held.token();
    held.release().await.unwrap();
    let first = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
    assert!(first.token() > token);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(first.is_valid() && !behind.is_finished());
    first.release().await.unwrap();
    behind.await.unwrap();
}

/// A release needs no memory, nor does the hand-off.
#[tokio::test]
async fn it_is_handed_over_and_renewed_where_memory_is_full() {
    let server = RedisServer::start().unwrap();
    let (one, two) = (client(&server).await, client(&server).await);
    let lock = two.lock("x").unwrap();
    let held = one.lock("x").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until("it is in the line", SLACK, async || {
        server.ask(&["KEYS", "*:q"]).unwrap().list().unwrap().len() == 1
    })
    .await;
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    let next = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap();
    // Longer than the window in which it was to be confirmed.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(next.is_valid(), "{:?}", next.loss());
    next.release().await.unwrap();
}

/// The visit at the end of a window is in time also where a longer one was opened before.
#[tokio::test]
async fn a_short_window_behind_a_long_one_is_looked_after_in_time() {
    let server = RedisServer::start().unwrap();
    let (holder, stopped, next) = (
        config(&server.url())
            .claim_window(Duration::from_secs(3))
            .connect(here())
            .await
            .unwrap(),
        open(&server).await,
        client(&server).await,
    );
    // One that takes its turn: its window is of three seconds, and is visited then.
    let other = key("other", 1, 1);
    assert!(is_granted(&holder.attempt(&queued(&other)).await.unwrap()));
    let mut behind = queued(&key("other", 2, 1));
    behind.ttl = Duration::from_secs(30);
    let _heard = stopped.attempt(&behind).await.unwrap();
    holder.release(&other, Release::Now).await.unwrap();
    // One that does not, and whose window is as short as its ttl.
    let a = key("x", 1, 2);
    assert!(is_granted(&holder.attempt(&queued(&a)).await.unwrap()));
    let mut dead = queued(&key("x", 2, 2));
    dead.ttl = WINDOW;
    let _unheard = stopped.attempt(&dead).await.unwrap();
    let lock = next.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(|g| g.token()) });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let from = Instant::now();
    holder.release(&a, Release::Now).await.unwrap();
    waiting.await.unwrap().unwrap();
    let took = from.elapsed();
    assert!(took >= WINDOW && took < WINDOW + SLACK, "{took:?}");
}
