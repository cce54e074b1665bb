//! A member that is slow, or stopped and silent, slows nobody down: a majority decides.

use std::time::{Duration, Instant};

use dlock_conformance::network::{Direction, Fault};

use crate::site::{LONG, Party, Site};
use dlock_testkit::RedisOptions;

const CYCLES: u32 = 20;

/// How long they take, each.
async fn cycles(party: &Party) -> Duration {
    let began = Instant::now();
    for _ in 0..CYCLES {
        party.acquires().await.release().await.unwrap();
    }
    began.elapsed() / CYCLES
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_slow_member_nor_a_silent_one_slows_the_grant() {
    let site = Site::new(5, &RedisOptions::new());
    let mut party = site.party(LONG).await;
    // Connections are made, and scripts loaded.
    cycles(&party).await;
    let all = cycles(&party).await;
    let late = Duration::from_millis(300);
    party.loses(0, Fault::Delay(Direction::ToClient, late));
    let one_is_slow = cycles(&party).await;
    site.servers[4].pause().unwrap();
    let one_is_silent_too = cycles(&party).await;
    site.servers[4].go_on().unwrap();
    // To wait for the slow one would cost a cycle that, and more; to wait for the silent one, the patience.
    let most = late / 3;
    assert!(
        all < most && one_is_slow < most && one_is_silent_too < most,
        "{all:?}, with a slow member {one_is_slow:?}, with a silent one too {one_is_silent_too:?}"
    );
}
