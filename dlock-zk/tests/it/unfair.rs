//! Unfair locks: one node, and each acquisition ends its own hold alone.

use std::time::Duration;

use dlock_core::Mode;
use dlock_core::spi::{Attempt, Lock as _, Push, Release, Released, Watch as _};
use dlock_zk::ZkLock;

use crate::{
    LONG, at_once, children, client_of, config, granted, hands, here, key, pushed, start, unanswered,
};
use dlock_testkit::ZkServer;

const X: Mode = Mode::Exclusive;

async fn open(server: &ZkServer) -> ZkLock {
    let config = config().unfair();
    config
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap()
}

#[tokio::test]
async fn one_has_it_and_the_others_are_told_when_it_is_free() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (key("x", 1, 1), key("x", 2, 1));
    let before = granted(&a, &at_once(&first, X)).await;
    let again = granted(&a, &at_once(&first, X)).await;
    assert_eq!(before.token, again.token);
    let Attempt::Held(mut wait) = b.attempt(&at_once(&second, X)).await.unwrap() else {
        panic!("it is held");
    };
    assert!(pushed(&mut wait, Duration::from_millis(100)).await.is_none());
    assert_eq!(a.release(&first, Release::Now).await.unwrap(), Released::Released);
    assert!(matches!(pushed(&mut wait, LONG).await, Some(Push::Changed)));
    let after = granted(&b, &at_once(&second, X)).await;
    assert!(after.token > before.token);
    assert_eq!(a.release(&first, Release::Now).await.unwrap(), Released::NotHeld);
    let held = a.inspect(&first.name).await.unwrap();
    assert_eq!((held.holders[0].id, held.waiting), (second.id, 0));
}

#[tokio::test]
async fn a_release_that_is_sent_again_spares_the_next_holder() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (key("x", 1, 1), key("x", 2, 1));
    granted(&a, &at_once(&first, X)).await;
    hands(&server, |s| s.pause()).await;
    unanswered(a.release(&first, Release::Now)).await;
    hands(&server, |s| s.go_on()).await;
    crate::until("it is had", LONG, async || {
        matches!(b.attempt(&at_once(&second, X)).await, Ok(Attempt::Granted(_)))
    })
    .await;
    assert_eq!(a.release(&first, Release::Now).await.unwrap(), Released::Released);
    assert_eq!(children(&server, "/dlock/unfair").await, ["x"]);
    assert_eq!(
        b.release(&second, Release::Now).await.unwrap(),
        Released::Released
    );
    assert!(children(&server, "/dlock/unfair").await.is_empty());
    assert!(children(&server, "/dlock/holders").await.is_empty());
}

#[tokio::test]
async fn a_crowd_takes_turns() {
    let server = start().await;
    let client = client_of(open(&server).await);
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let (client, inside) = (client.clone(), inside.clone());
            tokio::spawn(async move {
                let lock = client.lock("x").unwrap();
                let guard = tokio::time::timeout(LONG, lock.acquire()).await.unwrap().unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        })
        .collect();
    for one in crowd {
        one.await.unwrap();
    }
}
