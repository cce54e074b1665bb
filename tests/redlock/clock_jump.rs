//! A wall clock that is set forward. Redis expires keys by it.
//!
//! Kleppmann 2016: client 1 holds the lock at the members 1 to 3, the clock of member 3 jumps and its lease
//! is over, client 2 is granted by 3 to 5. The answer of 2016 is to set no clocks; this is what happens where
//! it is done.

use std::time::{Duration, Instant};

use crate::site::{LONG, Resource, SLACK, Site, TTL, lateness};
use dlock_testkit::{RedisOptions, until};

const HOUR: i64 = 3_600_000;

fn site() -> Site {
    Site::new(5, &RedisOptions::new().own_clock())
}

fn step(site: &Site, members: impl IntoIterator<Item = usize>, by: i64) {
    for member in members {
        site.servers[member].clock().unwrap().step(by).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_tells_two_holders_apart_if_the_common_member_jumps() {
    let (site, resource) = (site(), Resource::new());
    let one = site.party_that_sees(&site.first(), LONG).await;
    let two = site.party_that_sees(&site.last(), LONG).await;
    let first = one.acquires().await;
    assert!(two.tries().await.is_none());
    step(&site, [2], HOUR);
    let second = two.tries_until_granted(SLACK * 2).await;
    assert!(first.is_valid() && second.is_valid(), "the danger is real");
    assert!(second.token() > first.token());
    assert!(resource.takes(second.token()).await);
    assert!(!resource.takes(first.token()).await, "a stale write came through");
}

/// Where the first holder reaches all of them, one that jumps gives its vote away, and one is not enough.
#[tokio::test(flavor = "multi_thread")]
async fn one_member_that_jumps_ends_no_hold_of_all() {
    let site = site();
    let (one, two) = (site.party(TTL).await, site.party(TTL).await);
    let first = one.acquires().await;
    until("all have answered", SLACK, || Ok(site.held_at().len() == 5)).unwrap();
    step(&site, [2], HOUR);
    let began = Instant::now();
    while began.elapsed() < TTL * 2 {
        assert!(
            two.tries().await.is_none(),
            "granted {:?} after the jump",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(first.is_valid(), "{:?}", first.loss());
    first.release().await.unwrap();
    two.acquires().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_a_majority_is_told_in_time_and_the_gate_refuses() {
    let (site, resource) = (site(), Resource::new());
    let (one, two) = (site.party(TTL).await, site.party(TTL).await);
    let first = one.acquires().await;
    // Later, a request that came late would be granted by the new time.
    until("all have answered", SLACK, || Ok(site.held_at().len() == 5)).unwrap();
    step(&site, 0..3, HOUR);
    let granted = two.tries_until_granted(SLACK * 2);
    let (second, (why, late)) = futures::join!(granted, lateness(&first));
    assert!(late < SLACK / 4, "told {late:?} after its deadline: {why}");
    assert!(!first.is_valid());
    assert!(second.token() > first.token());
    assert!(resource.takes(second.token()).await && !resource.takes(first.token()).await);

    // And back again: a majority whose clocks are behind its own last tokens counts on from these.
    step(&site, 0..3, -HOUR);
    let token = second.token();
    second.release().await.unwrap();
    let third = one.acquires().await;
    assert!(third.token() > token, "{:?} after {token:?}", third.token());
    assert!(resource.takes(third.token()).await && !resource.takes(token).await);
}
