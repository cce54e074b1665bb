//! What is wrong is said before anything is sent, and without a secret.

use std::time::{Duration, Instant};

use dlock_core::ErrorKind::{self, InvalidInput, Unsupported};
use dlock_core::spi::{Acquire, Attempt, Lock as _, Release, RwLock as _};
use dlock_core::{Capability, LockName, Mode};
use dlock_etcd::Config;

use crate::{
    LONG, X, at_once, config, etcdctl, granted, here, key, keys, open, open_at, queued, start, waits,
};

fn refused(config: dlock_core::Result<Config>) -> ErrorKind {
    let e = config.and_then(|c| c.check()).unwrap_err();
    assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    e.kind()
}

#[test]
fn options_are_checked_before_a_connection_is_made() {
    let (s, ms) = (Duration::from_secs, Duration::from_millis);
    let good = || Config::new("h1,h2:2382,[::1]:1").login("app", "hunter2");
    good().check().unwrap();
    for wrong in [
        good().session_timeout(Duration::ZERO),
        good().session_timeout(ms(999)),
        good().session_timeout(ms(1500)),
        good().session_timeout(s(3601)),
        good().timeout(Duration::ZERO),
        good().timeout(s(3601)),
        good().prefix("a\0b"),
        good().prefix(&"p".repeat(513)),
        good().prefix("dlock!"),
        good().login("", "hunter2"),
    ] {
        assert_eq!(refused(Ok(wrong.clone())), InvalidInput, "{wrong:?}");
    }
    for members in [
        "",
        "http://h",
        "h:0",
        "h:x",
        "u:hunter2@h",
        "h/prefix",
        "h?x=y",
        "h,,g",
    ] {
        let config = Config::new(members).login("app", "hunter2");
        assert_eq!(refused(Ok(config)), InvalidInput, "{members}");
    }
}

#[test]
fn urls_are_checked_before_a_connection_is_made() {
    for good in [
        "etcd://h",
        "etcd://app:hunter2@h1,h2:2380/a/b?session_timeout=5s&timeout=1s",
        "etcd://h/",
    ] {
        drop(Config::from_url(good).unwrap());
    }
    for wrong in [
        "etcd://",
        "http://h",
        "etcd://app@h",
        "etcd://app:hunter2@h:x",
        "etcd://app:hunter2@h?session_timeout=hunter2",
        "etcd://app:hunter2@h?session_timeout=5ms",
        "etcd://app:hunter2@h?unknown=1",
        "etcd://:hunter2@h",
        "etcd://h/%00",
    ] {
        assert_eq!(refused(Config::from_url(wrong)), InvalidInput, "{wrong}");
    }
    let e = Config::from_url("etcd:h").unwrap_err().to_string();
    assert!(e.contains("`etcd://host:port`"), "{e}");
    let about_tls = [
        "etcd://h?ca=/etc/hostname",
        "etcds://h?cert=/etc/hostname",
        "etcds://h?ca=/no/such",
    ];
    for wrong in about_tls {
        let kind = refused(Config::from_url(wrong));
        assert!(matches!(kind, InvalidInput | Unsupported), "{wrong}: {kind:?}");
    }
    #[cfg(feature = "tls")]
    for wrong in ["ca=/etc/hostname", "cert=/etc/hostname&key=/etc/hostname"] {
        let e = Config::from_url(&format!("etcds://h?{wrong}")).unwrap_err();
        assert_eq!(e.kind(), InvalidInput, "{e}");
        assert!(e.to_string().contains("/etc/hostname"), "{e}");
    }
}

#[test]
fn a_config_shows_no_password() {
    let shown = format!("{:?}", Config::new("h").login("app", "hunter2"));
    assert!(shown.contains('h') && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for address in ["127.0.0.1:9".to_owned(), silent.local_addr().unwrap().to_string()] {
        let from = Instant::now();
        let config = Config::new(&address).timeout(Duration::from_secs(1));
        let e = config.connect(here()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains(&address), "{e}");
        assert!(from.elapsed() < LONG / 4, "{:?}", from.elapsed());
    }
}

#[tokio::test]
async fn an_address_for_peers_is_reported() {
    let server = start().await;
    let members = etcdctl(&server, &["member", "list"]).await;
    let peers = members.split("http://").nth(1).unwrap().split(',').next();
    let lock = open_at(peers.unwrap().parse().unwrap()).await;
    let findings = lock.diagnose().await.unwrap();
    let right = server.address().to_string();
    assert!(findings.iter().any(|f| f.text.contains(&right)), "{findings:?}");
}

#[tokio::test]
async fn what_is_not_claimed_is_refused_and_leaves_nothing() {
    let server = start().await;
    let lock = open(&server).await;
    let claims = lock.capabilities();
    for not in [Capability::Priority, Capability::Upgrade, Capability::MinimumHold] {
        assert!(!claims.has(not), "{not:?}");
    }
    let k = key("x", 1, 1);
    for (request, kind) in [
        (Acquire::new(k.clone(), claims.min_ttl / 2), InvalidInput),
        (at_once(&k, X).with_owner("o".repeat(1025).into()), InvalidInput),
        (at_once(&key(&"n".repeat(1025), 1, 1), X), InvalidInput),
        (at_once(&k, X).with_priority(10), Unsupported),
    ] {
        let e = lock.attempt(&request).await.unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
    }
    let kept = lock.release(&k, Release::KeepFor(LONG)).await;
    assert_eq!(kept.unwrap_err().kind(), Unsupported);
    let reader = key("x", 1, 2);
    granted(&lock, &at_once(&reader, Mode::READER)).await;
    assert_eq!(lock.convert(&reader, X).await.unwrap_err().kind(), Unsupported);
    assert_eq!(keys(&server, "dlock/").await.len(), 1, "the reader's");
}

/// It would be in the way for ever.
#[tokio::test]
async fn a_foreign_key_without_a_lease_is_named() {
    let server = start().await;
    let lock = open(&server).await;
    etcdctl(&server, &["put", "dlock/x/foreign", "1"]).await;
    for request in [at_once(&key("x", 1, 1), X), queued(&key("x", 1, 2), X)] {
        let e = lock.attempt(&request).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
        assert!(e.to_string().contains("`dlock/x/foreign`"), "{e}");
    }
    let name = key("x", 1, 1).name;
    let e = lock.watch().unwrap().inspect(&name).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
    assert_eq!(keys(&server, "dlock/x/").await.len(), 1, "that one alone");
    granted(&lock, &at_once(&key("y", 1, 3), X)).await;
    etcdctl(&server, &["del", "dlock/x/foreign"]).await;
    granted(&lock, &at_once(&key("x", 1, 4), X)).await;
}

/// Each has a line of its own, is found in the list, and lies below nobody else's.
#[tokio::test]
async fn any_name_is_a_name() {
    let server = start().await;
    let lock = open(&server).await;
    let long = "n".repeat(1024);
    let names: Vec<&[u8]> = vec![
        b"a",
        b"a/b",
        b"/",
        b"a/",
        b"!",
        b"a!",
        b"!/fence/a",
        b"\0",
        b"a\0b",
        b"\xff\xfe",
        b"..",
        b"%2F",
        "\u{fc}".as_bytes(),
        long.as_bytes(),
    ];
    let key = |n: usize, id| {
        let name = LockName::new(names[n]).unwrap();
        dlock_core::spi::LeaseKey::new(name, dlock_core::RequestId::new(1, id))
    };
    for n in 0..names.len() {
        granted(&lock, &queued(&key(n, n as u64), X)).await;
    }
    assert_eq!(keys(&server, "dlock/").await.len(), names.len());
    for n in 0..names.len() {
        drop(waits(&lock, &queued(&key(n, 100 + n as u64), X)).await);
        let other = lock.attempt(&at_once(&key(n, 200 + n as u64), X)).await.unwrap();
        assert!(matches!(other, Attempt::Held(_)), "{other:?}");
    }
    etcdctl(&server, &["put", "dlock/no-lock", "x"]).await;
    let mut listed = lock.watch().unwrap().list(b"", None).await.unwrap().names;
    let mut all: Vec<_> = names.iter().map(|n| LockName::new(n).unwrap()).collect();
    listed.sort();
    all.sort();
    assert_eq!(listed, all);
    for n in 0..names.len() {
        lock.release(&key(n, n as u64), Release::Now).await.unwrap();
    }
    assert_eq!(keys(&server, "dlock/").await.len(), names.len() + 1);
}

#[tokio::test]
async fn locks_without_a_prefix_are_listed() {
    let server = start().await;
    let lock = config(server.address()).prefix("").connect(here()).await.unwrap();
    granted(&lock, &queued(&key("x", 1, 1), X)).await;
    let listed = lock.watch().unwrap().list(b"", None).await.unwrap();
    assert_eq!(listed.names, [key("x", 1, 1).name]);
}
