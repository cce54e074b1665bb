//! Readers, permits, and what becomes of the line when somebody in the middle of it goes.

use std::num::NonZeroU32;
use std::time::Duration;

use dlock_core::spi::{Converted, Lock as _, Push, Release, RenewItem, RenewOutcome, RwLock as _};
use dlock_core::{ErrorKind, Mode};

use crate::{LONG, at_once, children, granted, key, open, pushed, queued, start, turn, until, waits};

const X: Mode = Mode::Exclusive;
const R: Mode = Mode::READER;
const SOON: Duration = Duration::from_millis(300);

fn permit(n: u32) -> Mode {
    Mode::permit(NonZeroU32::new(n).unwrap())
}

#[tokio::test]
async fn one_release_admits_all_readers_up_to_the_next_writer() {
    let server = start().await;
    let lock = open(&server).await;
    let k = |n| key("x", 1, n);
    let mut last = granted(&lock, &at_once(&k(0), X)).await.token;
    let mut readers = Vec::new();
    for n in 1..=20 {
        readers.push(waits(&lock, &queued(&k(n), R)).await);
    }
    let mut writer = waits(&lock, &queued(&k(21), X)).await;
    let mut behind = waits(&lock, &queued(&k(22), R)).await;
    lock.release(&k(0), Release::Now).await.unwrap();
    for reader in &mut readers {
        let token = turn(reader).await.token;
        assert!(token > last);
        last = token;
    }
    assert!(pushed(&mut writer, SOON).await.is_none());
    assert!(pushed(&mut behind, SOON).await.is_none());
    // A writer that gives up admits the waiters behind it.
    lock.abandon(&[k(21)]).await.remove(0).unwrap();
    assert!(turn(&mut behind).await.token > last);
}

#[tokio::test]
async fn permits_go_to_the_first_in_line_and_never_to_one_more() {
    let server = start().await;
    let lock = open(&server).await;
    let k = |n| key("x", 1, n);
    for n in 0..3 {
        granted(&lock, &at_once(&k(n), permit(3))).await;
    }
    let mut waiting = Vec::new();
    for n in 3..8 {
        waiting.push(waits(&lock, &queued(&k(n), permit(3))).await);
    }
    // In any order: each release makes room for the first waiter.
    for (gone, next) in [(1, 0), (0, 1), (3, 2), (2, 3), (5, 4)] {
        for (n, wait) in waiting.iter_mut().enumerate().skip(next) {
            assert!(
                pushed(wait, SOON / 10).await.is_none(),
                "{n} before {gone} has gone"
            );
        }
        lock.release(&k(gone), Release::Now).await.unwrap();
        turn(&mut waiting[next]).await;
    }
}

#[tokio::test]
async fn a_class_mismatch_is_refused_and_leaves_nothing() {
    let server = start().await;
    let lock = open(&server).await;
    granted(&lock, &at_once(&key("x", 1, 0), permit(3))).await;
    for other in [permit(2), R] {
        for request in [at_once(&key("x", 1, 1), other), queued(&key("x", 1, 1), other)] {
            let e = lock.attempt(&request).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
        }
    }
    assert_eq!(children(&server, "/dlock/locks/x").await.len(), 1);
    // Nor does a writer become one of a class that the waiters behind it are not of.
    let writer = key("y", 1, 2);
    granted(&lock, &at_once(&writer, X)).await;
    drop(waits(&lock, &queued(&key("y", 1, 3), permit(3))).await);
    let e = lock.convert(&writer, R).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    lock.convert(&writer, permit(3)).await.unwrap();
}

#[tokio::test]
async fn a_writer_becomes_a_reader_and_no_writer_comes_between() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let k = |n| key("x", 1, n);
    let held = granted(&a, &at_once(&k(0), X)).await;
    let mut reader = waits(&b, &queued(&k(1), R)).await;
    let mut writer = waits(&b, &queued(&k(2), X)).await;
    assert!(pushed(&mut reader, SOON).await.is_none());
    let e = b.convert(&k(2), R).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Lost, "of a waiter: {e}");
    let items = [RenewItem::queued(k(2), LONG)];
    let asked = b.renew().unwrap().renew(&items).await;
    let [RenewOutcome::Queued { ahead, .. }] = asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(ahead, Some(1));
    for _ in 0..2 {
        let Converted::Done(grant) = a.convert(&k(0), R).await.unwrap() else {
            panic!("a downgrade is always possible");
        };
        assert_eq!(grant.token, held.token);
    }
    assert!(turn(&mut reader).await.token > held.token);
    assert!(pushed(&mut writer, SOON).await.is_none());
    let e = a.convert(&k(0), X).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    a.release(&k(0), Release::Now).await.unwrap();
    assert!(pushed(&mut writer, SOON).await.is_none());
    b.release(&k(1), Release::Now).await.unwrap();
    turn(&mut writer).await;
    b.release(&k(2), Release::Now).await.unwrap();
    until("nothing of it is left", Duration::from_secs(10), async || {
        children(&server, "/dlock/locks").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_waiter_whose_node_was_removed_joins_anew() {
    let server = start().await;
    let lock = open(&server).await;
    let (first, second) = (key("x", 1, 0), key("x", 1, 1));
    granted(&lock, &at_once(&first, X)).await;
    let mut wait = waits(&lock, &queued(&second, X)).await;
    let nodes = children(&server, "/dlock/locks/x").await;
    let place = |node: &String| node.rsplit('-').next().map(str::to_owned);
    let own = nodes.iter().max_by_key(|n| place(n)).unwrap();
    let own = format!("/dlock/locks/x/{own}");
    crate::hands(&server, move |s| s.with_session(|s| s.delete(&own))).await;
    lock.release(&first, Release::Now).await.unwrap();
    assert!(matches!(
        pushed(&mut wait, Duration::from_secs(5)).await,
        Some(Push::Changed)
    ));
    granted(&lock, &queued(&second, X)).await;
}
