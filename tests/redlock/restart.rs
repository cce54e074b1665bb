//! A member that was started again without its locks.
//!
//! Kleppmann 2016 calls it the crash of a node without persistence; the description of Redlock has it too,
//! with the cure: *delayed restarts*. Client 1 holds the lock at the members 1 to 3, member 3 is started
//! again and has forgotten it, client 2 is granted by 3 to 5.

use std::time::{Duration, Instant};

use dlock_conformance::network::Fault;

use crate::site::{LONG, NAME, Resource, SLACK, Site, TTL};
use dlock_testkit::{Persistence, RedisOptions};

/// Without a cure: two guards that are both sure of themselves. The resource is not.
async fn there_is_a_second_holder_and_the_gate_refuses_the_first(members: usize) {
    let site = Site::new(members, &RedisOptions::new());
    let resource = Resource::new();
    let mut one = site.party_that_sees(&site.first(), LONG).await;
    let two = site.party_that_sees(&site.last(), LONG).await;
    let first = one.acquires().await;
    assert!(
        two.tries().await.is_none(),
        "the member in common refuses the second"
    );

    // Or it would be told as soon as it hears from that server again: of what is left of its majority, nobody
    // else has its lease.
    one.loses(site.size() - site.majority(), Fault::Away);
    site.common().crash().unwrap();
    site.common().start_again().unwrap();
    let second = two.tries_until_granted(SLACK * 2).await;
    // That it is so is no promise; if it is not, this test shows nothing.
    assert!(
        first.is_valid() && second.is_valid(),
        "the danger is real: {:?} {:?}",
        first.loss(),
        second.loss()
    );

    assert!(
        second.token() > first.token(),
        "{:?} after {:?}",
        second.token(),
        first.token()
    );
    assert!(resource.takes(second.token()).await);
    assert!(!resource.takes(first.token()).await, "a stale write came through");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_tells_two_holders_apart_if_one_of_three_forgets() {
    there_is_a_second_holder_and_the_gate_refuses_the_first(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_tells_two_holders_apart_if_one_of_five_forgets() {
    there_is_a_second_holder_and_the_gate_refuses_the_first(5).await;
}

/// With `rejoin_after`: it stays out until what it forgot is over. The first holder cannot renew meanwhile,
/// is told, and then the second is granted.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_delayed_restart_there_is_no_second_holder() {
    let mut site = Site::new(5, &RedisOptions::new());
    let after = TTL + Duration::from_secs(1);
    site.rejoin_after = Some(after);
    let resource = Resource::new();
    let one = site.party_that_sees(&site.first(), TTL).await;
    let two = site.party_that_sees(&site.last(), TTL).await;
    // They were just started, all of them.
    let first = one.tries_until_granted(after + SLACK * 2).await;
    assert!(two.tries().await.is_none());

    let down = Instant::now();
    site.common().crash().unwrap();
    site.common().start_again().unwrap();
    let second = two.tries_until_granted(after + SLACK * 2).await;
    assert!(
        !first.is_valid(),
        "granted {:?} after the restart, and held twice",
        down.elapsed()
    );
    assert!(first.loss().is_some(), "and the first one knows");
    assert!(down.elapsed() >= after);
    assert!(second.token() > first.token());
    assert!(resource.takes(second.token()).await && !resource.takes(first.token()).await);
}

/// With `appendfsync always` it forgets nothing, and need not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_keeps_its_locks_may_come_back_at_once() {
    let site = Site::new(5, &RedisOptions::new().persistence(Persistence::Always));
    let one = site.party_that_sees(&site.first(), TTL).await;
    let two = site.party_that_sees(&site.last(), TTL).await;
    let first = one.acquires().await;
    site.common().crash().unwrap();
    site.common().start_again().unwrap();
    let began = Instant::now();
    while began.elapsed() < TTL * 2 {
        assert!(
            two.tries().await.is_none(),
            "granted {:?} after the restart",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        first.is_valid(),
        "it was renewed at the member that came back: {:?}",
        first.loss()
    );
    first.release().await.unwrap();
    two.client.lock(NAME).unwrap().acquire().await.unwrap();
}
