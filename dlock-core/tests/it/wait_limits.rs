//! A wait limit is a limit: also when the store does not answer, and whatever happens while the request is
//! withdrawn.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::MultiLock;
use dlock_core::sim::{FaultPlan, Link, Partition, Sim};
use dlock_core::{Client, ErrorKind, LockOptions, Memory};
use futures::future::{join, select};

use crate::world::ms;

const LIMIT: Duration = Duration::from_secs(2);

/// A client behind a network, and one at the store. Whatever is left behind would be there for minutes.
struct Site {
    sim: Sim,
    store: Memory,
    link: Arc<Link>,
    client: Client,
    local: Client,
}

impl Site {
    fn new(seed: u64) -> Self {
        let sim = Sim::new(seed);
        let node = sim.client_runtime_with("client", ms(0), 0);
        let server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(server.clone()));
        // A call of it ends when the client gives it up, and not sooner.
        let mut plan = FaultPlan::healthy();
        plan.call_bound = Duration::from_secs(600);
        let link = Link::new(store.connect(), &node, &server, plan);
        let long = LockOptions::new().ttl(Duration::from_secs(300));
        let client = Client::builder(link.clone(), Arc::new(node)).defaults(long.clone());
        let local = Client::builder(store.connect(), sim.runtime()).defaults(long);
        let (client, local) = (client.build().unwrap(), local.build().unwrap());
        Self {
            sim,
            store,
            link,
            client,
            local,
        }
    }

    async fn sleep(&self, d: Duration) {
        self.sim.runtime().sleep(d).await;
    }

    /// Heals the network, and sees that the keeper withdraws what was left.
    async fn must_come_to_rest(&self) {
        self.link.heal();
        self.sleep(Duration::from_secs(10)).await;
        let left = self.store.sizes();
        assert_eq!((left.names, left.queued), (0, 0));
    }
}

/// Runs it under several schedules, with each of the ways in which a store can be silent.
fn silent(test: impl AsyncFn(&Site, Partition)) {
    for seed in 0..10 {
        for partition in [Partition::Both, Partition::Requests, Partition::Replies] {
            let site = Site::new(seed);
            site.sim.block_on(test(&site, partition));
        }
    }
}

#[test]
fn a_wait_limit_holds_if_the_store_is_silent_from_the_start() {
    silent(async |s, partition| {
        s.link.partition(partition);
        let began = s.sim.runtime().now();
        let e = s
            .client
            .lock("a")
            .unwrap()
            .acquire_timeout(LIMIT)
            .await
            .unwrap_err();
        let took = s.sim.runtime().now().since(began);
        assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
        assert!(e.to_string().contains("continues to withdraw the request"), "{e}");
        assert!(
            took >= LIMIT && took <= LIMIT + LockOptions::WITHDRAWAL + ms(5),
            "{took:?}"
        );
        s.must_come_to_rest().await;
    });
}

#[test]
fn a_wait_limit_holds_in_silence_and_a_late_grant_is_given_back() {
    silent(async |s, partition| {
        let held = s.local.lock("a").unwrap().acquire().await.unwrap();
        let began = s.sim.runtime().now();
        let trouble = async {
            s.sleep(LIMIT - ms(100)).await;
            s.link.partition(partition);
            // While the request is being withdrawn.
            s.sleep(ms(200)).await;
            held.release().await.unwrap();
        };
        let lock = s.client.lock("a").unwrap();
        let waiting = async {
            let answer = lock.acquire_timeout(LIMIT).await;
            (answer, s.sim.runtime().now().since(began))
        };
        let ((answer, took), ()) = join(waiting, trouble).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
        assert!(
            took >= LIMIT && took <= LIMIT + LockOptions::WITHDRAWAL + ms(5),
            "{took:?}"
        );
        s.must_come_to_rest().await;
    });
}

#[test]
fn a_withdrawal_dropped_or_closed_half_way_is_still_made() {
    silent(async |s, partition| {
        for closes in [false, true] {
            let held = s.local.lock("a").unwrap().acquire().await.unwrap();
            let lock = s.client.lock("a").unwrap();
            let waiting = Box::pin(lock.acquire_timeout(LIMIT));
            let trouble = async {
                s.sleep(LIMIT - ms(100)).await;
                s.link.partition(partition);
                // Then the request is being withdrawn.
                s.sleep(ms(200)).await;
                held.release().await.unwrap();
                if closes {
                    s.link.heal();
                    s.client.close().await.unwrap();
                }
            };
            if closes {
                let (answer, ()) = join(waiting, trouble).await;
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::Closed);
            } else {
                drop(select(waiting, Box::pin(trouble)).await);
            }
            s.must_come_to_rest().await;
        }
    });
}

#[test]
fn a_slow_store_that_answers_the_withdrawal_makes_it_a_timeout() {
    for seed in 0..10 {
        let s = Site::new(seed);
        s.sim.block_on(async {
            let _held = s.local.lock("a").unwrap().acquire().await.unwrap();
            let mut slow = FaultPlan::healthy();
            slow.delay = ms(40)..ms(100);
            s.link.set_plan(slow);
            let e = s
                .client
                .lock("a")
                .unwrap()
                .acquire_timeout(LIMIT)
                .await
                .unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Timeout, "{e}");
            assert_eq!(s.store.sizes().queued, 0);
        });
    }
}

#[test]
fn a_wait_limit_bounds_the_roll_back_of_several_locks_too() {
    silent(async |s, partition| {
        for each_its_own in [false, true] {
            let held = s.local.lock("b").unwrap().acquire().await.unwrap();
            let own = LockOptions::new().wait_limit(each_its_own.then_some(LIMIT));
            let lock = |n| s.client.lock(n).unwrap().options(own.clone()).unwrap();
            let both = MultiLock::new(["a", "b"].map(lock)).unwrap();
            let began = s.sim.runtime().now();
            let trouble = async {
                s.sleep(LIMIT / 2).await;
                s.link.partition(partition);
            };
            let waiting = async {
                let answer = match each_its_own {
                    true => both.acquire().await,
                    false => both.acquire_timeout(LIMIT).await,
                };
                (answer.map(drop), s.sim.runtime().now().since(began))
            };
            let ((answer, took), ()) = join(waiting, trouble).await;
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
            assert!(took <= LIMIT + LockOptions::WITHDRAWAL + ms(5), "{took:?}");
            held.release().await.unwrap();
            s.must_come_to_rest().await;
        }
    });
}

#[test]
fn a_call_without_a_limit_to_a_silent_store_ends_at_op_timeout() {
    const OP_TIMEOUT: Duration = Duration::from_secs(5);
    silent(async |s, partition| {
        s.link.partition(partition);
        let lock = s.client.lock("a").unwrap();
        for tries in [false, true] {
            let began = s.sim.runtime().now();
            let answer = match tries {
                true => lock.try_acquire().await.map(drop),
                false => lock.acquire().await.map(drop),
            };
            let took = s.sim.runtime().now().since(began);
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
            assert!(took >= OP_TIMEOUT && took <= OP_TIMEOUT + ms(5), "{took:?}");
        }
        s.must_come_to_rest().await;
    });
}
