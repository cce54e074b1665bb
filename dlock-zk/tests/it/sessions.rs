//! Sessions that end: what hung on them is lost, nothing of them counts any more, and another one is made
//! without a new client.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dlock_core::spi::{
    Attempt, Lock as _, LostLeases, Release, Released, RenewItem, RenewOutcome, RwLock as _, Signal,
};
use dlock_core::{AutoRenew, LockOptions, LossReason, Mode, Runtime, Timestamp};
use dlock_zk::ZkLock;
use futures::channel::oneshot;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};

use crate::bent::Bent;
use crate::{
    LONG, SESSION, at_once, children, client, client_of, config, granted, hands, here, key, open, queued,
    start, until, waits,
};
use dlock_testkit::{Proxy, ZkServer};

const X: Mode = Mode::Exclusive;

/// Whose session is one to wait for.
async fn brief(server: &ZkServer) -> ZkLock {
    let config = config().session_timeout(SESSION);
    config
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap()
}

#[tokio::test]
async fn another_session_is_made_when_one_has_ended() {
    let server = start().await;
    let lock = open(&server).await;
    let mut signals = lock.signals();
    // Another user of the same session takes nothing from the first.
    let _another = lock.signals();
    let mut before = None;
    // The second one is looked after as the first is.
    for n in 0..2 {
        let first = lock.session_id().unwrap();
        let old = key("x", 1, n);
        let token = granted(&lock, &at_once(&old, X)).await.token;
        assert!(token > before);
        before = token;
        crate::expire(&server, first).await;
        loop {
            let signal = tokio::time::timeout(LONG, signals.next()).await.unwrap().unwrap();
            match signal {
                Signal::Lost(LostLeases::All, reason) => {
                    assert_eq!(reason, LossReason::SessionLost);
                    break;
                }
                Signal::Doubt | Signal::Back => {}
                other => panic!("{other:?}"),
            }
        }
        let told = tokio::time::timeout(LONG, signals.next()).await.unwrap();
        assert!(matches!(told, Some(Signal::Back)), "{told:?}");
        assert!(lock.session_id().is_some_and(|id| id != first));
        assert_eq!(lock.release(&old, Release::Now).await.unwrap(), Released::NotHeld);
    }
    granted(&lock, &at_once(&key("x", 1, 2), X)).await;
    let sessions = children(&server, "/dlock/sessions").await;
    assert_eq!(sessions.len(), 1, "{sessions:?}");
}

/// Nobody uses it, and a request finds no server: a later one tries anew.
#[tokio::test]
async fn a_request_after_a_failed_one_makes_a_session() {
    let server = start().await;
    let lock = open(&server).await;
    crate::expire(&server, lock.session_id().unwrap()).await;
    until("it has ended", LONG, async || lock.session_id().is_none()).await;
    // Nobody has another one made.
    tokio::time::sleep(SESSION / 4).await;
    assert!(children(&server, "/dlock/sessions").await.is_empty());
    hands(&server, |s| s.crash()).await;
    let request = at_once(&key("x", 1, 1), X);
    // It waits longer than the try that it begins, which is refused at once.
    let e = lock.attempt(&request).await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::Unavailable, "{e}");
    hands(&server, |s| s.start_again()).await;
    until("it is had", LONG, async || {
        matches!(lock.attempt(&request).await, Ok(Attempt::Granted(_)))
    })
    .await;
}

/// The node of a session that has ended may be there yet, and in the line; it is nobody's.
#[tokio::test]
async fn a_node_of_an_ended_session_does_not_grant_the_same_request() {
    let server = start().await;
    let lock = open(&server).await;
    let signals = lock.signals();
    let k = key("x", 1, 1);
    let first = lock.session_id().unwrap();
    let before = granted(&lock, &at_once(&k, X)).await;
    crate::expire(&server, first).await;
    until("there is another session", LONG, async || {
        lock.session_id().is_some_and(|id| id != first)
    })
    .await;
    let after = granted(&lock, &at_once(&k, X)).await;
    assert!(after.token > before.token, "its own node, and not that of before");
    assert_eq!(children(&server, "/dlock/locks/x").await.len(), 1);
    drop(signals);
}

#[tokio::test]
async fn a_guard_ends_by_its_own_clock_while_the_server_stands_still() {
    let server = start().await;
    let client = client_of(brief(&server).await);
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    assert!(guard.is_valid());
    let least = guard.ttl();
    assert!(least < SESSION && least > SESSION / 2, "{least:?}");
    hands(&server, |s| s.pause()).await;
    let stopped = std::time::Instant::now();
    tokio::time::timeout(SESSION, guard.lost())
        .await
        .expect("it is told by the deadline");
    assert!(!guard.is_valid());
    assert!(
        stopped.elapsed() < SESSION,
        "before any server would give it away"
    );
    hands(&server, |s| s.go_on()).await;
    // The same client goes on.
    until("it is had again", LONG, async || {
        client
            .lock("x")
            .unwrap()
            .try_acquire()
            .await
            .is_ok_and(|g| g.is_some())
    })
    .await;
}

/// Without auto-renewal its session keeps a hold until its ttl is over, and no longer.
#[tokio::test]
async fn a_hold_that_is_not_renewed_lasts_for_its_ttl() {
    let server = start().await;
    let (client, next) = (client_of(brief(&server).await), open(&server).await);
    let ttl = SESSION * 2;
    let options = LockOptions::new().ttl(ttl).auto_renew(AutoRenew::Off);
    let lock = client.lock("x").unwrap().options(options).unwrap();
    let from = std::time::Instant::now();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.ttl(), ttl);
    let mut wait = waits(&next, &queued(&key("x", 2, 1), X)).await;
    guard.lost().await;
    assert!(!guard.is_valid());
    crate::turn(&mut wait).await;
    let lasted = from.elapsed();
    assert!(lasted > ttl - SESSION / 3 && lasted < ttl + SESSION, "{lasted:?}");
}

#[tokio::test]
async fn a_waiter_goes_on_in_the_next_session() {
    let server = start().await;
    let (a, lock) = (client(&server).await, open(&server).await);
    let first = lock.session_id().unwrap();
    let b = client_of(lock);
    let guard = a.lock("x").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.lock("x").unwrap().acquire().await }
    });
    until("it waits", LONG, async || {
        children(&server, "/dlock/locks/x").await.len() == 2
    })
    .await;
    crate::expire(&server, first).await;
    until("it waits again", LONG, async || {
        children(&server, "/dlock/locks/x").await.len() == 2
    })
    .await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(LONG, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(guard.is_valid());
}

#[tokio::test]
async fn nothing_stays_of_a_client_that_is_dropped_or_closed() {
    let server = start().await;
    for close in [true, false] {
        let lock = brief(&server).await;
        let other = lock.clone();
        let client = client_of(lock);
        let guard = client.lock("x").unwrap().acquire().await.unwrap();
        if close {
            client.close().await.unwrap();
        }
        drop((guard, client));
        let sessions = async || children(&server, "/dlock/sessions").await.len();
        until("its session is closed", LONG, async || sessions().await == 0).await;
        assert!(children(&server, "/dlock/locks/x").await.is_empty());
        if close {
            let e = other.attempt(&at_once(&key("x", 1, 1), X)).await.unwrap_err();
            assert_eq!(e.kind(), dlock_core::ErrorKind::Closed);
        } else {
            // A new request gets another session.
            granted(&other, &at_once(&key("x", 1, 1), X)).await;
            drop(other);
            until("that is closed as well", LONG, async || sessions().await == 0).await;
        }
    }
}

/// Several clients may share a session. One that is done leaves, and the others stay.
#[tokio::test]
async fn closing_one_client_of_a_session_ends_nothing_of_the_others() {
    let server = start().await;
    let lock = brief(&server).await;
    let (a, b) = (client_of(lock.clone()), client_of(lock.clone()));
    let session = lock.session_id();
    let kept = b.lock("kept").unwrap().acquire().await.unwrap();
    let ended = a.lock("ended").unwrap().acquire().await.unwrap();
    a.close().await.unwrap();
    assert!(!ended.is_valid());
    let e = a.lock("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::Closed);
    // It is renewed past its session's timeout, and new ones are had.
    tokio::time::sleep(SESSION + SESSION / 2).await;
    assert!(kept.is_valid(), "{:?}", kept.loss());
    assert_eq!(children(&server, "/dlock/locks/kept").await.len(), 1);
    b.lock("x").unwrap().acquire().await.unwrap();
    assert_eq!(lock.session_id(), session);
    b.close().await.unwrap();
    until("its session is closed", LONG, async || {
        children(&server, "/dlock/sessions").await.is_empty()
    })
    .await;
    let e = lock.attempt(&at_once(&key("x", 1, 1), X)).await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::Closed);
}

/// A runtime that does something when somebody looks at its clock: once.
#[derive(Debug)]
struct Looked {
    runtime: Arc<dyn Runtime>,
    then: Mutex<Option<Then>>,
}

struct Then(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Then {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Then")
    }
}

impl Runtime for Looked {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.runtime.sleep(duration)
    }

    fn now(&self) -> Timestamp {
        let then = self.then.lock().unwrap().take();
        if let Some(Then(then)) = then {
            then();
        }
        self.runtime.now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.runtime.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        self.runtime.name()
    }
}

/// The last one goes, and another one comes just when the session is about to be closed.
#[tokio::test]
async fn a_new_user_keeps_a_retiring_session() {
    let server = start().await;
    let runtime = Arc::new(Looked {
        runtime: here(),
        then: Mutex::default(),
    });
    let address = server.address().to_string();
    let lock = config().servers(&address).connect(runtime.clone()).await.unwrap();
    let session = lock.session_id();
    let last = lock.signals();
    let (begun, mut begins) = oneshot::channel();
    let next = lock.clone();
    let then = Then(Box::new(move || drop(begun.send(next.signals()))));
    *runtime.then.lock().unwrap() = Some(then);
    drop(last);
    // Retiring it checks whether it has expired.
    let mut signals = tokio::time::timeout(LONG, &mut begins).await.unwrap().unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    assert_eq!(lock.session_id(), session);
    let told = signals.next().now_or_never();
    assert!(told.is_none(), "{told:?}");
}

/// Who closes the backend under a client has it told: its nodes go just then.
#[tokio::test]
async fn a_client_is_told_that_its_backend_was_closed() {
    let server = start().await;
    let runtime = crate::here();
    let config = crate::config().session_timeout(Duration::from_secs(30));
    let lock = config
        .servers(&server.address().to_string())
        .connect(runtime)
        .await
        .unwrap();
    let client = client_of(lock.clone());
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    lock.close().await.unwrap();
    let why = tokio::time::timeout(LONG, guard.lost())
        .await
        .expect("it is told");
    assert_eq!(why, LossReason::Closed);
    let e = lock.release(&key("y", 1, 1), Release::Now).await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::Closed, "{e}");
}

/// The connection broke, and the session did not.
#[tokio::test]
async fn a_client_is_told_that_its_connection_is_back() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let address = proxy.address().to_string();
    let lock = config().servers(&address).connect(here()).await.unwrap();
    let mut signals = lock.signals();
    proxy.cut();
    for told in ["Doubt", "Back"] {
        let signal = tokio::time::timeout(LONG, signals.next()).await.unwrap();
        assert_eq!(format!("{:?}", signal.unwrap()), told);
    }
}

/// What has a hold is kept for it, until it would have run out without its client; and other requests have it
/// meanwhile.
#[tokio::test]
async fn a_session_of_nobody_is_kept_for_its_holds() {
    let server = start().await;
    let lock = open(&server).await;
    let (held, session) = (key("x", 1, 1), lock.session_id());
    granted(&lock, &at_once(&held, X)).await;
    drop(lock.signals());
    // What ends it has its turn.
    tokio::task::yield_now().await;
    granted(&lock, &at_once(&key("y", 1, 2), X)).await;
    assert_eq!(lock.session_id(), session);
    let released = lock.release(&held, Release::Now).await.unwrap();
    assert_eq!(released, Released::Released);
}

/// It was closed for want of a user, and the client has not heard of that yet.
#[tokio::test]
async fn a_request_behind_the_last_user_gets_another_session() {
    let server = start().await;
    let runtime = Bent::new();
    let address = server.address().to_string();
    let lock = config().servers(&address).connect(runtime.clone()).await.unwrap();
    let session = lock.session_id();
    let last = lock.signals();
    runtime.at_once.store(true, Ordering::SeqCst);
    drop(last);
    runtime.at_once.store(false, Ordering::SeqCst);
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    assert_ne!(lock.session_id(), session);
}

/// One of two was closed, and the other one is dropped: nobody has it any more.
#[tokio::test]
async fn what_one_closed_is_closed_when_the_other_goes() {
    let server = start().await;
    let lock = open(&server).await;
    let users = (lock.signals(), lock.signals());
    lock.close().await.unwrap();
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    drop(users);
    let e = lock.attempt(&at_once(&key("x", 1, 2), X)).await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::Closed, "{e}");
}

/// Its node was made, and it does not know that yet, when its session ends.
#[tokio::test]
async fn a_grant_under_way_is_not_handed_out_after_the_end() {
    let server = start().await;
    for closes in [true, false] {
        let lock = open(&server).await;
        // It makes what is above the line.
        granted(&lock, &at_once(&key("y", 1, 2), X)).await;
        let request = at_once(&key("x", 1, 1), X);
        let mut asking = lock.attempt(&request);
        assert!(futures::poll!(&mut asking).is_pending());
        // Answered behind it: its answers lie there.
        granted(&lock, &at_once(&key("z", 1, 3), X)).await;
        assert_eq!(children(&server, "/dlock/locks/x").await.len(), 1);
        if closes {
            lock.close().await.unwrap();
        } else {
            crate::expire(&server, lock.session_id().unwrap()).await;
            until("it has ended", LONG, async || lock.session_id().is_none()).await;
        }
        let told = asking.await;
        assert!(told.is_err(), "{told:?}");
        drop(lock);
        until("nothing is left", LONG, async || {
            children(&server, "/dlock/sessions").await.is_empty()
        })
        .await;
    }
}

/// Somebody asked whether it lives, and has gone since; and a waiter of before is there yet.
#[tokio::test]
async fn a_question_that_nobody_waits_for_keeps_no_session() {
    let server = start().await;
    let (lock, other) = (open(&server).await, open(&server).await);
    let held = key("x", 1, 1);
    granted(&lock, &at_once(&held, X)).await;
    granted(&other, &at_once(&key("y", 2, 1), X)).await;
    let wait = waits(&lock, &queued(&key("y", 1, 2), X)).await;
    let mut asking = lock.convert(&held, X);
    assert!(futures::poll!(&mut asking).is_pending());
    drop(asking);
    lock.close().await.unwrap();
    until("its session is closed", LONG / 2, async || {
        children(&server, "/dlock/sessions").await.len() == 1
    })
    .await;
    drop(wait);
}

/// A request in a future that is not polled any more delays no other.
#[tokio::test]
async fn an_unpolled_future_delays_no_renewal() {
    let server = start().await;
    let lock = open(&server).await;
    let held = key("x", 1, 1);
    granted(&lock, &at_once(&held, X)).await;
    // It asks whether the session lives.
    let mut stuck = lock.convert(&held, X);
    assert!(futures::poll!(&mut stuck).is_pending());
    for n in 0..3 {
        let from = Timestamp::now();
        let items = [RenewItem::lease(held.clone(), LONG)];
        let renewed = tokio::time::timeout(LONG, lock.renew().unwrap().renew(&items)).await;
        let renewed = renewed.expect("it is answered");
        let [RenewOutcome::Renewed(renewal)] = &renewed[..] else {
            panic!("{renewed:?}");
        };
        // Only the first finds a question that is on its way.
        assert!(n == 0 || renewal.counted_from >= from, "{renewal:?}");
    }
    stuck.await.unwrap();
}

/// An engine whose runtime has ended renews nothing and tells nobody; what it held must not live on with the
/// driver.
#[tokio::test]
async fn what_a_vanished_client_held_lapses() {
    let server = start().await;
    let (vanishing, next) = (client_of(brief(&server).await), open(&server).await);
    let guard = vanishing.lock("x").unwrap().acquire().await.unwrap();
    vanishing.abort();
    let mut wait = waits(&next, &queued(&key("x", 2, 1), X)).await;
    let from = std::time::Instant::now();
    crate::turn(&mut wait).await;
    assert!(from.elapsed() < SESSION + Duration::from_secs(1));
    drop(guard);
}

/// Who used it goes while another session is being made: that one is not kept for nobody.
#[tokio::test]
async fn a_session_without_a_user_is_closed() {
    let server = start().await;
    let runtime = Bent::new();
    let address = server.address().to_string();
    let lock = config().servers(&address).connect(runtime.clone()).await.unwrap();
    let signals = lock.signals();
    let (taker, taken) = mpsc::channel();
    *runtime.taker.lock().unwrap() = Some(taker);
    crate::expire(&server, lock.session_id().unwrap()).await;
    until("it has ended", LONG, async || lock.session_id().is_none()).await;
    let has_another_made = taken.try_recv().expect("another one is made");
    drop(signals);
    // Nobody is there whose session could be closed.
    taken.try_recv().expect("it sees to the session").await;
    *runtime.taker.lock().unwrap() = None;
    has_another_made.await;
    assert!(lock.session_id().is_some());
    until("it is closed", LONG / 2, async || {
        lock.session_id().is_none() && children(&server, "/dlock/sessions").await.is_empty()
    })
    .await;
}
