//! Several calls of one request at a time, as a quorum makes them: nothing stays that nobody owns.

use std::sync::Arc;

use dlock_core::spi::{Abandoned, Attempt, LeaseKey, Lock as _, Release, Signal};
use dlock_core::{ErrorKind, Mode, Result};
use dlock_zk::ZkLock;
use futures::StreamExt as _;
use futures::future::join;

use crate::{LONG, at_once, children, config, granted, hands, here, key, open, queued, start};
use dlock_testkit::{Proxy, ZkServer};

const X: Mode = Mode::Exclusive;
const LINE: &str = "/dlock/locks/x";

async fn abandon(lock: &ZkLock, key: &LeaseKey) -> Result<Abandoned> {
    lock.abandon(std::slice::from_ref(key)).await.remove(0)
}

/// The client knows the line, and the server has removed it since: who joins it next has to ask twice.
async fn reaped(server: &Arc<ZkServer>, lock: &ZkLock) {
    let before = key("x", 9, 9);
    granted(lock, &at_once(&before, X)).await;
    lock.release(&before, Release::Now).await.unwrap();
    // If it has not been quicker.
    hands(server, |s| s.with_session(|s| s.delete(LINE))).await;
}

/// Of two calls of a request that was granted to the first one.
fn one_of(calls: [Result<Attempt>; 2]) {
    let [first, second] = calls;
    assert!(matches!(first, Ok(Attempt::Granted(_))), "{first:?}");
    let second = second.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Unknown, "{second}");
}

#[tokio::test]
async fn two_attempts_of_one_request_make_one_node() {
    let server = start().await;
    let lock = open(&server).await;
    reaped(&server, &lock).await;
    let request = queued(&key("x", 1, 1), X);
    hands(&server, |s| s.pause()).await;
    let (mut first, mut second) = (lock.attempt(&request), lock.attempt(&request));
    assert!(futures::poll!(&mut first).is_pending());
    // It may have its answer, without having asked anybody.
    let early = futures::poll!(&mut second);
    hands(&server, |s| s.go_on()).await;
    let answers = match early {
        std::task::Poll::Ready(second) => (first.await, second),
        std::task::Poll::Pending => join(first, second).await,
    };
    one_of(answers.into());
    granted(&lock, &request).await;
    assert_eq!(children(&server, LINE).await.len(), 1);
    let abandoned = abandon(&lock, &request.key).await.unwrap();
    assert!(matches!(abandoned, Abandoned::WasGranted(_)), "{abandoned:?}");
    assert!(children(&server, LINE).await.is_empty());
}

/// The same without a queue: the first request creates the parents, and asks twice.
#[tokio::test]
async fn two_attempts_of_one_request_take_an_unfair_lock_once() {
    let server = start().await;
    let lock = config().unfair();
    let lock = lock
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap();
    let request = at_once(&key("x", 1, 1), X);
    hands(&server, |s| s.pause()).await;
    let (mut first, mut second) = (lock.attempt(&request), lock.attempt(&request));
    assert!(futures::poll!(&mut first).is_pending());
    let early = futures::poll!(&mut second);
    hands(&server, |s| s.go_on()).await;
    let answers = match early {
        std::task::Poll::Ready(second) => (first.await, second),
        std::task::Poll::Pending => join(first, second).await,
    };
    one_of(answers.into());
    let abandoned = abandon(&lock, &request.key).await.unwrap();
    assert!(matches!(abandoned, Abandoned::WasGranted(_)), "{abandoned:?}");
    assert!(children(&server, "/dlock/unfair").await.is_empty());
    assert!(children(&server, "/dlock/holders").await.is_empty());
}

/// The abandon is heard out first, and then the attempt goes on.
#[tokio::test]
async fn an_attempt_that_was_abandoned_beside_it_makes_no_node_more() {
    let server = start().await;
    let lock = open(&server).await;
    reaped(&server, &lock).await;
    let request = queued(&key("x", 1, 1), X);
    hands(&server, |s| s.pause()).await;
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    hands(&server, |s| s.go_on()).await;
    let beside = abandon(&lock, &request.key).await.unwrap_err();
    assert_eq!(beside.kind(), ErrorKind::Unknown, "{beside}");
    let asked = asking.await.unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::Lost, "{asked}");
    assert_eq!(abandon(&lock, &request.key).await.unwrap(), Abandoned::Nothing);
    assert!(children(&server, LINE).await.is_empty());
}

/// The same without a queue: its parents are not there, and it asks twice.
#[tokio::test]
async fn an_unfair_attempt_that_was_abandoned_beside_it_takes_nothing() {
    let server = start().await;
    let lock = config().unfair().servers(&server.address().to_string());
    let lock = lock.connect(here()).await.unwrap();
    let request = at_once(&key("x", 1, 1), X);
    hands(&server, |s| s.pause()).await;
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    let beside = abandon(&lock, &request.key).await.unwrap_err();
    assert_eq!(beside.kind(), ErrorKind::Unknown, "{beside}");
    hands(&server, |s| s.go_on()).await;
    let asked = asking.await.unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::Lost, "{asked}");
    assert!(children(&server, "/dlock/unfair").await.is_empty());
}

/// What it had made before is there, and is ended by the abandon that follows.
#[tokio::test]
async fn what_an_attempt_made_before_it_was_abandoned_is_ended() {
    let server = start().await;
    let lock = open(&server).await;
    let request = queued(&key("x", 1, 1), X);
    // So that the line is there.
    granted(&lock, &queued(&key("x", 9, 9), X)).await;
    lock.release(&key("x", 9, 9), Release::Now).await.unwrap();
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    let beside = abandon(&lock, &request.key).await.unwrap_err();
    assert_eq!(beside.kind(), ErrorKind::Unknown, "{beside}");
    drop(asking);
    let abandoned = abandon(&lock, &request.key).await.unwrap();
    assert_eq!(abandoned, Abandoned::Withdrawn);
    assert!(children(&server, LINE).await.is_empty());
}

/// Both wait for a connection; the attempt is the first to have one, and meets the tombstone.
#[tokio::test]
async fn an_attempt_that_meets_its_tombstone_forgets_no_node() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let lock = config().session_timeout(LONG / 2);
    let lock = lock
        .servers(&proxy.address().to_string())
        .connect(here())
        .await
        .unwrap();
    let mut signals = lock.signals();
    let request = queued(&key("x", 1, 1), X);
    granted(&lock, &request).await;
    hands(&server, |s| s.pause()).await;
    proxy.cut();
    let told = tokio::time::timeout(LONG, signals.next()).await.unwrap();
    assert!(matches!(told, Some(Signal::Doubt)), "{told:?}");
    let (mut again, mut undoing) = (lock.attempt(&request), Box::pin(abandon(&lock, &request.key)));
    assert!(futures::poll!(&mut again).is_pending());
    assert!(futures::poll!(&mut undoing).is_pending());
    hands(&server, |s| s.go_on()).await;
    let (again, undone) = join(again, undoing).await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Lost);
    let undone = undone.unwrap();
    assert!(matches!(undone, Abandoned::WasGranted(_)), "{undone:?}");
    assert!(children(&server, LINE).await.is_empty());
}

/// Two of a conversion and a release, of which the second was sent while the first was on its way.
#[tokio::test]
async fn a_release_beside_a_conversion_leaves_no_mark() {
    use dlock_core::spi::RwLock as _;
    let server = start().await;
    let lock = open(&server).await;
    let k = key("x", 1, 1);
    granted(&lock, &at_once(&k, X)).await;
    let mut converting = lock.convert(&k, Mode::READER);
    assert!(futures::poll!(&mut converting).is_pending());
    let beside = lock.release(&k, Release::Now).await.unwrap_err();
    assert_eq!(beside.kind(), ErrorKind::Unknown, "{beside}");
    converting.await.unwrap();
    lock.release(&k, Release::Now).await.unwrap();
    assert!(children(&server, LINE).await.is_empty());
}
