//! The places in a line are numbers of 32 bits: what becomes of a line that comes to their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dlock_core::Mode;
use dlock_core::spi::{Abandoned, Attempt, Lock as _, Push, Release, Released};

use crate::frames::{CREATE, CREATE_CONTAINER, DELETE, Stop, Way};
use crate::{
    LONG, at_once, children, client, config, granted, hands, here, key, listens, open, pushed, queued, start,
    until,
};
use dlock_testkit::ZkServer;

const X: Mode = Mode::Exclusive;
const LINE: &str = "/dlock/locks/x";

/// A server with a line in which the next one to come has that number.
async fn at(number: i32) -> Arc<ZkServer> {
    let server = start().await;
    hands(&server, move |s| {
        s.with_session(|s| {
            for path in ["/dlock", "/dlock/locks"] {
                s.create(path, b"")?;
            }
            // As after that many nodes; not a container, which the server would remove before the test
            // begins.
            s.create(LINE, b"")
        })?;
        s.number_next(LINE, number)
    })
    .await;
    server
}

fn places(nodes: &[String]) -> Vec<i64> {
    let place = |node: &String| node.splitn(4, '-').nth(3).unwrap().parse().unwrap();
    nodes.iter().map(place).collect()
}

/// From here on a server gives one number to all: by it two would be first.
#[tokio::test(flavor = "multi_thread")]
async fn no_second_holder_where_the_numbers_end() {
    const TURNS: u32 = 20;
    let server = at(i32::MAX - 2).await;
    let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crowd = Vec::new();
    for _ in 0..4 {
        let (client, inside, last) = (client(&server).await, inside.clone(), last.clone());
        crowd.push(tokio::spawn(async move {
            let lock = client.lock("x").unwrap();
            for _ in 0..TURNS {
                let guard = tokio::time::timeout(LONG, lock.acquire()).await.unwrap().unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                let token = guard.token().unwrap().get();
                assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for one in crowd {
        one.await.unwrap();
    }
    let lock = open(&server).await;
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    let places = places(&children(&server, LINE).await);
    assert!(places[0] < 1000, "the line began anew: {places:?}");
}

#[tokio::test]
async fn the_last_holder_before_the_end_is_waited_for() {
    // The last place in which anybody stays.
    let server = at(i32::MAX - (1 << 20) - 1).await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (key("x", 1, 1), key("x", 2, 1));
    let held = granted(&a, &at_once(&first, X)).await;
    let Attempt::Held(mut wait) = b.attempt(&queued(&second, X)).await.unwrap() else {
        panic!("there is no place in the line");
    };
    assert_eq!(children(&server, LINE).await.len(), 1, "the holder alone");
    assert!(pushed(&mut wait, LONG / 100).await.is_none());
    assert_eq!(a.release(&first, Release::Now).await.unwrap(), Released::Released);
    assert!(matches!(pushed(&mut wait, LONG).await, Some(Push::Changed)));
    assert!(granted(&b, &queued(&second, X)).await.token > held.token);
    assert_eq!(places(&children(&server, LINE).await), [0]);
}

/// It drew a number behind the end, removed the line, and asks again; then it is dropped, when the server has
/// that.
#[tokio::test]
async fn what_is_asked_for_behind_the_end_is_known() {
    let server = at(i32::MAX).await;
    let way = Way::to(server.address()).unwrap();
    let address = way.address.to_string();
    let lock = config().servers(&address).connect(here()).await.unwrap();
    listens(&server, &lock).await;
    let request = queued(&key("x", 1, 1), X);
    let stops = [
        Stop::Before(DELETE),
        Stop::Before(CREATE_CONTAINER),
        Stop::Behind(CREATE),
    ];
    way.dropped(lock.attempt(&request), &stops).await;
    until("it is made", LONG, async || {
        let nodes = children(&server, LINE).await;
        places(&nodes) == [0]
    })
    .await;
    let abandoned = lock.abandon(std::slice::from_ref(&request.key)).await.remove(0);
    assert_eq!(abandoned.unwrap(), Abandoned::Withdrawn);
    assert!(children(&server, LINE).await.is_empty());
}
