//! Requests whose answers do not come, and copies that come late: what they did is found again, and nothing
//! of them stays.

use std::sync::Arc;

use dlock_core::spi::{Abandoned, Acquire, Attempt, Lock as _, Push, Release, Released};
use dlock_core::{ErrorKind, Result};
use dlock_etcd::EtcdLock;
use dlock_testkit::{EtcdServer, Proxy};
use futures::FutureExt as _;

use crate::late::Late;
use crate::{
    LONG, X, at_once, client_of, etcdctl, granted, granted_in_the_end, hands, key, keys, line, open, open_at,
    pushed, queued, revoke, start, turn, until, waits,
};

/// The name of an entry of the lock `x`, on the lease of now.
fn entry(of: &EtcdLock, number: u32) -> String {
    format!("dlock/x/{:x}-{number:x}-x", of.lease_id().unwrap())
}

/// The names in the line.
async fn names(server: &EtcdServer) -> Vec<String> {
    let line = line(server).await;
    line.iter().map(|kv| kv.key_str().unwrap().to_owned()).collect()
}

/// How many transactions and deletions the server has answered.
async fn answered(server: &Arc<EtcdServer>) -> f64 {
    let answered = |method| {
        format!(
            "grpc_server_handled_total{{grpc_code=\"OK\",grpc_method=\"{method}\",\
             grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}}"
        )
    };
    hands(server, move |s| {
        Ok(s.metric(&answered("Txn"))? + s.metric(&answered("DeleteRange"))?)
    })
    .await
}

/// Lets the held-back copies arrive, and waits until they were carried out or refused.
async fn deliver(server: &Arc<EtcdServer>, late: &Late, copies: f64) {
    let before = answered(server).await;
    late.deliver();
    until("it was answered", LONG, async || {
        answered(server).await >= before + copies
    })
    .await;
}

/// Asks on a way on which it is kept back, and loses that way.
async fn unheard(lock: &EtcdLock, late: &Late, request: &Acquire, name: &str) {
    late.hold();
    let asking = tokio::spawn({
        let (lock, request) = (lock.clone(), request.clone());
        async move { lock.attempt(&request).await }
    });
    until("it was sent", LONG, async || late.holds(name)).await;
    late.leave();
    let e = asking.await.unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
}

/// Asks again as long as there is no connection, as the engine does.
async fn in_the_end<T>(ask: impl AsyncFn() -> Result<T>) -> T {
    let from = std::time::Instant::now();
    loop {
        match ask().await {
            Err(e) if e.is_retryable() && from.elapsed() < LONG => {}
            answer => return answer.unwrap(),
        }
    }
}

async fn released(lock: &EtcdLock, n: u64) -> Released {
    in_the_end(async || lock.release(&key("x", 1, n), Release::Now).await).await
}

#[tokio::test]
async fn an_acquire_whose_answer_was_lost_is_found_with_its_token() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let lock = open_at(proxy.address()).await;
    for (n, how) in [at_once, queued].into_iter().enumerate() {
        let n = n as u64;
        let request = how(&key("x", 1, n), X);
        assert!(proxy.lose_answers() > 0);
        let asking = tokio::spawn({
            let (lock, request) = (lock.clone(), request.clone());
            async move { lock.attempt(&request).await }
        });
        until("it is in the line", LONG, async || {
            !line(&server).await.is_empty()
        })
        .await;
        proxy.cut();
        let e = asking.await.unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
        let made = line(&server).await.remove(0).create_revision();
        let grant = granted_in_the_end(&lock, &request).await;
        assert_eq!(grant.token.unwrap().get(), made.unsigned_abs());
        assert_eq!(granted(&lock, &request).await.token, grant.token);
        assert_eq!(names(&server).await, [entry(&lock, 0)]);
        assert_eq!(released(&lock, n).await, Released::Released);
        assert_eq!(released(&lock, n).await, Released::NotHeld);
    }
}

#[tokio::test]
async fn a_waiter_whose_answer_was_lost_keeps_its_place() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let (holder, lock) = (open(&server).await, open_at(proxy.address()).await);
    granted(&holder, &queued(&key("x", 2, 1), X)).await;
    let request = queued(&key("x", 1, 1), X);
    proxy.lose_answers();
    let asking = tokio::spawn({
        let (lock, request) = (lock.clone(), request.clone());
        async move { lock.attempt(&request).await }
    });
    until("it is in the line", LONG, async || line(&server).await.len() == 2).await;
    let _behind = waits(&holder, &queued(&key("x", 2, 2), X)).await;
    proxy.cut();
    assert_eq!(asking.await.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
    let Attempt::Queued(mut wait) = in_the_end(async || lock.attempt(&request).await).await else {
        panic!("it waits");
    };
    assert_eq!(
        names(&server).await,
        [entry(&holder, 0), entry(&lock, 0), entry(&holder, 1)]
    );
    holder.release(&key("x", 2, 1), Release::Now).await.unwrap();
    turn(&mut wait).await;
}

/// What was sent and not heard of is settled first, so that its copy comes to nothing whenever it arrives.
#[tokio::test]
async fn the_copy_of_a_try_that_was_given_up_is_refused() {
    let server = start().await;
    let late = Late::before(server.address());
    let lock = open_at(late.address()).await;
    let request = queued(&key("x", 1, 1), X);
    unheard(&lock, &late, &request, &entry(&lock, 0)).await;
    granted_in_the_end(&lock, &request).await;
    let made = async || (names(&server).await, line(&server).await[0].mod_revision());
    let before = made().await;
    assert_eq!(before.0, [entry(&lock, 0)]);
    deliver(&server, &late, 1.0).await;
    assert_eq!(made().await, before, "though it goes by the same name");
    assert_eq!(released(&lock, 1).await, Released::Released);
    assert!(line(&server).await.is_empty());
}

#[tokio::test]
async fn a_copy_that_arrives_after_its_abandon_leaves_nothing() {
    let server = start().await;
    let late = Late::before(server.address());
    let lock = open_at(late.address()).await;
    for (n, how) in [at_once, queued].into_iter().enumerate() {
        let k = key("x", 1, n as u64);
        unheard(&lock, &late, &how(&k, X), &entry(&lock, 0)).await;
        let abandoned = in_the_end(async || lock.abandon(std::slice::from_ref(&k)).await.remove(0)).await;
        assert_eq!(abandoned, Abandoned::Nothing);
        deliver(&server, &late, 1.0).await;
        assert!(line(&server).await.is_empty(), "{:?}", names(&server).await);
        let again = lock.attempt(&how(&k, X)).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Lost, "{again}");
    }
    let gone = keys(&server, "dlock!/gone/").await;
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].version(), 2, "one for each");
    assert_eq!(
        gone[0].lease(),
        lock.lease_id().unwrap(),
        "it goes with the client"
    );
}

#[tokio::test]
async fn calls_that_are_dropped_do_not_fill_the_store() {
    let server = start().await;
    let lock = open(&server).await;
    let k = |n| key("x", 1, n);
    for n in 1..=50 {
        assert!(lock.attempt(&queued(&k(n), X)).now_or_never().is_none());
        let abandoned = lock.abandon(&[k(n)]).await.remove(0).unwrap();
        assert!(!matches!(abandoned, Abandoned::Withdrawn), "{abandoned:?}");
    }
    assert!(line(&server).await.is_empty());
    assert!(keys(&server, "dlock!/gone/").await.len() <= 1);
    granted(&lock, &queued(&k(51), X)).await;
    assert_eq!(names(&server).await, [entry(&lock, 0)]);
}

/// It is there already when it is abandoned, and its client has not heard of it.
#[tokio::test]
async fn an_abandon_removes_an_unanswered_entry() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let lock = open_at(proxy.address()).await;
    let k = key("x", 1, 1);
    proxy.lose_answers();
    let asking = tokio::spawn({
        let (lock, request) = (lock.clone(), queued(&k, X));
        async move { lock.attempt(&request).await }
    });
    until("it is in the line", LONG, async || {
        !line(&server).await.is_empty()
    })
    .await;
    let token = line(&server).await[0].create_revision().unsigned_abs();
    proxy.cut();
    asking.await.unwrap().unwrap_err();
    let abandoned = in_the_end(async || lock.abandon(std::slice::from_ref(&k)).await.remove(0)).await;
    let Abandoned::WasGranted(Some(was)) = abandoned else {
        panic!("{abandoned:?}");
    };
    assert_eq!(was.get(), token);
    assert!(line(&server).await.is_empty());
}

/// The first copy of a release comes when others have the lock, and when its own client stands in line anew
/// (etcd's issue 22082).
#[tokio::test]
async fn a_repeated_release_ends_no_other_hold() {
    let server = start().await;
    let late = Late::before(server.address());
    let (a, b) = (open_at(late.address()).await, open(&server).await);
    granted(&a, &queued(&key("x", 1, 1), X)).await;
    let mut next = waits(&b, &queued(&key("x", 2, 1), X)).await;
    late.hold();
    let releasing = tokio::spawn({
        let a = a.clone();
        async move { a.release(&key("x", 1, 1), Release::Now).await }
    });
    until("it was sent", LONG, async || late.holds(&entry(&a, 0))).await;
    late.leave();
    assert_eq!(releasing.await.unwrap().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(names(&server).await, [entry(&a, 0), entry(&b, 0)]);
    assert_eq!(released(&a, 1).await, Released::Released);
    turn(&mut next).await;
    let mut again = waits(&a, &queued(&key("x", 1, 2), X)).await;
    deliver(&server, &late, 1.0).await;
    assert_eq!(names(&server).await, [entry(&b, 0), entry(&a, 1)]);
    assert_eq!(released(&a, 1).await, Released::NotHeld);
    assert_eq!(names(&server).await, [entry(&b, 0), entry(&a, 1)]);
    b.release(&key("x", 2, 1), Release::Now).await.unwrap();
    turn(&mut again).await;
}

/// The index of the store goes through all names that were in use since it was compacted last.
#[tokio::test]
async fn names_are_used_again() {
    let server = start().await;
    let lock = open(&server).await;
    let held = key("y", 1, 0);
    granted(&lock, &queued(&held, X)).await;
    for n in 1..=20 {
        let k = key("x", 1, n);
        match n % 2 {
            0 => granted(&lock, &queued(&k, X)).await,
            _ => granted(&lock, &at_once(&k, X)).await,
        };
        assert_eq!(names(&server).await, [entry(&lock, 1)]);
        lock.release(&k, Release::Now).await.unwrap();
    }
    lock.release(&held, Release::Now).await.unwrap();
    granted(&lock, &queued(&key("x", 1, 21), X)).await;
    assert_eq!(names(&server).await, [entry(&lock, 0)]);
}

/// Its lease ends while it waits, and the lock becomes free: neither has it what went with the lease, nor is
/// it told so (etcd's issue 11456).
#[tokio::test]
async fn no_lock_is_granted_after_its_lease_ended() {
    let server = start().await;
    let late = Late::before(server.address());
    let (a, b) = (open(&server).await, open_at(late.address()).await);
    let (first, second) = (key("x", 1, 1), queued(&key("x", 2, 1), X));
    granted(&a, &queued(&first, X)).await;
    let mut wait = waits(&b, &second).await;
    // It hears of everything, and cannot ask until all has happened.
    late.hold();
    let lease = b.lease_id().unwrap();
    revoke(&server, lease).await;
    a.release(&first, Release::Now).await.unwrap();
    late.deliver();
    let told = pushed(&mut wait, LONG).await;
    assert!(!matches!(told, Some(Push::Granted(_))), "{told:?}");
    let grant = granted_in_the_end(&b, &second).await;
    let line = line(&server).await;
    assert_eq!(line.len(), 1);
    assert_eq!(
        grant.token.unwrap().get(),
        line[0].create_revision().unsigned_abs()
    );
    assert_ne!(b.lease_id().unwrap(), lease);
    assert_eq!(line[0].lease(), b.lease_id().unwrap());
}

/// As above, with nothing but its entry to tell it.
#[tokio::test]
async fn a_waiter_whose_entry_was_removed_stands_in_line_anew() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (key("x", 1, 1), queued(&key("x", 2, 1), X));
    granted(&a, &queued(&first, X)).await;
    let mut wait = waits(&b, &second).await;
    etcdctl(&server, &["del", &entry(&b, 0)]).await;
    let mut behind = waits(&a, &queued(&key("x", 1, 2), X)).await;
    a.release(&first, Release::Now).await.unwrap();
    turn(&mut behind).await;
    let told = pushed(&mut wait, LONG).await;
    assert!(matches!(told, Some(Push::Changed)), "{told:?}");
    let mut wait = waits(&b, &second).await;
    assert_eq!(names(&server).await, [entry(&a, 1), entry(&b, 0)]);
    a.release(&key("x", 1, 2), Release::Now).await.unwrap();
    turn(&mut wait).await;
}

#[tokio::test]
async fn a_waiter_goes_on_with_its_next_lease() {
    let server = start().await;
    let (a, lock) = (open(&server).await, open(&server).await);
    let b = client_of(lock.clone());
    granted(&a, &queued(&key("x", 1, 1), X)).await;
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.lock("x").unwrap().acquire().await }
    });
    until("it waits", LONG, async || line(&server).await.len() == 2).await;
    revoke(&server, lock.lease_id().unwrap()).await;
    until("it waits again", LONG, async || line(&server).await.len() == 2).await;
    a.release(&key("x", 1, 1), Release::Now).await.unwrap();
    let guard = tokio::time::timeout(LONG, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(guard.is_valid());
    assert_eq!(line(&server).await[0].lease(), lock.lease_id().unwrap());
}
