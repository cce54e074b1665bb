//! Servers that know nothing of one another, as the members of a quorum: it asks again beside what lingers,
//! and gives back in the background. In the end nothing of it is left anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock, Release};
use dlock_core::{Client, Result};
use futures::future::join;

use crate::{LONG, children, hands, here, key, open, start, until};
use dlock_testkit::ZkServer;

const MEMBERS: usize = 3;
/// How long a member is waited for.
const PATIENCE: Duration = Duration::from_millis(150);

async fn servers() -> Vec<Arc<ZkServer>> {
    futures::future::join_all((0..MEMBERS).map(|_| start())).await
}

async fn quorum(servers: &[Arc<ZkServer>]) -> Quorum {
    let mut members: Vec<Arc<dyn Lock>> = Vec::new();
    for server in servers {
        members.push(Arc::new(open(server).await));
    }
    Quorum::new(members, here(), PATIENCE).unwrap()
}

/// What is given back in the background is gone by then.
async fn nothing_is_left(servers: &[Arc<ZkServer>]) {
    for server in servers {
        until("the line is empty", LONG, async || {
            children(server, "/dlock/locks/x").await.is_empty()
        })
        .await;
    }
}

/// The same numbers in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }

    /// Polls it for a while, and drops it if it has not ended by then.
    async fn awhile<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let awhile = Duration::from_micros(self.below(6_000));
        tokio::time::timeout(awhile, future).await.ok()
    }
}

async fn abandoned(quorum: &Quorum, key: &LeaseKey) {
    until("it is abandoned", LONG, async || {
        let answers = quorum.abandon(std::slice::from_ref(key)).await;
        answers.iter().all(Result::is_ok)
    })
    .await;
}

/// One request, asked for and given up in one of many ways.
async fn one(quorum: &Quorum, dice: &mut Dice, n: u64) {
    let request = Acquire::new(key("x", 7, n), LONG);
    let first = dice.awhile(quorum.attempt(&request)).await;
    let is_granted = match dice.below(4) {
        // Once more, beside what lingers of the first.
        0 => matches!(
            dice.awhile(quorum.attempt(&request)).await,
            Some(Ok(Attempt::Granted(_)))
        ),
        // Two at a time.
        1 => {
            let both = join(quorum.attempt(&request), quorum.attempt(&request));
            dice.awhile(both).await;
            false
        }
        // It is given up while it is asked for.
        2 => {
            let both = join(
                quorum.attempt(&request),
                quorum.abandon(std::slice::from_ref(&request.key)),
            );
            dice.awhile(both).await;
            false
        }
        _ => matches!(first, Some(Ok(Attempt::Granted(_)))),
    };
    if is_granted && dice.below(2) == 0 {
        dice.awhile(quorum.release(&request.key, Release::Now)).await;
    }
    abandoned(quorum, &request.key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_at_any_time_leave_nothing() {
    let servers = servers().await;
    let quorum = quorum(&servers).await;
    let mut dice = Dice(41);
    for n in 0..150 {
        // The queue may be removed while a request joins it, which then asks twice.
        if n % 5 == 0 {
            for server in &servers {
                hands(server, |s| {
                    s.with_session(|s| s.delete("/dlock/locks/x").or(Ok(false)))
                })
                .await;
            }
        }
        one(&quorum, &mut dice, n).await;
    }
    nothing_is_left(&servers).await;
}

/// One of the members stands still for a while, again and again: its answers come late, or never.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_stands_still_keeps_nothing() {
    let servers = servers().await;
    let quorum = quorum(&servers).await;
    let mut dice = Dice(43);
    for n in 0..24 {
        let silent = &servers[dice.below(MEMBERS as u64) as usize];
        hands(silent, |s| s.pause()).await;
        for m in 0..3 {
            one(&quorum, &mut dice, n * 3 + m).await;
        }
        hands(silent, |s| s.go_on()).await;
    }
    nothing_is_left(&servers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_has_it_at_a_time() {
    let servers = servers().await;
    let inside = Arc::new(AtomicU32::new(0));
    let mut crowd = Vec::new();
    for n in 0..3 {
        let quorum = quorum(&servers).await;
        let client = Client::builder(Arc::new(quorum), here()).op_timeout(Duration::from_secs(2));
        let (client, inside) = (client.build().unwrap(), inside.clone());
        crowd.push(tokio::spawn(async move {
            let mut dice = Dice(n);
            let lock = client.lock("x").unwrap();
            let mut had = 0;
            while had < 10 {
                // Some give up while they wait.
                let limit = Duration::from_millis(5 + dice.below(200));
                let Ok(Ok(guard)) = tokio::time::timeout(limit, lock.acquire()).await else {
                    continue;
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                had += 1;
            }
            client
        }));
    }
    let mut clients = Vec::new();
    for one in crowd {
        clients.push(one.await.unwrap());
    }
    nothing_is_left(&servers).await;
}
