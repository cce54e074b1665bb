//! An operator ends a lock: its holder is told, whoever is next has it, and nobody else is touched.

use std::time::Duration;

use dlock_core::Mode;
use dlock_core::spi::{
    Lock as _, LostLeases, Release, Released, Renew as _, RenewItem, RenewOutcome, Signal, Watch as _,
};
use futures::StreamExt as _;

use crate::{LONG, at_once, builder, granted, here, key, open, queued, start, turn, waits};

const X: Mode = Mode::Exclusive;

#[tokio::test]
async fn the_holder_is_told_at_once_and_the_next_one_has_it() {
    let server = start().await;
    let (holder, next, operator) = (open(&server).await, open(&server).await, open(&server).await);
    let mut signals = holder.signals();
    let (ended, kept, second) = (key("x", 1, 1), key("y", 1, 2), key("x", 2, 1));
    let before = granted(&holder, &at_once(&ended, X)).await;
    granted(&holder, &at_once(&kept, X)).await;
    let mut wait = waits(&next, &queued(&second, X)).await;
    assert_eq!(operator.force_release(&ended.name).await.unwrap(), 1);
    assert!(turn(&mut wait).await.token > before.token);
    let told = tokio::time::timeout(LONG, signals.next()).await.unwrap().unwrap();
    let Signal::Lost(LostLeases::These(keys), _) = told else {
        panic!("{told:?}");
    };
    assert_eq!(keys, std::slice::from_ref(&ended));
    let items = [
        RenewItem::lease(ended.clone(), LONG),
        RenewItem::lease(kept.clone(), LONG),
    ];
    let outcomes = holder.renew(&items).await;
    assert!(
        matches!(outcomes[..], [RenewOutcome::Gone, RenewOutcome::Renewed(_)]),
        "{outcomes:?}"
    );
    assert_eq!(
        holder.release(&ended, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    assert_eq!(
        holder.release(&kept, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(
        next.release(&second, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(operator.force_release(&ended.name).await.unwrap(), 0);
}

/// More than are kept of, while the holder's connection is away.
#[tokio::test]
async fn a_holder_that_missed_some_looks_for_its_own() {
    let server = start().await;
    let lock = builder()
        .session_timeout(Duration::from_secs(30))
        .open(&server.address().to_string(), here())
        .await
        .unwrap();
    let mut signals = lock.signals();
    let k = |n: u64| key(&format!("x{n}"), 1, n);
    for n in 0..100 {
        granted(&lock, &crate::Acquire::new(k(n), Duration::from_secs(60))).await;
    }
    let operator = open(&server).await;
    for n in 0..99 {
        assert_eq!(operator.force_release(&k(n).name).await.unwrap(), 1);
    }
    let mut lost = Vec::new();
    while lost.len() < 99 {
        match tokio::time::timeout(LONG, signals.next()).await.unwrap().unwrap() {
            Signal::Lost(LostLeases::These(keys), _) => lost.extend(keys),
            other => panic!("{other:?}"),
        }
    }
    assert!(!lost.contains(&k(99)));
    assert_eq!(
        lock.release(&k(99), Release::Now).await.unwrap(),
        Released::Released
    );
}

#[tokio::test]
async fn all_readers_are_ended_and_an_unfair_lock_too() {
    let server = start().await;
    let lock = open(&server).await;
    for n in 0..5 {
        granted(&lock, &at_once(&key("x", 1, n), Mode::READER)).await;
    }
    assert_eq!(lock.force_release(&key("x", 1, 0).name).await.unwrap(), 5);
    granted(&lock, &at_once(&key("x", 1, 9), X)).await;
    let address = server.address().to_string();
    let unfair = builder().unfair().open(&address, here()).await.unwrap();
    let k = key("x", 1, 0);
    granted(&unfair, &at_once(&k, X)).await;
    assert_eq!(unfair.force_release(&k.name).await.unwrap(), 1);
    granted(&unfair, &at_once(&key("x", 1, 1), X)).await;
    assert_eq!(unfair.release(&k, Release::Now).await.unwrap(), Released::NotHeld);
}
