//! What is wrong is said before anything is sent, and without a secret.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::ErrorKind::{self, InvalidInput};
use dlock_core::spi::{Acquire, Lock as _, Release};
use dlock_core::{Capability, Mode};
use dlock_zk::{Access, Builder, Layout, ZkLock};

use crate::{LONG, at_once, builder, here, key, open, start};

fn refused(builder: &Builder, address: &str) -> ErrorKind {
    let e = builder.check_address(address).unwrap_err();
    assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    e.kind()
}

#[test]
fn options_are_checked_before_a_connection_is_made() {
    let s = Duration::from_secs;
    let good = "zk://app:hunter2@h1,h2:2182/path";
    builder().check_address(good).unwrap();
    for wrong in [
        builder().session_timeout(Duration::ZERO),
        builder().session_timeout(s(1 << 20)),
        builder().timeout(Duration::ZERO),
        builder().timeout(s(1 << 20)),
        builder().root("dlock"),
        builder().root("/a//b"),
        builder().root("/a/../b"),
        builder().root("/zookeeper/config"),
        builder().access(Access::List("hunter2".to_owned())),
        builder().layout(Layout::Curator).unfair(),
    ] {
        assert_eq!(refused(&wrong, good), InvalidInput, "{wrong:?}");
    }
    for address in [
        "",
        "zk://",
        "http://h",
        "h:0",
        "h:x",
        "zk://hunter2@h",
        "h/a//b",
        "h?x",
    ] {
        assert_eq!(refused(&builder(), address), InvalidInput, "{address}");
    }
}

#[test]
fn a_builder_shows_no_password() {
    let shown = format!("{:?}", ZkLock::builder().login("app", "hunter2"));
    assert!(shown.contains("app") && !shown.contains("hunter2"), "{shown}");
}

/// As it does where it takes a while to refuse a certificate: each server is named several times to the driver, and all of that is one try.
#[tokio::test]
async fn a_server_that_refuses_slowly_is_asked_for_one_try_only() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(30));
            drop(connection);
        }
    });
    let e = builder().open(&address, here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    // As often as it is named.
    assert_eq!(asked.load(Ordering::SeqCst), 16, "{e}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_time() {
    let from = std::time::Instant::now();
    let opened = builder()
        .timeout(Duration::from_secs(1))
        .open("127.0.0.1:9", here())
        .await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(from.elapsed() < Duration::from_secs(5));
}

/// A server behind a connection that falls silent when the server has spoken so many times.
fn falls_silent(server: SocketAddr, after: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let (mut from, mut answers) = (client.try_clone().unwrap(), TcpStream::connect(server).unwrap());
            let mut to = answers.try_clone().unwrap();
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            std::thread::spawn(move || -> std::io::Result<()> {
                for _ in 0..after {
                    let mut length = [0; 4];
                    answers.read_exact(&mut length)?;
                    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
                    answers.read_exact(&mut answer)?;
                    client.write_all(&[&length[..], &answer].concat())?;
                }
                std::io::copy(&mut answers, &mut std::io::sink()).map(drop)
            });
        }
    });
    address
}

/// It begins a session, answers a ping, and then nothing: that is no client either.
#[tokio::test]
async fn a_server_that_falls_silent_is_told_in_time() {
    let server = start().await;
    let address = falls_silent(server.address(), 2).to_string();
    let from = std::time::Instant::now();
    let opened = builder()
        .timeout(Duration::from_secs(1))
        .session_timeout(Duration::from_secs(30))
        .open(&address, here())
        .await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
}

#[tokio::test]
async fn what_is_not_claimed_is_refused_and_leaves_nothing() {
    let server = start().await;
    let lock = open(&server).await;
    let fair = lock.capabilities();
    assert!(
        !fair.has(Capability::Priority) && !fair.has(Capability::Upgrade) && !fair.has(Capability::Raise)
    );
    let k = key("x", 1, 1);
    let too_short = Acquire::new(k.clone(), fair.min_ttl / 2);
    assert_eq!(lock.attempt(&too_short).await.unwrap_err().kind(), InvalidInput);
    let first = at_once(&k, Mode::Exclusive).with_priority(10);
    assert_eq!(
        lock.attempt(&first).await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    let long = at_once(&key(&"n".repeat(1025), 1, 1), Mode::Exclusive);
    assert_eq!(lock.attempt(&long).await.unwrap_err().kind(), InvalidInput);
    let kept = lock.release(&k, Release::KeepFor(LONG)).await;
    assert_eq!(kept.unwrap_err().kind(), ErrorKind::Unsupported);
    let address = server.address().to_string();
    for only_exclusive in [builder().unfair(), builder().layout(Layout::Curator).root("/c")] {
        let lock = only_exclusive.open(&address, here()).await.unwrap();
        assert!(!lock.capabilities().has(Capability::Shared));
        let e = lock.attempt(&at_once(&k, Mode::READER)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
    let nodes = crate::hands(&server, |s| s.with_session(|s| s.all("/dlock/locks"))).await;
    assert!(nodes.is_empty(), "{nodes:?}");
}
