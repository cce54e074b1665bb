//! A network that is cut: a client with a minority, and a holder without a majority. The members that are out
//! of reach say nothing at all, which is worse than a refusal.

use std::time::{Duration, Instant};

use dlock::ErrorKind;
use dlock_conformance::network::{Direction, Fault};

use crate::site::{LONG, NAME, OP_TIMEOUT, Resource, SLACK, Site, TTL, lateness};
use dlock_testkit::{RedisOptions, until};

const SILENCE: Fault = Fault::BlackHole(Direction::Both);

async fn a_minority_is_refused(members: usize) {
    let site = Site::new(members, &RedisOptions::new());
    let mut few = site.party(LONG).await;
    // It has been there before, so its connections are silent and not broken.
    few.acquires().await.release().await.unwrap();
    // A release is done when a majority has it; those that it is still on its way to must not be cut off from
    // it.
    until("the first hold is gone everywhere", SLACK, || {
        Ok(site.held_at().is_empty())
    })
    .unwrap();
    (0..site.majority()).for_each(|n| few.loses(n, SILENCE));
    let lock = few.client.lock(NAME).unwrap();
    let began = Instant::now();
    let e = lock.try_acquire().await.expect_err("a majority does not answer");
    assert!(
        began.elapsed() < OP_TIMEOUT + SLACK,
        "after {:?}",
        began.elapsed()
    );
    assert!(
        matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
        "{e}"
    );

    // What the others granted is given back long before its ttl, and the majority grants to others at once.
    until("nothing is left of the try", SLACK, || {
        Ok(site.held_at().is_empty())
    })
    .unwrap();
    let all = site.party(LONG).await;
    let began = Instant::now();
    all.acquires().await.release().await.unwrap();
    assert!(began.elapsed() < SLACK, "after {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_of_three_is_refused_in_time_and_leaves_nothing() {
    a_minority_is_refused(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_of_five_is_refused_in_time_and_leaves_nothing() {
    a_minority_is_refused(5).await;
}

async fn a_holder_is_cut_off(members: usize) {
    let site = Site::new(members, &RedisOptions::new());
    let resource = Resource::new();
    let (mut one, two) = (site.party(TTL).await, site.party(TTL).await);
    let first = one.acquires().await;
    // A minority makes no difference, for as long as one likes.
    (0..site.size() - site.majority()).for_each(|n| one.loses(n, SILENCE));
    tokio::time::sleep(TTL + TTL / 2).await;
    assert!(first.is_valid(), "{:?}", first.loss());

    one.loses(site.size() - 1, SILENCE);
    let cut = Instant::now();
    let granted = two.tries_until_granted(TTL + SLACK * 2);
    let (second, (why, late)) = futures::join!(granted, lateness(&first));
    assert!(late < SLACK / 4, "told {late:?} after its deadline: {why}");
    assert!(!first.is_valid() && first.loss().is_some(), "held twice");
    let gap = cut.elapsed();
    assert!(gap < TTL + SLACK, "the second waited for {gap:?}");
    assert!(second.token() > first.token());
    assert!(resource.takes(second.token()).await && !resource.takes(first.token()).await);

    // When it is mended the first is a client like any other.
    one.reaches_all();
    assert!(one.tries().await.is_none());
    second.release().await.unwrap();
    let again = one.tries_until_granted(OP_TIMEOUT + SLACK).await;
    assert!(again.remaining() > Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_cut_off_from_two_of_three_is_told_by_its_deadline() {
    a_holder_is_cut_off(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_cut_off_from_three_of_five_is_told_by_its_deadline() {
    a_holder_is_cut_off(5).await;
}
