//! Servers without containers: lines go as well.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use dlock_core::Mode;
use dlock_core::spi::{Lock as _, Release, Watch as _};

use crate::frames::{EXISTS, carry, int, lead};
use crate::servers::ZkServer;
use crate::{
    LONG, at_once, builder, children, client_of, expire, granted, hands, here, key, listens, queued, start,
    turn, until, waits,
};

const X: Mode = Mode::Exclusive;
const LOCKS: &str = "/dlock/locks";
const LINE: &str = "/dlock/locks/x";

async fn open(server: &ZkServer) -> dlock_zk::ZkLock {
    let builder = builder().without_containers();
    builder.open(&server.address().to_string(), here()).await.unwrap()
}

async fn is_plain(server: &Arc<ZkServer>) -> bool {
    let stat = hands(server, |s| s.with_session(|s| s.stat(LINE))).await;
    stat.unwrap().owner == 0
}

#[tokio::test]
async fn whoever_leaves_last_takes_the_line_along() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (key("x", 1, 1), key("x", 2, 1));
    for _ in 0..3 {
        let before = granted(&a, &at_once(&first, X)).await;
        assert!(is_plain(&server).await);
        let mut wait = waits(&b, &queued(&second, X)).await;
        a.release(&first, Release::Now).await.unwrap();
        assert!(turn(&mut wait).await.token > before.token);
        assert_eq!(children(&server, LOCKS).await, ["x"]);
        b.release(&second, Release::Now).await.unwrap();
        assert!(children(&server, LOCKS).await.is_empty());
    }
    granted(&a, &at_once(&first, X)).await;
    assert_eq!(b.force_release(&first.name).await.unwrap(), 1);
    assert!(children(&server, LOCKS).await.is_empty());
}

#[tokio::test]
async fn the_line_of_one_that_died_is_swept() {
    let server = start().await;
    let lock = open(&server).await;
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    // Somebody uses it, so that another session is made.
    let _signals = lock.signals();
    expire(&server, lock.session_id().unwrap()).await;
    until("it is swept", LONG, async || {
        children(&server, LOCKS).await.is_empty()
    })
    .await;
}

/// However many begin: lines that are empty are looked for by one.
#[tokio::test]
async fn who_begins_leaves_the_sweeping_to_the_one_that_does_it() {
    let server = start().await;
    // What it begins with has been answered long before so many others are.
    let begins = async |client: u128| {
        let lock = open(&server).await;
        listens(&server, &lock).await;
        for n in 0..20 {
            let k = key("y", client, n);
            granted(&lock, &at_once(&k, X)).await;
            lock.release(&k, Release::Now).await.unwrap();
        }
        lock
    };
    let _sweeps = begins(1).await;
    assert!(children(&server, "/dlock").await.contains(&"sweeper".to_owned()));
    hands(&server, |s| {
        s.with_session(|s| s.create("/dlock/locks/empty", b""))
    })
    .await;
    let _second = begins(2).await;
    assert_eq!(children(&server, LOCKS).await, ["empty"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_takes_turns_and_leaves_nothing() {
    let server = start().await;
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut crowd = Vec::new();
    for _ in 0..4 {
        let (client, inside) = (client_of(open(&server).await), inside.clone());
        crowd.push(tokio::spawn(async move {
            for _ in 0..50 {
                let lock = client.lock("x").unwrap();
                let guard = tokio::time::timeout(LONG, lock.acquire()).await.unwrap().unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for one in crowd {
        one.await.unwrap();
    }
    assert!(children(&server, LOCKS).await.is_empty());
}

/// Stands before a server, and refuses containers as one does that never heard of them.
struct Refusing {
    address: SocketAddr,
}

const CREATE_CONTAINER: i32 = 19;
const UNIMPLEMENTED: i32 = -6;

impl Refusing {
    fn start(server: SocketAddr) -> io::Result<Self> {
        let address = lead(server, |client, server| {
            // The numbers of the requests that are refused.
            let refused = Arc::new(Mutex::new(HashSet::new()));
            let (to_server, to_client) = (refused.clone(), refused);
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                carry(client, server, |frame| {
                    if int(frame, 4) == Some(CREATE_CONTAINER) {
                        to_server.lock().unwrap().insert(int(frame, 0));
                        // A question in its place, so that the answers keep their order.
                        frame.truncate(4);
                        frame.extend_from_slice(&EXISTS.to_be_bytes());
                        frame.extend_from_slice(&1_i32.to_be_bytes());
                        frame.extend_from_slice(b"/\0");
                    }
                })
            });
            std::thread::spawn(move || {
                carry(back.0, back.1, |frame| {
                    if to_client.lock().unwrap().remove(&int(frame, 0)) {
                        frame.truncate(12);
                        frame.extend_from_slice(&UNIMPLEMENTED.to_be_bytes());
                    }
                })
            });
        })?;
        Ok(Self { address })
    }
}

#[tokio::test]
async fn a_server_that_refuses_containers_is_found_out() {
    let server = start().await;
    let refusing = Refusing::start(server.address()).unwrap();
    let address = refusing.address.to_string();
    let lock = builder().open(&address, here()).await.unwrap();
    let k = key("x", 1, 1);
    granted(&lock, &at_once(&k, X)).await;
    assert!(is_plain(&server).await);
    lock.release(&k, Release::Now).await.unwrap();
    assert!(children(&server, LOCKS).await.is_empty());
    // Several find it out at once.
    let other = builder().open(&address, here()).await.unwrap();
    let keys = [key("y", 2, 1), key("z", 2, 2), key("w", 2, 3)];
    futures::future::join_all(keys.iter().map(async |k| granted(&other, &at_once(k, X)).await)).await;
    for k in &keys {
        other.release(k, Release::Now).await.unwrap();
    }
    assert!(children(&server, LOCKS).await.is_empty());
}
