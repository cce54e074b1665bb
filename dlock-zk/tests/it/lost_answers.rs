//! Requests whose answers do not come: what they did is found again, and nothing of them stays.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Abandoned, Attempt, Lock as _, Release, Released, RwLock as _};
use dlock_core::{ErrorKind, Mode};
use dlock_zk::{Config, ZkLock};

use crate::frames::{CREATE, DELETE, MULTI, Stop, Way};
use crate::{
    LONG, at_once, children, config, granted, hands, here, key, listens, open, queued, start, unanswered,
    until, waits, with,
};
use dlock_testkit::{Proxy, ZkOptions, ZkServer};

const LINE: &str = "/dlock/locks/x";

#[tokio::test]
async fn a_request_whose_answer_was_lost_is_known_again() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let lock = open(&server).await;
    let k = key("x", 1, 1);
    granted(&lock, &at_once(&key("x", 1, 0), Mode::Exclusive)).await;
    lock.release(&key("x", 1, 0), Release::Now).await.unwrap();
    // The request lies in the server's socket when its caller gives up.
    hands(&server, |s| s.pause()).await;
    unanswered(lock.attempt(&at_once(&k, Mode::Exclusive))).await;
    hands(&server, |s| s.go_on()).await;
    until("its node is there", LONG, async || {
        children(&server, LINE).await.len() == 1
    })
    .await;
    let path = format!("{LINE}/{}", children(&server, LINE).await[0]);
    let made = hands(&server, move |s| s.with_session(|s| s.stat(&path))).await;
    let grant = granted(&lock, &at_once(&k, Mode::Exclusive)).await;
    let token = grant.token.unwrap().get();
    assert_eq!(token, made.unwrap().czxid.unsigned_abs(), "the same node");
    let again = granted(&lock, &at_once(&k, Mode::Exclusive)).await;
    assert_eq!(grant.token, again.token);
    assert_eq!(children(&server, LINE).await.len(), 1);
    assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::Released);
    assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::NotHeld);
}

#[tokio::test]
async fn an_abandoned_request_leaves_nothing_and_does_not_come_back() {
    let server = start().await;
    let lock = open(&server).await;
    let k = key("x", 1, 1);
    granted(&lock, &at_once(&key("x", 1, 0), Mode::Exclusive)).await;
    hands(&server, |s| s.pause()).await;
    unanswered(lock.attempt(&queued(&k, Mode::Exclusive))).await;
    hands(&server, |s| s.go_on()).await;
    let abandoned = lock.abandon(std::slice::from_ref(&k)).await.remove(0).unwrap();
    assert_eq!(abandoned, Abandoned::Withdrawn);
    assert_eq!(children(&server, LINE).await.len(), 1, "the holder alone");
    let late = lock.attempt(&queued(&k, Mode::Exclusive)).await.unwrap_err();
    assert_eq!(late.kind(), dlock_core::ErrorKind::Lost);
    let again = lock.abandon(&[k]).await.remove(0).unwrap();
    assert_eq!(again, Abandoned::Nothing);
}

/// The server dies with the request, and comes back with what it has: its session goes on.
#[tokio::test]
async fn a_request_that_died_with_its_server_is_found_or_made_anew() {
    let server = start().await;
    let lock = crate::config()
        .session_timeout(Duration::from_secs(10))
        .servers(&server.address().to_string())
        .connect(crate::here())
        .await
        .unwrap();
    let session = lock.session_id();
    let k = key("x", 1, 1);
    hands(&server, |s| s.pause()).await;
    unanswered(lock.attempt(&at_once(&k, Mode::Exclusive))).await;
    hands(&server, |s| {
        s.crash()?;
        s.start_again()
    })
    .await;
    until("it is held", Duration::from_secs(20), async || {
        matches!(
            lock.attempt(&at_once(&k, Mode::Exclusive)).await,
            Ok(dlock_core::spi::Attempt::Granted(_))
        )
    })
    .await;
    assert_eq!(lock.session_id(), session, "the session outlived the server");
    assert_eq!(children(&server, LINE).await.len(), 1);
}

#[tokio::test]
async fn a_release_without_its_answer_ends_no_other_hold() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (key("x", 1, 1), key("x", 2, 1));
    granted(&a, &at_once(&first, Mode::Exclusive)).await;
    let mut wait = waits(&b, &queued(&second, Mode::Exclusive)).await;
    hands(&server, |s| s.pause()).await;
    unanswered(a.release(&first, Release::Now)).await;
    hands(&server, |s| s.go_on()).await;
    crate::turn(&mut wait).await;
    assert_eq!(a.release(&first, Release::Now).await.unwrap(), Released::Released);
    assert_eq!(children(&server, LINE).await.len(), 1, "the successor's");
    assert_eq!(
        b.release(&second, Release::Now).await.unwrap(),
        Released::Released
    );
}

/// Two deletions go with a lock that was converted. That neither of them was answered is no sign that the
/// session lives.
#[tokio::test]
async fn deletions_that_are_not_answered_confirm_no_session() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let runtime = here();
    let config = config().session_timeout(LONG);
    let lock = config
        .servers(&proxy.address().to_string())
        .connect(runtime.clone())
        .await;
    let lock = lock.unwrap();
    let (kept, left) = (key("x", 1, 1), key("y", 1, 2));
    granted(&lock, &at_once(&kept, Mode::Exclusive)).await;
    granted(&lock, &at_once(&left, Mode::Exclusive)).await;
    lock.convert(&left, Mode::READER).await.unwrap();
    hands(&server, |s| s.pause()).await;
    let silent_from = runtime.now();
    let releasing = lock.release(&left, Release::Now);
    let cutting = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.cut();
    };
    let (released, ()) = futures::join!(releasing, cutting);
    assert_eq!(released.unwrap_err().kind(), ErrorKind::Unknown);
    let silent_until = runtime.now();
    hands(&server, |s| s.go_on()).await;
    // The same request again, which has its lock: for how long it may be believed in is counted from the last
    // answer.
    let mut again = lock.attempt(&at_once(&kept, Mode::Exclusive)).await;
    while again.as_ref().is_err_and(dlock_core::Error::is_retryable) {
        again = lock.attempt(&at_once(&kept, Mode::Exclusive)).await;
    }
    let Ok(Attempt::Granted(again)) = again else {
        panic!("{again:?}");
    };
    assert!(
        again.counted_from < silent_from || again.counted_from > silent_until,
        "nothing was answered from {silent_from:?} to {silent_until:?}, and it counts from {:?}",
        again.counted_from
    );
}

/// The deletion died with its server. The node still exists, and was given up: a new request queues behind
/// all that came since.
#[tokio::test]
async fn a_node_that_was_given_up_is_never_granted_again() {
    let server = start().await;
    let lock = crate::config()
        .session_timeout(Duration::from_secs(10))
        .servers(&server.address().to_string())
        .connect(crate::here())
        .await
        .unwrap();
    let k = key("x", 1, 1);
    let before = granted(&lock, &at_once(&k, Mode::Exclusive)).await;
    hands(&server, |s| s.pause()).await;
    unanswered(lock.release(&k, Release::Now)).await;
    hands(&server, |s| {
        s.crash()?;
        s.start_again()
    })
    .await;
    assert_eq!(children(&server, LINE).await.len(), 1, "it was not deleted");
    until("it is held", Duration::from_secs(20), async || {
        match lock.attempt(&at_once(&k, Mode::Exclusive)).await {
            Ok(dlock_core::spi::Attempt::Granted(now)) => {
                assert!(now.token > before.token, "{now:?} after {before:?}");
                true
            }
            _ => false,
        }
    })
    .await;
    assert_eq!(children(&server, LINE).await.len(), 1);
    assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::Released);
    assert!(children(&server, LINE).await.is_empty());
}

/// A client with a way of its own.
async fn by_a_way(server: &Arc<ZkServer>, config: Config) -> (Way, ZkLock) {
    let way = Way::to(server.address()).unwrap();
    let address = way.address.to_string();
    let lock = config.servers(&address).connect(here()).await.unwrap();
    listens(server, &lock).await;
    (way, lock)
}

/// A call whose request does not come to the server, since the connection breaks before it.
async fn never_came<T>(call: impl Future<Output = T>, way: &Way, kind: i32) -> T {
    way.stop(Stop::Before(kind));
    let losing = async {
        way.stopped().await;
        way.break_off();
    };
    futures::join!(call, losing).0
}

/// The release was not answered, and the same request is made again: and then it is dropped, when the server
/// has it.
#[tokio::test]
async fn what_is_asked_for_behind_a_lost_release_is_known() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (delete, make) = (Stop::Before(DELETE), Stop::Behind(CREATE));
    for (config, nodes, releasing, asking) in [
        (config(), LINE, Stop::Behind(DELETE), [delete, make]),
        // What is left of it is deleted at last.
        (
            config().unfair(),
            "/dlock/unfair",
            Stop::Behind(MULTI),
            [delete, Stop::Behind(MULTI)],
        ),
    ] {
        let (way, lock) = by_a_way(&server, config).await;
        let request = at_once(&key("x", 1, 1), Mode::Exclusive);
        granted(&lock, &request).await;
        way.dropped(lock.release(&request.key, Release::Now), &[releasing])
            .await;
        until("it is deleted", LONG, async || {
            children(&server, nodes).await.is_empty()
        })
        .await;
        way.dropped(lock.attempt(&request), &asking).await;
        until("it is made", LONG, async || {
            children(&server, nodes).await.len() == 1
        })
        .await;
        let abandoned = lock.abandon(std::slice::from_ref(&request.key)).await.remove(0);
        assert_eq!(abandoned.unwrap(), Abandoned::Withdrawn);
        assert!(children(&server, nodes).await.is_empty());
    }
}

/// The release never came to the server. The hold stands, and is given up: it is not converted, and the same
/// request makes another one.
#[tokio::test]
async fn what_was_given_up_is_neither_converted_nor_granted() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    for (config, nodes, kind) in [
        (config(), LINE, DELETE),
        (config().unfair(), "/dlock/unfair", MULTI),
    ] {
        let (way, lock) = by_a_way(&server, config).await;
        let request = at_once(&key("x", 1, 1), Mode::Exclusive);
        let before = granted(&lock, &request).await.token;
        let releasing = lock.release(&request.key, Release::Now);
        let e = never_came(releasing, &way, kind).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
        assert_eq!(children(&server, nodes).await.len(), 1, "it was not deleted");
        if lock.rwlock().is_some() {
            let e = lock.convert(&request.key, Mode::READER).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Lost, "{e}");
            assert_eq!(children(&server, nodes).await.len(), 1, "without a mark");
        }
        assert!(granted(&lock, &request).await.token > before);
        assert_eq!(children(&server, nodes).await.len(), 1);
        let released = lock.release(&request.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::Released);
    }
}

/// A request of an earlier session has a node in the line yet. The same one asks again in this session, and
/// that never came to the server.
#[tokio::test]
async fn a_node_of_another_session_is_not_found_for_the_own_one() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (way, lock) = by_a_way(&server, config()).await;
    let request = queued(&key("x", 1, 1), Mode::Exclusive);
    granted(&lock, &request).await;
    let old = format!("{LINE}/{}", children(&server, LINE).await[0]);
    lock.release(&request.key, Release::Now).await.unwrap();
    // By its name: it is not one of this session.
    hands(&server, move |s| s.with_session(|s| s.create(&old, b""))).await;
    let e = never_came(lock.attempt(&request), &way, CREATE).await;
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Unknown);
    drop(waits(&lock, &request).await);
    assert_eq!(children(&server, LINE).await.len(), 2, "behind the other one");
}

/// Its line was made for it, and its node never was.
#[tokio::test]
async fn a_request_that_never_came_leaves_nothing() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (way, lock) = by_a_way(&server, config()).await;
    // It makes what is above the lines.
    let other = key("y", 1, 0);
    granted(&lock, &at_once(&other, Mode::Exclusive)).await;
    let request = at_once(&key("x", 1, 1), Mode::Exclusive);
    let e = never_came(lock.attempt(&request), &way, CREATE).await;
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(children(&server, "/dlock/locks").await, ["x", "y"]);
    let abandoned = lock.abandon(&[request.key]).await.remove(0).unwrap();
    assert_eq!(abandoned, Abandoned::Nothing);
    assert_eq!(children(&server, "/dlock/locks").await, ["y"]);
    // And nothing of it is noted any more: a session of nobody with nothing in it is closed at once.
    lock.release(&other, Release::Now).await.unwrap();
    drop(lock.signals());
    until("its session is closed", LONG / 4, async || {
        children(&server, "/dlock/sessions").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_unfair_lock_whose_answer_was_lost_is_known_again() {
    let server = start().await;
    let (way, lock) = by_a_way(&server, config().unfair()).await;
    // It makes what is above the locks.
    granted(&lock, &at_once(&key("y", 1, 0), Mode::Exclusive)).await;
    let request = at_once(&key("x", 1, 1), Mode::Exclusive);
    way.dropped(lock.attempt(&request), &[Stop::Behind(MULTI)]).await;
    let stat = async || hands(&server, |s| s.with_session(|s| s.stat("/dlock/unfair/x"))).await;
    until("it is made", LONG, async || stat().await.is_some()).await;
    let made = stat().await.unwrap().czxid.unsigned_abs();
    let grant = granted(&lock, &request).await;
    assert_eq!(grant.token.unwrap().get(), made, "the same node");
}
