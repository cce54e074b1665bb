//! What a watcher is told, and when it is told that something was skipped.

use std::time::Duration;

use dlock_core::Change;
use dlock_core::spi::{Lock as _, Release, RwLock as _};
use dlock_core::{LockName, Mode, Result};
use dlock_testkit::ZkOptions;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::frames::{CHILDREN, Fails};
use crate::{LONG, at_once, config, granted, here, key, open, queued, start, turn, waits, with};

const X: Mode = Mode::Exclusive;
const R: Mode = Mode::READER;

type Changes = BoxStream<'static, Result<Change>>;

async fn next(changes: &mut Changes) -> Change {
    tokio::time::timeout(LONG, changes.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

fn is_empty(change: &Change) -> bool {
    matches!(change, Change::Snapshot { now, .. } if now.holders.is_empty() && now.waiting == 0)
}

#[tokio::test]
async fn each_change_is_told_in_the_order_of_the_grants() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let (a, b, c) = (key("x", 1, 1), key("x", 1, 2), key("x", 1, 3));
    // There is a line: one that is made anew says nothing of lines before it.
    granted(&lock, &at_once(&c, X)).await;
    lock.release(&c, Release::Now).await.unwrap();
    let mut changes = watcher.watch().unwrap().watch(&a.name).await.unwrap();
    assert!(is_empty(&next(&mut changes).await));
    let held = granted(&lock, &at_once(&a, X)).await;
    let Change::Granted(seen) = next(&mut changes).await else {
        panic!("a grant");
    };
    assert_eq!((seen.id, seen.token), (a.id, held.token));
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
    watcher.watch().unwrap().force_release(&c.name).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Forced { id: c.id });
}

#[tokio::test]
async fn the_end_of_a_session_is_told_as_an_expiry() {
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let a = key("x", 1, 1);
    granted(&lock, &at_once(&a, X)).await;
    let mut changes = watcher.watch().unwrap().watch(&a.name).await.unwrap();
    assert!(
        matches!(next(&mut changes).await, Change::Snapshot { now, skipped: false } if now.holders.len() == 1)
    );
    let session = lock.session_id().unwrap();
    crate::expire(&server, session).await;
    assert_eq!(next(&mut changes).await, Change::Expired { id: a.id });
}

/// Holds that are shorter than a look: what was missed is said, each end is that of a grant that was told,
/// and the latest state comes.
#[tokio::test]
async fn what_was_missed_is_said_and_the_latest_state_is_told() {
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let name = key("x", 1, 0).name;
    let mut changes = watcher.watch().unwrap().watch(&name).await.unwrap();
    next(&mut changes).await;
    for n in 0..200 {
        let k = key("x", 1, n);
        granted(&lock, &at_once(&k, X)).await;
        lock.release(&k, Release::Now).await.unwrap();
    }
    let last = key("x", 1, 200);
    granted(&lock, &at_once(&last, X)).await;
    let mut holder = None;
    while holder != Some(last.id) {
        match next(&mut changes).await {
            Change::Snapshot { now, skipped } => {
                assert!(skipped);
                holder = now.holders.first().map(|h| h.id);
            }
            Change::Granted(seen) => {
                assert_eq!(holder, None, "the end of the hold before was not told");
                holder = Some(seen.id);
            }
            Change::Released { id } => assert_eq!(holder.take(), Some(id)),
            other => panic!("{other:?}"),
        }
    }
}

/// An empty line that was used once more, removed, and made again: as many children as the new line has
/// counted, and yet a grant was missed.
#[tokio::test]
async fn a_line_that_was_removed_meanwhile_says_that_more_is_missing() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let a = key("x", 1, 1);
    granted(&lock, &at_once(&a, X)).await;
    let line = format!(
        "/dlock/locks/{}",
        crate::children(&server, "/dlock/locks").await[0]
    );
    let node = format!("{line}/{}", crate::children(&server, &line).await[0]);
    let mut changes = watcher.watch().unwrap().watch(&a.name).await.unwrap();
    next(&mut changes).await;
    lock.release(&a, Release::Now).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Released { id: a.id });
    // Blocks this thread, and the watcher with it.
    let meanwhile = server.with_session(|s| {
        s.create(&node, b"")?;
        s.delete(&node)?;
        s.delete(&line)?;
        s.create_container(&line)?;
        s.create(&node, b"")
    });
    meanwhile.unwrap();
    assert!(
        matches!(next(&mut changes).await, Change::Snapshot { now, skipped: true } if now.holders.len() == 1)
    );
}

#[tokio::test]
async fn a_watcher_outlives_its_session_and_the_line() {
    let server = start().await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let _uses = watcher.signals();
    let a = key("x", 1, 1);
    let mut changes = watcher.watch().unwrap().watch(&a.name).await.unwrap();
    next(&mut changes).await;
    let session = watcher.session_id().unwrap();
    crate::expire(&server, session).await;
    crate::until("there is another session", LONG, async || {
        watcher.session_id().is_some_and(|id| id != session)
    })
    .await;
    granted(&lock, &at_once(&a, X)).await;
    lock.release(&a, Release::Now).await.unwrap();
    crate::until("the line is removed", Duration::from_secs(20), async || {
        crate::children(&server, "/dlock/locks").await.is_empty()
    })
    .await;
    let b = key("x", 1, 2);
    granted(&lock, &at_once(&b, X)).await;
    loop {
        match next(&mut changes).await {
            Change::Granted(seen) if seen.id == b.id => break,
            Change::Snapshot { now, .. } if now.holders.iter().any(|h| h.id == b.id) => break,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_foreign_node_ends_a_watch_with_an_error() {
    let server = start().await;
    let lock = open(&server).await;
    let a = key("x", 1, 1);
    granted(&lock, &at_once(&a, X)).await;
    let mut changes = lock.watch().unwrap().watch(&a.name).await.unwrap();
    next(&mut changes).await;
    crate::hands(&server, |s| {
        s.with_session(|s| s.create("/dlock/locks/x/somebody-else", b""))
    })
    .await;
    let mut told = async || tokio::time::timeout(LONG, changes.next()).await.unwrap();
    let e = told().await.unwrap().unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::BackendData, "{e}");
    assert!(told().await.is_none());
}

/// A line that comes and goes before the watcher looks: its watch has told that something was there.
#[tokio::test]
async fn a_line_that_came_and_went_is_told_as_skipped() {
    let server = start().await;
    let watcher = open(&server).await;
    let name = key("x", 1, 1).name;
    // It makes what is above the line.
    granted(&watcher, &at_once(&key("y", 1, 1), X)).await;
    let mut changes = watcher.watch().unwrap().watch(&name).await.unwrap();
    assert!(is_empty(&next(&mut changes).await));
    let path = "/dlock/locks/x".to_owned();
    crate::until("it watches", LONG, async || {
        crate::watched_by(&server, &watcher).await.contains(&path)
    })
    .await;
    // Blocks this thread, and the watcher with it.
    let meanwhile = server.with_session(|s| Ok(s.create_container(&path)? && s.delete(&path)?));
    assert!(meanwhile.unwrap());
    assert!(matches!(
        next(&mut changes).await,
        Change::Snapshot { skipped: true, .. }
    ));
}

#[tokio::test]
async fn the_end_of_a_line_is_told_as_skipped() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let a = key("x", 1, 1);
    granted(&lock, &at_once(&a, X)).await;
    let mut changes = watcher.watch().unwrap().watch(&a.name).await.unwrap();
    next(&mut changes).await;
    lock.release(&a, Release::Now).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Released { id: a.id });
    let deleted = crate::hands(&server, |s| s.with_session(|s| s.delete("/dlock/locks/x")));
    assert!(deleted.await);
    assert!(matches!(
        next(&mut changes).await,
        Change::Snapshot { skipped: true, .. }
    ));
}

#[tokio::test]
async fn a_look_that_fails_is_repeated_after_a_pause() {
    const TIMEOUT: i32 = -7;
    let server = start().await;
    let fails = Fails::at(server.address(), CHILDREN, TIMEOUT).unwrap();
    let address = fails.address.to_string();
    let watcher = config().servers(&address).connect(here()).await.unwrap();
    let lock = open(&server).await;
    let held = at_once(&key("x", 1, 1), X);
    granted(&lock, &held).await;
    let mut changes = watcher.watch().unwrap().watch(&held.key.name).await.unwrap();
    next(&mut changes).await;
    fails.begin();
    lock.release(&held.key, Release::Now).await.unwrap();
    let from = std::time::Instant::now();
    let told = tokio::time::timeout(Duration::from_secs(2), changes.next()).await;
    assert!(told.is_err(), "{told:?}");
    let most = 1 + from.elapsed().as_millis() / 200;
    assert!(
        (2..=most).contains(&(fails.many() as u128)),
        "{} looks",
        fails.many()
    );
}

/// There is no room for its watch: it looks now and then, and tells what it sees, and only that.
#[tokio::test]
async fn a_watcher_without_room_tells_what_it_sees() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (lock, watcher) = (open(&server).await, open(&server).await);
    let watching = async |name: LockName| {
        let mut changes = watcher.watch().unwrap().watch(&name).await.unwrap();
        assert!(is_empty(&next(&mut changes).await));
        changes
    };
    // Each of them has a path of some 3 kB, and there is room for 96.
    let mut others = Vec::new();
    for n in 0..40_u8 {
        let name = [&[b'/'; 1000][..], &[b'0' + n]].concat();
        others.push(watching(LockName::new(name).unwrap()).await);
    }
    let a = key("x", 1, 1);
    let mut changes = watching(LockName::new([b'/'; 999]).unwrap()).await;
    let nothing = tokio::time::timeout(Duration::from_secs(3), changes.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    let line = LockName::new([b'/'; 999]).unwrap();
    let a = dlock_core::spi::LeaseKey::new(line, a.id);
    granted(&lock, &at_once(&a, X)).await;
    loop {
        match next(&mut changes).await {
            Change::Granted(seen) => break assert_eq!(seen.id, a.id),
            Change::Snapshot { now, .. } if now.holders.len() == 1 => break,
            Change::Snapshot { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    lock.release(&a, Release::Now).await.unwrap();
    let line = crate::children(&server, "/dlock/locks").await.remove(0);
    assert_eq!(next(&mut changes).await, Change::Released { id: a.id });
    let deleted = crate::hands(&server, move |s| {
        s.with_session(|s| s.delete(&format!("/dlock/locks/{line}")))
    });
    assert!(deleted.await);
    assert!(matches!(
        next(&mut changes).await,
        Change::Snapshot { skipped: true, .. }
    ));
}
