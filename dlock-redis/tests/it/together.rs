//! Requests that go out as one script because others were on their way: each is as good as alone.

use std::time::Duration;

use dlock_core::spi::{Abandoned, Acquire, Attempt, Lock as _, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{Error, ErrorKind};
use dlock_redis::RedisLock;
use dlock_testkit::RedisServer;
use futures::FutureExt as _;
use futures::future::join_all;

use crate::counts::calls;
use crate::{TTL, is_granted, key, open, queued, until};

const MANY: u64 = 200;

fn name(n: u64) -> String {
    format!("name-{n}")
}

async fn acquire_all(lock: &RedisLock) -> Vec<dlock_core::Result<Attempt>> {
    join_all((0..MANY).map(|n| async move { lock.attempt(&Acquire::new(key(&name(n), 1, n), TTL)).await }))
        .await
}

async fn release_all(lock: &RedisLock) -> Vec<dlock_core::Result<Released>> {
    join_all((0..MANY).map(|n| async move { lock.release(&key(&name(n), 1, n), Release::Now).await })).await
}

fn keys(server: &RedisServer, pattern: &str) -> usize {
    server.ask(&["KEYS", pattern]).unwrap().list().unwrap().len()
}

#[tokio::test]
async fn two_hundred_requests_are_a_few_scripts() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    // The counters of the buckets are made one by one.
    acquire_all(&lock).await;
    release_all(&lock).await;
    let before = calls(&server, "evalsha");
    let granted = acquire_all(&lock).await;
    assert!(granted.iter().all(|a| is_granted(a.as_ref().unwrap())));
    assert_eq!(keys(&server, "dlock{*}:*:name-*"), 200);
    let released = release_all(&lock).await;
    assert!(
        released
            .iter()
            .all(|r| *r.as_ref().unwrap() == Released::Released)
    );
    assert_eq!(keys(&server, "dlock{*}:*:name-*"), 0);
    // The first of each kind go alone, and the others by sixty-fours.
    let scripts = calls(&server, "evalsha") - before;
    assert!(scripts <= 2 * (4 + MANY.div_ceil(64) + 1), "{scripts}");
}

#[tokio::test]
async fn tokens_grow_whether_or_not_requests_travel_together() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    let mut last = vec![0; MANY as usize];
    for round in 0..5 {
        for (n, answer) in acquire_all(&lock).await.into_iter().enumerate() {
            let Ok(Attempt::Granted(grant)) = answer else {
                panic!("{n}: {answer:?}")
            };
            let token = grant.token.unwrap().get();
            assert!(token > last[n], "{n}: {token} after {}", last[n]);
            last[n] = token;
        }
        if round == 0 {
            // One of the counters is ahead of any clock.
            let counters = server.ask(&["KEYS", "dlock{*}:t"]).unwrap().list().unwrap();
            server
                .ask(&["SET", &counters[0].text(), "9999999999999999"])
                .unwrap();
        }
        release_all(&lock).await;
    }
}

/// In one script are those of names that are held, queued for, shared and free, and two of one name.
#[tokio::test]
async fn each_is_answered_as_it_would_be_alone() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, open(&server).await);
    // An id is no pattern, whatever its bytes.
    let pattern = u128::from_be_bytes([b'['; 16]);
    assert!(is_granted(
        &other
            .attempt(&Acquire::new(key("held", 2, 1), TTL))
            .await
            .unwrap()
    ));
    let mut asked: Vec<_> = (10..14).map(|n| Acquire::new(key(&name(n), 1, n), TTL)).collect();
    asked.extend([
        Acquire::new(key("first", pattern, 0), TTL),
        Acquire::new(key("held", 1, 1), TTL),
        queued(&key("held", 1, 2)),
        Acquire::new(key("twice", 1, 3), TTL),
        Acquire::new(key("twice", 1, 4), TTL),
        Acquire::new(key("free", 1, 5), TTL),
    ]);
    let answers = join_all(asked.iter().map(|request| lock.attempt(request))).await;
    let shown: Vec<_> = answers[4..]
        .iter()
        .map(|answer| match answer.as_ref().unwrap() {
            Attempt::Granted(_) => "granted",
            Attempt::Queued(_) => "queued",
            _ => "held",
        })
        .collect();
    assert_eq!(shown, ["granted", "held", "queued", "granted", "held", "granted"]);
    // One whose lease it is, two whose it is not, one that others wait for, and one that has ended already.
    let kept = key("kept", 1, 8);
    lock.attempt(&Acquire::new(kept.clone(), TTL)).await.unwrap();
    lock.release(&kept, Release::KeepFor(TTL * 10)).await.unwrap();
    let ended = [
        key("first", pattern, 0),
        key("free", 1, 9),
        key("twice", 1, 4),
        key("twice", 1, 3),
        kept,
    ];
    let of_few = (10..14).map(|n| key(&name(n), 1, n));
    let ended: Vec<_> = of_few.chain(ended).collect();
    let released = join_all(ended.iter().map(|lease| lock.release(lease, Release::Now))).await;
    let released: Vec<_> = released.into_iter().skip(4).map(Result::unwrap).collect();
    let [yes, no] = [Released::Released, Released::NotHeld];
    assert_eq!(released, [yes, no, no, yes, yes]);
    assert_eq!(keys(&server, "dlock{*}:4:kept"), 1);
    let abandoned = lock
        .abandon(&[key("held", 1, 2), key("free", 1, 5), key("none", 1, 7)])
        .await;
    let abandoned: Vec<_> = abandoned.into_iter().map(Result::unwrap).collect();
    assert!(
        matches!(
            abandoned[..],
            [
                Abandoned::Withdrawn,
                Abandoned::WasGranted(Some(_)),
                Abandoned::Nothing
            ]
        ),
        "{abandoned:?}"
    );
    // And a copy that comes after that is not heard.
    let late = join_all([2, 5].map(|n| {
        let lock = lock.clone();
        async move {
            lock.attempt(&Acquire::new(
                key(if n == 2 { "held" } else { "free" }, 1, n),
                TTL,
            ))
            .await
        }
    }));
    assert!(late.await.iter().all(Result::is_err));
}

/// It says what the server said.
fn assert_wrong_type(e: &Error) {
    assert_eq!(e.kind(), ErrorKind::BackendData);
    let said = std::error::Error::source(e).map(ToString::to_string);
    assert!(said.is_some_and(|s| s.contains("WRONGTYPE")), "{e:?}");
}

#[tokio::test]
async fn one_that_fails_costs_the_others_nothing() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    acquire_all(&lock).await;
    let found = server
        .ask(&["KEYS", "dlock{*}:*:name-7"])
        .unwrap()
        .list()
        .unwrap();
    release_all(&lock).await;
    server.ask(&["RPUSH", &found[0].text(), "not dlock's"]).unwrap();
    for (n, answer) in acquire_all(&lock).await.into_iter().enumerate() {
        match (n, answer) {
            (7, answer) => assert_wrong_type(&answer.unwrap_err()),
            (_, answer) => assert!(is_granted(&answer.unwrap()), "{n}"),
        }
    }
    // Not as they were taken, so by the script that renews each.
    let leases = (0..MANY).map(|n| RenewItem::lease(key(&name(n), 1, n), TTL * 2));
    let renewed = lock.renew().unwrap().renew(&leases.collect::<Vec<_>>()).await;
    for (n, outcome) in renewed.into_iter().enumerate() {
        match (n, outcome) {
            (7, RenewOutcome::Failed(e)) => assert_wrong_type(&e),
            (n, outcome) => assert!(matches!(outcome, RenewOutcome::Renewed(_)), "{n}: {outcome:?}"),
        }
    }
    for (n, answer) in release_all(&lock).await.into_iter().enumerate() {
        match (n, answer) {
            (7, answer) => assert_wrong_type(&answer.unwrap_err()),
            (_, answer) => assert_eq!(answer.unwrap(), Released::Released, "{n}"),
        }
    }
    let left = server.ask(&["LLEN", &found[0].text()]).unwrap();
    assert_eq!(left.number().unwrap(), 1);
}

/// Those that are dropped before they went out are not sent, and those that are dropped after it are carried
/// out; either way the others have their answers.
#[tokio::test]
async fn one_that_is_dropped_costs_the_others_nothing() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    acquire_all(&lock).await;
    release_all(&lock).await;
    for polls_of_others in [0, 1] {
        server.pause().unwrap();
        let requests: Vec<_> = (0..MANY)
            .map(|n| Acquire::new(key(&name(n), 1, MANY * (1 + polls_of_others) + n), TTL))
            .collect();
        let mut asked: Vec<_> = requests
            .iter()
            .map(|request| Some(Box::pin(lock.attempt(request))))
            .collect();
        for one in asked.iter_mut().flatten() {
            assert!(one.as_mut().now_or_never().is_none());
        }
        if polls_of_others > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The first one among them, on whose account the others travel.
        asked.iter_mut().step_by(3).for_each(|one| *one = None);
        server.go_on().unwrap();
        for (n, one) in asked.into_iter().enumerate() {
            if let Some(one) = one {
                assert!(is_granted(&one.await.unwrap()), "{n}");
            }
        }
        let dropped: Vec<_> = requests
            .iter()
            .step_by(3)
            .map(|request| request.key.clone())
            .collect();
        let was_granted = lock.abandon(&dropped).await;
        let was_granted = was_granted
            .iter()
            .filter(|a| matches!(a, Ok(Abandoned::WasGranted(_))))
            .count();
        match polls_of_others {
            // The very first ones had gone out alone.
            0 => assert!(was_granted <= 2, "{was_granted}"),
            _ => assert_eq!(was_granted, dropped.len()),
        }
        join_all(
            requests
                .iter()
                .map(|request| lock.release(&request.key, Release::Now)),
        )
        .await;
        until("nothing is held", TTL, async || {
            keys(&server, "dlock{*}:*:name-*") == 0
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_that_is_lost_leaves_each_of_them_unknown() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    acquire_all(&lock).await;
    release_all(&lock).await;
    server.pause().unwrap();
    let asking = tokio::spawn({
        let lock = lock.clone();
        async move { acquire_all(&lock).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.crash().unwrap();
    let answers = asking.await.unwrap();
    let unknown = |a: &dlock_core::Result<Attempt>| a.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unknown);
    assert!(answers.iter().all(unknown), "{answers:?}");
}
