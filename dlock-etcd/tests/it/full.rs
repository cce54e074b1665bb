//! A server out of space takes no entries, and releases those that it has.

use std::io;
use std::sync::Arc;

use dlock_core::spi::{Lock as _, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{ErrorKind, FenceGate};
use dlock_testkit::{EtcdOptions, EtcdServer};

use crate::{LONG, X, at_once, client_of, granted, hands, key, line, open, queued, turn, waits, with};

fn fill(server: &EtcdServer) -> io::Result<()> {
    let large = "x".repeat(64 << 10);
    for _ in 0..100 {
        if server.etcdctl(&["put", "large", &large]).is_err() {
            return Ok(());
        }
    }
    Err(io::Error::other("it is never full"))
}

/// What an operator does about it.
fn clear(server: &EtcdServer) -> io::Result<()> {
    server.etcdctl(&["put", "small", "x"]).unwrap_err();
    let status = server.etcdctl(&["get", "large", "--write-out=fields", "--keys-only"])?;
    let revision = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "));
    server.etcdctl(&["compaction", revision.unwrap()])?;
    server.etcdctl(&["defrag"])?;
    server.etcdctl(&["alarm", "disarm"])?;
    Ok(())
}

async fn full() -> Arc<EtcdServer> {
    with(EtcdOptions::new().quota(512 << 10)).await
}

#[tokio::test]
async fn a_full_store_grants_nothing_and_takes_releases() {
    let server = full().await;
    let lock = open(&server).await;
    let (held, waits_for) = (key("x", 1, 1), key("x", 1, 2));
    granted(&lock, &queued(&held, X)).await;
    let mut wait = waits(&lock, &queued(&waits_for, X)).await;
    hands(&server, fill).await;
    for request in [at_once(&key("y", 1, 3), X), queued(&key("y", 1, 4), X)] {
        let e = lock.attempt(&request).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitReached, "{e}");
        assert!(e.to_string().contains("disarm"), "{e}");
    }
    let renewed = lock
        .renew()
        .unwrap()
        .renew(&[RenewItem::lease(held.clone(), LONG)])
        .await;
    assert!(matches!(renewed[..], [RenewOutcome::Renewed(_)]), "{renewed:?}");
    let first = lock.release(&held, Release::Now).await.unwrap();
    assert_eq!(first, Released::Released);
    turn(&mut wait).await;
    let second = lock.release(&waits_for, Release::Now).await.unwrap();
    assert_eq!(second, Released::Released);
    assert!(line(&server).await.is_empty());
    // Nothing was made of what was refused, and so there is nothing to give up.
    for n in [3, 4] {
        lock.abandon(&[key("y", 1, n)]).await.remove(0).unwrap();
    }
}

/// The write that exceeds the quota is carried out before it is refused, and looks like all after it.
#[tokio::test]
async fn a_write_through_the_gate_may_have_been_carried_out() {
    let server = full().await;
    let lock = open(&server).await;
    let resource = key("report", 1, 1).name;
    let write = async |token, value: &[u8]| {
        let token = dlock_core::Token::new(token).unwrap();
        FenceGate::write(&lock, &resource, token, value).await
    };
    assert!(write(1, b"a").await.unwrap().is_admitted());
    hands(&server, fill).await;
    let e = write(2, b"b").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
}

/// The store takes deletions alone, and not the key that says who ended it.
#[tokio::test]
async fn an_operator_ends_a_holder() {
    let server = full().await;
    let (lock, other) = (open(&server).await, open(&server).await);
    let (held, waits_for) = (key("x", 1, 1), key("x", 1, 2));
    granted(&lock, &queued(&held, X)).await;
    let mut wait = waits(&lock, &queued(&waits_for, X)).await;
    hands(&server, fill).await;
    let ended = other.watch().unwrap().force_release(&held.name).await;
    assert_eq!(ended.unwrap(), 1);
    turn(&mut wait).await;
    let late = lock.release(&held, Release::Now).await.unwrap();
    assert_eq!(late, Released::NotHeld);
}

/// Many requests come at the moment when the space runs out. The refused ones leave nothing, though the store
/// may have carried out one of them.
#[tokio::test]
async fn nothing_is_left_of_what_crosses_the_quota() {
    const MANY: u64 = 400;
    let server = full().await;
    let lock = open(&server).await;
    let mut refused = 0;
    for round in 0..20 {
        let asking = (0..MANY).map(|n| {
            let mut request = queued(&key(&format!("{round} {n}"), 1, round * MANY + n), X);
            request.owner = Some("x".repeat(1024).into());
            let lock = lock.clone();
            async move { lock.attempt(&request).await }
        });
        let answers = futures::future::join_all(asking).await;
        for answer in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(answer.kind(), ErrorKind::LimitReached, "{answer}");
            refused += 1;
        }
        let granted = (round + 1) * MANY - refused;
        let there = crate::keys(&server, "dlock/").await.len() as u64;
        assert_eq!(there, granted, "{refused} were refused");
        if refused > 0 {
            return;
        }
    }
    panic!("it is never full");
}

#[tokio::test]
async fn a_client_goes_on_when_there_is_space_again() {
    let server = full().await;
    let lock = open(&server).await;
    let (lease, client) = (lock.lease_id(), client_of(lock.clone()));
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    hands(&server, fill).await;
    let e = client.lock("y").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LimitReached, "{e}");
    hands(&server, clear).await;
    client.lock("y").unwrap().acquire().await.unwrap();
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert_eq!(lock.lease_id(), lease);
}
