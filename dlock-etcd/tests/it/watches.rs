//! What a watcher is told, and when it is told that something was skipped.

use std::sync::Arc;

use dlock_core::spi::{Lock as _, Release, RwLock as _};
use dlock_core::{Change, ErrorKind, Mode, Result};
use dlock_etcd::EtcdLock;
use dlock_testkit::{EtcdServer, Proxy};
use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::{
    LONG, X, at_once, brief, etcdctl, granted, hands, key, open, open_at, queued, revoke, start, turn, waits,
};

const R: Mode = Mode::READER;

type Changes = BoxStream<'static, Result<Change>>;

async fn watch(lock: &EtcdLock, name: &str) -> Changes {
    lock.watch().unwrap().watch(&key(name, 1, 1).name).await.unwrap()
}

async fn next(changes: &mut Changes) -> Change {
    let told = tokio::time::timeout(LONG, changes.next()).await;
    told.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn each_change_is_told_in_the_order_of_the_grants() {
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let (a, b, c) = (key("x", 1, 1), key("x", 1, 2), key("x", 1, 3));
    let mut changes = watch(&watcher, "x").await;
    let Change::Snapshot { now, skipped: false } = next(&mut changes).await else {
        panic!("the state");
    };
    assert_eq!((now.holders.len(), now.waiting), (0, 0));
    let held = granted(&lock, &at_once(&a, X).with_owner("a's".into())).await;
    let Change::Granted(seen) = next(&mut changes).await else {
        panic!("a grant");
    };
    assert_eq!((seen.id, seen.token), (a.id, held.token));
    assert_eq!(seen.owner.as_deref(), Some("a's"));
    assert!(
        seen.whereabouts
            .unwrap()
            .contains(&format!("pid={}", std::process::id()))
    );
    let mut reader = waits(&lock, &queued(&b, R)).await;
    lock.convert(&a, R).await.unwrap();
    turn(&mut reader).await;
    for id in [a.id, b.id] {
        let Change::Granted(seen) = next(&mut changes).await else {
            panic!("a reader");
        };
        assert_eq!((seen.id, seen.mode), (id, R));
    }
    for key in [&a, &b] {
        lock.release(key, Release::Now).await.unwrap();
        assert_eq!(next(&mut changes).await, Change::Released { id: key.id });
    }
    granted(&lock, &at_once(&c, X)).await;
    assert!(matches!(next(&mut changes).await, Change::Granted(seen) if seen.id == c.id));
}

#[tokio::test]
async fn what_was_released_expired_and_forced_is_told_apart() {
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let dies = brief(&server).await;
    let mut changes = watch(&watcher, "x").await;
    next(&mut changes).await;
    let (a, b, c, d) = (key("x", 1, 1), key("x", 2, 1), key("x", 1, 2), key("x", 2, 2));
    // It waits behind each of them, and so its grant comes in the same revision as their end.
    granted(&lock, &queued(&a, X)).await;
    let mut second = waits(&dies, &queued(&b, X)).await;
    let mut third = waits(&lock, &queued(&c, X)).await;
    lock.release(&a, Release::Now).await.unwrap();
    turn(&mut second).await;
    revoke(&server, dies.lease_id().unwrap()).await;
    turn(&mut third).await;
    assert_eq!(watcher.watch().unwrap().force_release(&a.name).await.unwrap(), 1);
    // And of one that nobody watches over any more.
    crate::granted_in_the_end(&dies, &at_once(&d, X)).await;
    drop(dies);
    let mut told = Vec::new();
    for _ in 0..8 {
        told.push(match next(&mut changes).await {
            Change::Granted(holder) => ("granted", holder.id),
            Change::Released { id } => ("released", id),
            Change::Expired { id } => ("expired", id),
            Change::Forced { id } => ("forced", id),
            other => panic!("{other:?}"),
        });
    }
    let expected = [
        ("granted", a.id),
        ("released", a.id),
        ("granted", b.id),
        ("expired", b.id),
        ("granted", c.id),
        ("forced", c.id),
        ("granted", d.id),
        ("expired", d.id),
    ];
    assert_eq!(told, expected);
}

/// A watcher that is away meanwhile. What happens then, and what the store does not remember of it.
async fn while_it_is_away(server: &Arc<EtcdServer>, compacts: bool) -> (Changes, EtcdLock, Proxy) {
    let proxy = Proxy::start(server.address()).unwrap();
    let (lock, watcher) = (open(server).await, open_at(proxy.address()).await);
    let mut changes = watch(&watcher, "x").await;
    next(&mut changes).await;
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
    assert!(matches!(next(&mut changes).await, Change::Granted(_)));
    proxy.bar(|_| true);
    lock.release(&key("x", 1, 1), Release::Now).await.unwrap();
    granted(&lock, &at_once(&key("x", 1, 2), X)).await;
    lock.release(&key("x", 1, 2), Release::Now).await.unwrap();
    let grant = granted(&lock, &at_once(&key("x", 1, 3), X)).await;
    if compacts {
        let revision = grant.token.unwrap().to_string();
        etcdctl(server, &["compaction", &revision]).await;
    }
    proxy.bar(|_| false);
    (changes, lock, proxy)
}

#[tokio::test]
async fn what_happened_while_the_connection_was_broken_is_told() {
    let server = start().await;
    let (mut changes, _lock, _proxy) = while_it_is_away(&server, false).await;
    let id = |n| key("x", 1, n).id;
    assert_eq!(next(&mut changes).await, Change::Released { id: id(1) });
    assert!(matches!(next(&mut changes).await, Change::Granted(h) if h.id == id(2)));
    assert_eq!(next(&mut changes).await, Change::Released { id: id(2) });
    assert!(matches!(next(&mut changes).await, Change::Granted(h) if h.id == id(3)));
}

#[tokio::test]
async fn where_the_store_has_forgotten_it_says_so_and_goes_on() {
    let server = start().await;
    let (mut changes, lock, _proxy) = while_it_is_away(&server, true).await;
    let k = key("x", 1, 3);
    let Change::Snapshot { now, skipped: true } = next(&mut changes).await else {
        panic!("the state");
    };
    assert_eq!(now.holders[0].id, k.id);
    lock.release(&k, Release::Now).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Released { id: k.id });
}

/// Compaction under a watch and a waiter that stand still takes nothing from them.
#[tokio::test]
async fn a_waiter_is_woken_across_a_compaction() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let grant = granted(&a, &queued(&key("x", 1, 1), X)).await;
    let mut wait = waits(&b, &queued(&key("x", 2, 1), X)).await;
    for n in 0..20 {
        etcdctl(&server, &["put", "other", &n.to_string()]).await;
    }
    let revision = (grant.token.unwrap().get() + 10).to_string();
    etcdctl(&server, &["compaction", &revision]).await;
    a.release(&key("x", 1, 1), Release::Now).await.unwrap();
    turn(&mut wait).await;
}

/// The data are put back from a snapshot, and the store counts from there: what the watcher has seen is in
/// its future.
#[tokio::test]
async fn a_watcher_goes_on_after_the_store_was_put_back() {
    let server = start().await;
    let snapshot = hands(&server, |s| s.snapshot()).await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let mut changes = watch(&watcher, "x").await;
    next(&mut changes).await;
    for n in 0..50 {
        let k = key("x", 1, n);
        granted(&lock, &at_once(&k, X)).await;
        lock.release(&k, Release::Now).await.unwrap();
        next(&mut changes).await;
        next(&mut changes).await;
    }
    hands(&server, move |s| s.restore(&snapshot)).await;
    let k = key("x", 1, 100);
    crate::granted_in_the_end(&lock, &at_once(&k, X)).await;
    let mut is_held = false;
    while !is_held {
        is_held = match next(&mut changes).await {
            Change::Granted(holder) => holder.id == k.id,
            Change::Snapshot { now, .. } => now.holders.iter().any(|h| h.id == k.id),
            _ => false,
        };
    }
    lock.release(&k, Release::Now).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Released { id: k.id });
}

/// Nobody takes what it is told. Later there are some changes, then that others were skipped, and the latest
/// state.
#[tokio::test]
async fn a_slow_consumer_costs_a_bounded_backlog() {
    const CYCLES: u64 = 300;
    const BACKLOG: u64 = 70;
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let (mut slow, mut quick) = (watch(&watcher, "x").await, watch(&watcher, "x").await);
    let last = key("x", 1, CYCLES);
    let is_last = |change: &Change| match change {
        Change::Granted(holder) => holder.id == last.id,
        Change::Snapshot { now, .. } => now.holders.iter().any(|h| h.id == last.id),
        _ => false,
    };
    let cycles = async {
        for n in 0..CYCLES {
            let k = key("x", 1, n);
            granted(&lock, &at_once(&k, X)).await;
            lock.release(&k, Release::Now).await.unwrap();
        }
        granted(&lock, &at_once(&last, X)).await;
    };
    let watching = async {
        let mut told = 1;
        while !is_last(&next(&mut quick).await) {
            told += 1;
        }
        told
    };
    let ((), told) = futures::join!(cycles, watching);
    assert!(told > BACKLOG, "{told} changes were told to who takes them");
    let (mut told, mut skipped) = (0, false);
    loop {
        let change = next(&mut slow).await;
        skipped |= matches!(change, Change::Snapshot { skipped: true, .. });
        if is_last(&change) {
            break;
        }
        told += 1;
    }
    assert!(skipped && told <= BACKLOG, "{told} changes were kept");
    lock.release(&last, Release::Now).await.unwrap();
    assert_eq!(next(&mut slow).await, Change::Released { id: last.id });
}

/// It has skipped something, and takes what it is told only after the store has forgotten that.
#[tokio::test]
async fn a_slow_consumer_goes_on_after_a_compaction() {
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let mut changes = watch(&watcher, "x").await;
    let last = key("x", 1, 100);
    for n in 0..100 {
        let k = key("x", 1, n);
        granted(&lock, &at_once(&k, X)).await;
        lock.release(&k, Release::Now).await.unwrap();
    }
    granted(&lock, &at_once(&last, X)).await;
    let other = granted(&lock, &at_once(&key("y", 1, 101), X)).await;
    etcdctl(&server, &["compaction", &other.token.unwrap().to_string()]).await;
    let is_last = |change: &Change| match change {
        Change::Snapshot { now, .. } => now.holders.iter().any(|h| h.id == last.id),
        Change::Granted(holder) => holder.id == last.id,
        _ => false,
    };
    while !is_last(&next(&mut changes).await) {}
    lock.release(&last, Release::Now).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Released { id: last.id });
}

/// Its member tells all at once what happened in a long time.
#[tokio::test]
async fn what_comes_too_fast_is_skipped() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let (lock, watcher) = (open(&server).await, open_at(proxy.address()).await);
    let mut changes = watch(&watcher, "x").await;
    next(&mut changes).await;
    proxy.bar(|_| true);
    for n in 0..100 {
        let k = key("x", 1, n);
        granted(&lock, &at_once(&k, X)).await;
        lock.release(&k, Release::Now).await.unwrap();
    }
    let last = key("x", 1, 100);
    granted(&lock, &at_once(&last, X)).await;
    proxy.bar(|_| false);
    let Change::Snapshot { now, skipped: true } = next(&mut changes).await else {
        panic!("the state");
    };
    assert_eq!(now.holders[0].id, last.id);
    lock.release(&last, Release::Now).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Released { id: last.id });
}

#[tokio::test]
async fn a_watcher_whose_backend_is_closed_is_told() {
    let server = start().await;
    let watcher = open(&server).await;
    let mut changes = watch(&watcher, "x").await;
    next(&mut changes).await;
    watcher.close().await.unwrap();
    let told = tokio::time::timeout(LONG, changes.next()).await.unwrap();
    let e = told.expect("it is told").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    assert!(changes.next().await.is_none());
}
