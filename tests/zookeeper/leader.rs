//! The leader of the ensemble is killed. Sessions are the ensemble's, and outlive it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::site::{
    Judge, LONG, SESSION, SLACK, acquired, blocking, client, ensemble, granted, line_of, released,
};

const WAITERS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn ten_waiters_have_their_turns_although_the_leader_dies() {
    let all = ensemble().await;
    let judge = Arc::new(Judge::default());
    let holder = client(&all.addresses()).await;
    let guard = acquired(&holder).await;
    judge.sees(&guard);
    let mut waiters = Vec::new();
    for _ in 0..WAITERS {
        let (addresses, judge) = (all.addresses(), judge.clone());
        waiters.push(tokio::spawn(async move {
            let client = client(&addresses).await;
            let guard = acquired(&client).await;
            judge.sees(&guard);
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(guard.is_valid(), "{:?}", guard.loss());
            released(guard).await;
        }));
    }
    let line = all.clone();
    line_of(1 + WAITERS, move |work| line.with_session(work)).await;

    let killed = all.clone();
    let dead = blocking(move || killed.crash_leader().unwrap()).await;
    // That grants the lock to no other: the holder still has it, or has been told of the loss.
    assert_eq!(judge.grants(), 1);
    if guard.is_valid() {
        released(guard).await;
    }
    let began = Instant::now();
    for waiter in waiters {
        tokio::time::timeout(LONG, waiter).await.unwrap().unwrap();
    }
    let took = began.elapsed();
    assert!(took < SESSION + SLACK, "ten turns took {took:?}");
    assert_eq!(judge.grants(), 1 + WAITERS);

    // The one that died comes back, and the next one dies: the same clients go on.
    let again = all.clone();
    blocking(move || {
        again.start_again(dead).unwrap();
        again.crash_leader().unwrap();
    })
    .await;
    let guard = granted(&holder).await;
    judge.sees(&guard);
    released(guard).await;
}
