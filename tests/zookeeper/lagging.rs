//! A follower that lags: it stands still for a while, and then answers from what it had before it has caught
//! up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock::ErrorKind;

use crate::site::{Judge, LINE, LONG, acquired, blocking, client, ensemble, granted};
use dlock_testkit::{Proxy, ZkEnsemble, until};

/// How often each client takes its turn.
const ROUNDS: usize = 60;

/// How often answers are lost on all roads.
const LOSSES: usize = 12;

/// Says so when it is dropped, also by a test that fails.
#[derive(Default)]
struct Done(Arc<AtomicBool>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Until it is said that they are done, a follower stands still for three quarters of the time. How often it
/// did.
fn lag(all: &ZkEnsemble, done: &AtomicBool) -> usize {
    let follower = &all.members()[all.a_follower().unwrap()];
    let mut times = 0;
    while !done.load(Ordering::Relaxed) {
        follower.pause().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        follower.go_on().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        times += 1;
    }
    times
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_members_take_turns_while_a_follower_lags() {
    let all = ensemble().await;
    let judge = Arc::new(Judge::default());
    let mut clients = Vec::new();
    // Two of each member, which know no other.
    for at in all.addresses().into_iter().chain(all.addresses()) {
        let judge = judge.clone();
        clients.push(tokio::spawn(async move {
            let client = client(&[at]).await;
            for _ in 0..ROUNDS {
                let guard = acquired(&client).await;
                judge.sees(&guard);
                tokio::task::yield_now().await;
                // One that stood still itself may have lost it, and knows.
                let valid = guard.is_valid();
                let released = guard.release().await;
                assert!(released.is_ok() || !valid, "{released:?}");
            }
        }));
    }
    let done = Done::default();
    let (lagging, over) = (all.clone(), done.0.clone());
    let lags = tokio::task::spawn_blocking(move || lag(&lagging, &over));
    for client in clients {
        tokio::time::timeout(LONG, client).await.unwrap().unwrap();
    }
    drop(done);
    assert!(lags.await.unwrap() > 3, "it lagged while they took turns");
    assert_eq!(judge.grants(), 6 * ROUNDS);
    blocking(move || all.wait_until_ok().unwrap()).await;
}

/// What the leader has done and could not answer is asked about at a follower that stands still most of the
/// time. A node that is there and is not found is made once more: nobody would remove the first one, and
/// everybody behind it would wait for the end of a session.
///
/// It does not show that a follower has to catch up first (`sync`): one that goes on has mostly done so
/// before it answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_the_leader_did_not_answer_is_found_at_a_follower() {
    let all = ensemble().await;
    let members = all.clone();
    let (leader, follower) = blocking(move || {
        let (leader, follower) = (members.leader().unwrap(), members.a_follower().unwrap());
        let at = members.addresses();
        (at[leader], at[follower])
    })
    .await;
    let judge = Arc::new(Judge::default());
    let enough = Done::default();
    let (mut clients, mut roads) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        // Each has roads of its own.
        let road = [leader, follower].map(|at| Proxy::start(at).unwrap());
        let at = [road[0].address(), road[1].address()];
        roads.push(road);
        let (client, judge, enough) = (client(&at).await, judge.clone(), enough.0.clone());
        clients.push(async move {
            while !enough.load(Ordering::Relaxed) {
                let guard = granted(&client).await;
                judge.sees(&guard);
                tokio::task::yield_now().await;
                // Where it is not known whether that was heard it is said again, in the background.
                let valid = guard.is_valid();
                let released = guard.release().await.map_err(|e| e.kind());
                assert!(
                    matches!(released, Ok(()) | Err(ErrorKind::Unknown)) || !valid,
                    "{released:?}"
                );
            }
            client
        });
    }
    let clients: Vec<_> = clients.into_iter().map(tokio::spawn).collect();
    let done = Done::default();
    let (lagging, over) = (all.clone(), done.0.clone());
    let lags = tokio::task::spawn_blocking(move || lag(&lagging, &over));
    let losses = tokio::task::spawn_blocking(move || {
        let mut lost = 0;
        for _ in 0..LOSSES {
            for [to_leader, _] in &roads {
                std::thread::sleep(Duration::from_millis(60));
                lost += to_leader.lose_answers();
                std::thread::sleep(Duration::from_millis(20));
                to_leader.cut();
            }
            // Back to the leader, those who went to the follower.
            for [_, to_follower] in &roads {
                to_follower.cut();
            }
        }
        drop(enough);
        // The roads stay: who is on its way is to arrive.
        (lost, roads)
    });
    let mut kept = Vec::new();
    for client in clients {
        kept.push(tokio::time::timeout(LONG, client).await.unwrap().unwrap());
    }
    drop(done);
    let (lags, (losses, roads)) = (lags.await.unwrap(), losses.await.unwrap());
    assert!(lags > 3, "it lagged while they took turns");
    assert!(losses > LOSSES, "{losses} connections lost answers");
    assert!(judge.grants() > 2 * LOSSES, "{} grants", judge.grants());
    // While their sessions live: nothing is left that only the end of one would remove.
    let left = blocking(move || {
        all.wait_until_ok().unwrap();
        until("the line is empty", LONG, || {
            let left = all.with_session(|session| session.children(LINE))?;
            Ok(left.unwrap_or_default().is_empty())
        })
    });
    left.await.unwrap();
    drop((kept, roads));
}
