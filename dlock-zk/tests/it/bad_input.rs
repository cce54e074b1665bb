//! What is wrong is said before anything is sent, and without a secret.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::ErrorKind::{self, InvalidInput};
use dlock_core::spi::{Acquire, Lock as _, Release, Watch};
use dlock_core::{Access, Capability, Mode, Token};
use dlock_zk::{Config, Layout};

use crate::{LONG, at_once, config, here, key, open, start};

fn refused(config: &Config) -> ErrorKind {
    let e = config.check().unwrap_err();
    assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    e.kind()
}

#[test]
fn options_are_checked_before_a_connection_is_made() {
    let s = Duration::from_secs;
    let good = || config().servers("h1,h2:2182/path").login("app", "hunter2");
    good().check().unwrap();
    for wrong in [
        good().session_timeout(Duration::ZERO),
        good().session_timeout(s(1 << 20)),
        good().timeout(Duration::ZERO),
        good().timeout(s(1 << 20)),
        good().root("dlock"),
        good().root("/a//b"),
        good().root("/a/../b"),
        good().root("/zookeeper/config"),
        good().access(dlock_zk::Access::List("hunter2".to_owned())),
        good().layout(Layout::Curator).unfair(),
        good().login("", "hunter2"),
    ] {
        assert_eq!(refused(&wrong), InvalidInput, "{wrong:?}");
    }
    for servers in [
        "",
        "http://h",
        "h:0",
        "h:x",
        "hunter2@h",
        "u:hunter2@h",
        "h/a//b",
        "h?x",
        "h?x=y",
    ] {
        assert_eq!(refused(&config().servers(servers)), InvalidInput, "{servers}");
    }
}

#[test]
fn a_config_shows_no_password() {
    let shown = format!("{:?}", Config::new("h").login("app", "hunter2"));
    assert!(shown.contains("app") && !shown.contains("hunter2"), "{shown}");
}

/// As it does where it takes a while to refuse a certificate: each server is named several times to the
/// driver, and all of that is one try.
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
    let e = config().servers(&address).connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    // As often as it is named.
    assert_eq!(asked.load(Ordering::SeqCst), 16, "{e}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_time() {
    let from = std::time::Instant::now();
    let opened = config()
        .timeout(Duration::from_secs(1))
        .servers("127.0.0.1:9")
        .connect(here())
        .await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(from.elapsed() < Duration::from_secs(5));
}

/// A server behind a connection that falls silent after that many answers.
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
    let opened = config()
        .timeout(Duration::from_secs(1))
        .session_timeout(Duration::from_secs(30))
        .servers(&address)
        .connect(here())
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
    let day = Duration::from_secs(24 * 60 * 60);
    assert_eq!(
        (fair.max_ttl, fair.ttl_granularity),
        (day, Duration::from_millis(1))
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
    let long = &long.key.name;
    assert_eq!(lock.inspect(long).await.unwrap_err().kind(), InvalidInput);
    assert_eq!(lock.force_release(long).await.unwrap_err().kind(), InvalidInput);
    assert_eq!(
        Watch::watch(&lock, long).await.err().unwrap().kind(),
        InvalidInput
    );
    let gate = lock.fencing().unwrap().gate().unwrap();
    let token = Token::new(1).unwrap();
    let admitted = gate.admit(long, token, Access::Exclusive).await;
    assert_eq!(admitted.unwrap_err().kind(), InvalidInput);
    assert_eq!(gate.read(long).await.unwrap_err().kind(), InvalidInput);
    let value = vec![0; 1_000_001];
    let written = gate.write(&k.name, token, &value).await;
    assert_eq!(written.unwrap_err().kind(), InvalidInput);
    assert!(
        gate.write(&k.name, token, &value[1..])
            .await
            .unwrap()
            .is_admitted()
    );
    let kept = lock.release(&k, Release::KeepFor(LONG)).await;
    assert_eq!(kept.unwrap_err().kind(), ErrorKind::Unsupported);
    let address = server.address().to_string();
    for only_exclusive in [config().unfair(), config().layout(Layout::Curator).root("/c")] {
        let lock = only_exclusive.servers(&address).connect(here()).await.unwrap();
        assert!(!lock.capabilities().has(Capability::Shared));
        let e = lock.attempt(&at_once(&k, Mode::READER)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    }
    let nodes = crate::hands(&server, |s| s.with_session(|s| s.all("/dlock/locks"))).await;
    assert!(nodes.is_empty(), "{nodes:?}");
}
