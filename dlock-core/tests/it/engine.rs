//! The engine over the memory backend, in virtual time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::MultiLock;
use dlock_core::sim::{FaultPlan, Link, Sim};
use dlock_core::{
    AutoRenew, Client, ErrorKind, GuardEvent, LockOptions, LossReason, Memory, Runtime, Upgrade,
};
use futures::future::{Either, join_all, select};
use futures::{FutureExt as _, StreamExt};

/// A world with one store; each `client` is a client of its own.
struct World {
    runtime: Arc<dyn Runtime>,
    store: Memory,
}

impl World {
    fn client(&self) -> Client {
        Client::builder(self.store.connect(), self.runtime.clone())
            .build()
            .unwrap()
    }

    async fn sleep(&self, d: Duration) {
        self.runtime.sleep(d).await;
    }
}

/// Runs a test in virtual time, under several schedules.
fn simulate<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    simulate_with(|m| m, test);
}

fn simulate_with<F: Future<Output = ()>>(
    set_up: impl Fn(dlock_core::memory::MemoryBuilder) -> dlock_core::memory::MemoryBuilder,
    test: impl Fn(World) -> F,
) {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let runtime = sim.runtime();
        let store = set_up(Memory::builder(runtime.clone())).build();
        sim.block_on(test(World { runtime, store }));
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ttl(n: u64) -> LockOptions {
    LockOptions::new().ttl(ms(n))
}

fn passive(n: u64) -> LockOptions {
    ttl(n).auto_renew(AutoRenew::Off)
}

#[test]
fn two_handles_of_one_client_exclude_one_another() {
    simulate(|w| async move {
        let client = w.client();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        assert!(client.lock("a").unwrap().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert!(client.lock("a").unwrap().try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn a_held_lock_outlives_its_ttl_and_a_passive_one_is_told_lost_at_its_deadline() {
    simulate(|w| async move {
        let client = w.client();
        let kept = client
            .lock("kept")
            .unwrap()
            .options(ttl(300))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let passive = client
            .lock("passive")
            .unwrap()
            .options(passive(300))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let deadline = passive.deadline();
        assert_eq!(passive.lost().await, LossReason::Expired);
        assert_eq!(w.runtime.now(), deadline, "neither sooner nor later");
        assert!(!passive.is_valid());
        w.sleep(ms(6000)).await;
        assert!(kept.is_valid());
        assert_eq!(passive.renew().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(
            passive.release().await.unwrap_err().loss_reason(),
            Some(LossReason::Expired)
        );
        kept.release().await.unwrap();
    });
}

#[test]
fn a_second_release_answers_lost_and_touches_nothing() {
    simulate(|w| async move {
        let client = w.client();
        let lock = client.lock("a").unwrap();
        let first = lock.acquire().await.unwrap();
        first.release().await.unwrap();
        let second = lock.acquire().await.unwrap();
        assert_eq!(
            first.release().await.unwrap_err().loss_reason(),
            Some(LossReason::Released)
        );
        assert!(second.is_valid() && lock.try_acquire().await.unwrap().is_none());
        assert!(second.token() > first.token());
    });
}

#[test]
fn waiters_are_served_in_line_and_by_priority() {
    simulate(|w| async move {
        let clients: Vec<_> = (0..4).map(|_| w.client()).collect();
        let guard = clients[0].lock("a").unwrap().acquire().await.unwrap();
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut waits = Vec::new();
        for (i, priority) in [(1, 5), (2, 5), (3, 9)] {
            let lock = clients[i]
                .lock("a")
                .unwrap()
                .options(LockOptions::new().priority(priority))
                .unwrap();
            let order = order.clone();
            waits.push(async move {
                let guard = lock.acquire().await.unwrap();
                order.lock().unwrap().push(i);
                guard.release().await.unwrap();
            });
        }
        let mut waits: Vec<_> = waits.into_iter().map(Box::pin).collect();
        for wait in &mut waits {
            assert!(futures::poll!(wait.as_mut()).is_pending());
        }
        guard.release().await.unwrap();
        join_all(waits).await;
        assert_eq!(*order.lock().unwrap(), [3, 1, 2]);
        assert_eq!(w.store.sizes().names, 0);
    });
}

#[test]
fn a_wait_that_runs_out_leaves_nothing_and_lets_those_behind_in() {
    simulate(|w| async move {
        let (a, b, c) = (w.client(), w.client(), w.client());
        let reader = a.rwlock("a").unwrap().read().acquire().await.unwrap();
        let rw = b.rwlock("a").unwrap();
        let writer = rw.write().acquire_timeout(ms(100));
        let behind = async {
            w.sleep(ms(10)).await;
            c.rwlock("a").unwrap().read().acquire().await.unwrap();
            w.runtime.now()
        };
        let started = w.runtime.now();
        let (writer, admitted) = futures::join!(writer, behind);
        assert_eq!(writer.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(admitted, started + ms(100));
        drop(reader);
    });
}

#[test]
fn a_dead_holder_costs_its_ttl_and_no_more() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let guard = a
            .lock("a")
            .unwrap()
            .options(passive(500))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let started = w.runtime.now();
        std::mem::forget(guard);
        b.lock("a").unwrap().acquire().await.unwrap();
        let took = w.runtime.now().since(started);
        assert!(took <= ms(520), "{took:?}");
    });
}

#[test]
fn a_dropped_guard_is_released_in_the_background_even_after_its_client() {
    simulate(|w| async move {
        let client = w.client();
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        drop(client);
        w.sleep(ms(60_000)).await;
        assert!(guard.is_valid(), "dropping the client ends nothing");
        std::thread::spawn(move || drop(guard)).join().unwrap();
        w.sleep(ms(1)).await;
        assert_eq!(w.store.sizes().names, 0);
    });
}

#[test]
fn closing_ends_guards_and_waits_and_releases_what_was_held() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let held = a.lock("held").unwrap().acquire().await.unwrap();
        let other = b.lock("other").unwrap().acquire().await.unwrap();
        let lock = a.lock("other").unwrap();
        let waiting = lock.acquire();
        let close = async {
            w.sleep(ms(5)).await;
            a.close().await.unwrap();
            a.close().await.unwrap();
        };
        let (waited, ()) = futures::join!(waiting, close);
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(held.loss(), Some(LossReason::Closed));
        assert_eq!(
            a.lock("held").unwrap().try_acquire().await.unwrap_err().kind(),
            ErrorKind::Closed
        );
        assert!(b.lock("held").unwrap().try_acquire().await.unwrap().is_some());
        assert!(other.is_valid());
    });
}

#[test]
fn a_maximum_hold_ends_the_hold_and_says_so() {
    simulate(|w| async move {
        let client = w.client();
        let options = ttl(300).max_hold(ms(1000));
        let guard = client
            .lock("a")
            .unwrap()
            .options(options)
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let started = w.runtime.now();
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        assert_eq!(w.runtime.now().since(started), ms(1000));
        assert!(client.lock("a").unwrap().acquire_timeout(ms(10)).await.is_ok());
    });
}

#[test]
fn a_guard_is_never_believed_beyond_its_maximum_hold() {
    simulate(|w| async move {
        let (client, other) = (w.client(), w.client());
        let options = ttl(1000).max_hold(ms(300));
        let lock = client.lock("a").unwrap().options(options).unwrap();
        let guard = lock.acquire().await.unwrap();
        let promised = guard.deadline();
        assert!(guard.remaining() <= ms(300), "{guard:?}");
        let _next = other.lock("a").unwrap().acquire().await.unwrap();
        assert!(promised <= w.runtime.now(), "another has it while it is believed");
    });
}

#[test]
fn a_maximum_hold_is_over_by_the_clock_even_if_the_keeper_is_stalled() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let runtime = dlock_core::runtime::detect().unwrap();
        let store = Memory::new(runtime.clone());
        let client = Client::builder(store.connect(), runtime).build().unwrap();
        let options = ttl(10_000).max_hold(ms(20));
        let lock = client.lock("a").unwrap().options(options).unwrap();
        let guard = lock.acquire().await.unwrap();
        // Blocks the executor, and the keeper with it.
        std::thread::sleep(ms(30));
        assert!(!guard.is_valid());
        assert_eq!(guard.loss(), Some(LossReason::MaxHold));
    });
}

#[test]
fn a_minimum_hold_keeps_the_name_taken_after_the_release() {
    simulate(|w| async move {
        let client = w.client();
        let started = w.runtime.now();
        let options = ttl(1000).min_hold(ms(800));
        client
            .lock("a")
            .unwrap()
            .options(options)
            .unwrap()
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert!(client.lock("a").unwrap().try_acquire().await.unwrap().is_none());
        client.lock("a").unwrap().acquire().await.unwrap();
        let took = w.runtime.now().since(started);
        assert!(took >= ms(800) && took < ms(820), "{took:?}");
    });
}

#[test]
fn a_body_is_cancelled_when_its_lock_is_lost() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let reached = std::sync::atomic::AtomicBool::new(false);
        let lock = a.lock("a").unwrap().options(ttl(300)).unwrap();
        let body = lock.with(|held| {
            let (runtime, reached) = (w.runtime.clone(), &reached);
            async move {
                assert!(held.is_valid());
                runtime.sleep(ms(10_000)).await;
                reached.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        });
        let force = async {
            w.sleep(ms(50)).await;
            assert_eq!(b.force_release("a").await.unwrap(), 1);
        };
        let (result, ()) = futures::join!(body, force);
        assert_eq!(result.unwrap_err().loss_reason(), Some(LossReason::Refused));
        assert!(!reached.load(std::sync::atomic::Ordering::SeqCst));
    });
}

#[test]
fn events_tell_the_life_of_a_hold_and_end_with_its_end() {
    simulate(|w| async move {
        let client = w.client();
        let options = ttl(300).warn_after(ms(250));
        let guard = client
            .lock("a")
            .unwrap()
            .options(options)
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let events = guard.events();
        w.sleep(ms(320)).await;
        guard.release().await.unwrap();
        let kinds: Vec<_> = events
            .map(|e| match e {
                GuardEvent::Renewed => "renewed",
                GuardEvent::HeldLong => "long",
                GuardEvent::Released => "released",
                _ => "other",
            })
            .collect()
            .await;
        assert_eq!(kinds, ["renewed", "renewed", "long", "renewed", "released"]);
    });
}

#[test]
fn a_slow_reader_of_events_is_told_how_many_it_missed_and_never_misses_the_last() {
    simulate(|w| async move {
        let client = w.client();
        let guard = client
            .lock("a")
            .unwrap()
            .options(ttl(30))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        let (mut quick, slow, mut late) = (guard.events(), guard.events(), guard.events());
        let count = async {
            let mut n = 0;
            while matches!(quick.next().await, Some(GuardEvent::Renewed)) {
                n += 1;
            }
            n
        };
        let hold = async {
            w.sleep(ms(3000)).await;
            // Read in the middle of the hold: the gap is told where it is.
            let mut read = Vec::new();
            while let Some(Some(event)) = late.next().now_or_never() {
                read.push(event);
            }
            w.sleep(ms(60)).await;
            read.push(late.next().await.unwrap());
            drop(guard);
            w.sleep(ms(10)).await;
            read.extend(late.collect::<Vec<_>>().await);
            read
        };
        let (renewals, late) = futures::join!(count, hold);
        let slow: Vec<_> = slow.collect().await;
        for (read, last_is_told_of_the_gap) in [(slow, true), (late, false)] {
            let mut seen = 0;
            for event in &read {
                seen += match event {
                    GuardEvent::Renewed => 1,
                    GuardEvent::Skipped(n) => *n,
                    GuardEvent::Released => 0,
                    other => panic!("{other:?}"),
                };
            }
            assert_eq!(seen, renewals, "every event is there or counted");
            assert!(renewals > 100 && read.len() < 60, "{renewals} {}", read.len());
            let [.., before, GuardEvent::Released] = &read[..] else {
                panic!("{:?}", read.last());
            };
            assert_eq!(
                matches!(before, GuardEvent::Skipped(1..)),
                last_is_told_of_the_gap
            );
        }
    });
}

#[test]
fn re_entry_counts_and_is_local_to_its_owner() {
    simulate(|w| async move {
        let client = w.client();
        let owner = client.owner();
        let lock = client.lock("a").unwrap().reentrant(&owner).unwrap();
        let (outer, inner) = futures::join!(lock.acquire(), lock.acquire());
        let (outer, inner) = (outer.unwrap(), inner.unwrap());
        assert_eq!((outer.token(), outer.id()), (inner.token(), inner.id()));
        let stranger = client.lock("a").unwrap().reentrant(&client.owner()).unwrap();
        assert!(stranger.try_acquire().await.unwrap().is_none());
        outer.release().await.unwrap();
        assert!(!outer.is_valid() && inner.is_valid());
        assert_eq!(outer.release().await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(stranger.try_acquire().await.unwrap().is_none());
        drop(inner);
        w.sleep(ms(1)).await;
        assert!(stranger.try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn a_lost_lease_is_lost_at_every_level_and_cannot_be_re_entered() {
    simulate(|w| async move {
        let client = w.client();
        let lock = client
            .lock("a")
            .unwrap()
            .options(passive(100))
            .unwrap()
            .reentrant(&client.owner())
            .unwrap();
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        w.sleep(ms(200)).await;
        assert!(!outer.is_valid() && !inner.is_valid());
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Lost);
        drop((outer, inner));
        assert!(lock.acquire().await.unwrap().is_valid());
    });
}

#[test]
fn an_owner_has_a_limit() {
    simulate(|w| async move {
        let client = w.client();
        let lock = client.lock("a").unwrap().reentrant(&client.owner()).unwrap();
        let mut guards = Vec::new();
        for _ in 0..dlock_core::Owner::MAX_DEPTH {
            guards.push(lock.acquire().await.unwrap());
        }
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::LimitReached);
    });
}

#[test]
fn downgrade_lets_no_writer_in_between_and_readers_in_at_once() {
    simulate(|w| async move {
        let (a, b, c) = (w.client(), w.client(), w.client());
        let writer = a.rwlock("a").unwrap().write().acquire().await.unwrap();
        let (read, write) = (b.rwlock("a").unwrap(), c.rwlock("a").unwrap());
        let mut reading = Box::pin(read.read().acquire());
        assert!(futures::poll!(reading.as_mut()).is_pending());
        let mut writing = Box::pin(write.write().acquire());
        assert!(futures::poll!(writing.as_mut()).is_pending());
        let token = writer.token();
        writer.downgrade().await.unwrap();
        assert_eq!(writer.token(), token);
        let reader = reading.await.unwrap();
        assert!(futures::poll!(writing.as_mut()).is_pending());
        drop((writer, reader));
        assert!(writing.await.unwrap().token() > token);
    });
}

#[test]
fn a_downgrade_that_is_refused_leaves_the_guard_as_it_was() {
    simulate(|w| async move {
        let (client, other) = (w.client(), w.client());
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let token = guard.token();
        // Waits for a permit, so that the name has no room for readers.
        let permits = other.semaphore("a", 2).unwrap();
        let mut waiting = Box::pin(permits.acquire());
        select(&mut waiting, w.runtime.sleep(ms(50))).await;
        let refused = guard.downgrade().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(guard.mode().is_exclusive(), "{guard:?}");
        assert_eq!(guard.try_upgrade().await.unwrap(), Upgrade::Done);
        assert_eq!(guard.token(), token);
    });
}

#[test]
fn of_two_upgraders_none_waits_for_the_other() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let one = a.rwlock("a").unwrap().read().acquire().await.unwrap();
        let two = b.rwlock("a").unwrap().read().acquire().await.unwrap();
        let (x, y) = futures::join!(one.try_upgrade(), two.try_upgrade());
        assert!(x.unwrap() != Upgrade::Done && y.unwrap() != Upgrade::Done);
        assert!(one.is_valid() && two.is_valid());
        two.release().await.unwrap();
        assert_eq!(one.try_upgrade().await.unwrap(), Upgrade::Done);
        assert!(one.mode().is_exclusive() && one.token() > two.token());
    });
}

/// The old downgrade arrives last: had the upgrade been answered meanwhile, a reader would be let in beside an exclusive guard.
#[test]
fn after_an_unanswered_downgrade_there_is_no_upgrade() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let (server, node) = (sim.runtime(), sim.client_runtime_with("client", ms(0), 0));
        let on_server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(on_server.clone()));
        let link = Link::new(store.connect(), &node, &on_server, FaultPlan::healthy());
        let client = Client::builder(link.clone(), Arc::new(node)).build().unwrap();
        let other = Client::builder(store.connect(), server.clone()).build().unwrap();
        sim.block_on(async move {
            let guard = client.rwlock("a").unwrap().write().acquire().await.unwrap();
            link.hold();
            let mut dropped = Box::pin(guard.downgrade());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            drop(dropped);
            assert!(!guard.mode().is_exclusive());
            assert_eq!(guard.try_upgrade().await.unwrap_err().kind(), ErrorKind::Unknown);
            link.let_go();
            let reader = other.rwlock("a").unwrap().read().acquire().await.unwrap();
            assert!(guard.is_valid() && reader.is_valid());
            // Settled at once by asking again; upgraded never.
            guard.downgrade().await.unwrap();
            reader.release().await.unwrap();
            assert_eq!(guard.try_upgrade().await.unwrap_err().kind(), ErrorKind::Unknown);
        });
    }
}

#[test]
fn of_two_upgrades_of_one_hold_one_is_under_way() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let node = sim.client_runtime_with("client", ms(0), 0);
        let server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(server.clone()));
        let link = Link::new(store.connect(), &node, &server, FaultPlan::healthy());
        let client = Client::builder(link, Arc::new(node)).build().unwrap();
        sim.block_on(async move {
            let guard = client.rwlock("a").unwrap().read().acquire().await.unwrap();
            let (one, two) = futures::join!(guard.try_upgrade(), guard.try_upgrade());
            assert_eq!((one.unwrap(), two.unwrap()), (Upgrade::Done, Upgrade::Busy));
            // A dropped one is nobody's answer: the next may be sent.
            guard.downgrade().await.unwrap();
            let mut dropped = Box::pin(guard.try_upgrade());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            drop(dropped);
            assert_eq!(guard.try_upgrade().await.unwrap(), Upgrade::Done);
        });
    }
}

#[test]
fn futures_dropped_at_any_poll_leave_nothing() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        for held in [false, true] {
            for polls in 0..3 {
                let guard = if held {
                    Some(b.lock("a").unwrap().acquire().await.unwrap())
                } else {
                    None
                };
                let lock = a.lock("a").unwrap();
                let mut future = Box::pin(lock.acquire());
                for _ in 0..polls {
                    if futures::poll!(future.as_mut()).is_ready() {
                        break;
                    }
                }
                drop(future);
                drop(guard);
                w.sleep(ms(1)).await;
                assert_eq!(w.store.sizes().names, 0, "held {held}, polls {polls}");
            }
        }
    });
}

#[test]
fn a_provisional_grant_is_confirmed_by_the_first_renewal() {
    simulate_with(
        |m| m.claim_window(Some(ms(200))),
        |w| async move {
            let (a, b) = (w.client(), w.client());
            for options in [ttl(3000), passive(3000)] {
                let first = a.lock("a").unwrap().acquire().await.unwrap();
                let lock = b.lock("a").unwrap().options(options).unwrap();
                let mut waiting = Box::pin(lock.acquire());
                assert!(futures::poll!(waiting.as_mut()).is_pending());
                drop(first);
                let second = waiting.await.unwrap();
                w.sleep(ms(1000)).await;
                assert!(
                    second.is_valid(),
                    "the window of 200 ms was turned into a full lease"
                );
                second.release().await.unwrap();
            }
        },
    );
}

#[test]
fn ten_thousand_held_locks_are_renewed_in_batches() {
    let sim = Sim::new(1);
    let runtime = sim.runtime();
    let store = Memory::new(runtime.clone());
    sim.block_on(async {
        let client = Client::builder(store.connect(), runtime.clone()).build().unwrap();
        let mut guards = Vec::new();
        for i in 0..10_000 {
            let lock = client
                .lock(format!("lock {i}"))
                .unwrap()
                .options(ttl(10_000))
                .unwrap();
            guards.push(lock.acquire().await.unwrap());
        }
        assert!(sim.world().tasks_alive() <= 2, "one keeper, whatever is held");
        runtime.sleep(Duration::from_secs(60)).await;
        assert!(guards.iter().all(dlock_core::Guard::is_valid));
    });
}

#[test]
fn a_runtime_that_ends_takes_its_guards_validity_with_it() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let runtime = {
        let _in = tokio.enter();
        dlock_core::runtime::detect().unwrap()
    };
    let store = Memory::new(runtime.clone());
    let client = Client::builder(store.connect(), runtime).build().unwrap();
    let guard = futures::executor::block_on(client.lock("a").unwrap().acquire()).unwrap();
    assert!(guard.is_valid());
    tokio.shutdown_timeout(Duration::from_secs(5));
    assert_eq!(
        guard.loss(),
        Some(LossReason::Closed),
        "nothing renews it any more"
    );
    assert_eq!(futures::executor::block_on(guard.lost()), LossReason::Closed);
    let late = futures::executor::block_on(client.lock("b").unwrap().try_acquire());
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
    drop(guard);
}

#[test]
fn a_watch_starts_with_a_snapshot_and_shows_the_hand_over() {
    simulate(|w| async move {
        let (a, b, watcher) = (w.client(), w.client(), w.client());
        let mut changes = watcher.watch("a").await.unwrap();
        assert!(matches!(
            changes.next().await,
            Some(Ok(dlock_core::spi::Change::Snapshot { skipped: false, .. }))
        ));
        let first = a.lock("a").unwrap().acquire().await.unwrap();
        let second = b.lock("a").unwrap();
        let (_, second) = futures::join!(first.release(), second.acquire());
        let second = second.unwrap();
        let mut tokens = Vec::new();
        while tokens.len() < 2 {
            match select(changes.next(), w.runtime.sleep(ms(1000))).await {
                Either::Left((Some(Ok(dlock_core::spi::Change::Granted(h))), _)) => tokens.push(h.token),
                Either::Left((Some(Ok(_)), _)) => {}
                _ => panic!("the watch is silent"),
            }
        }
        assert_eq!(tokens, [first.token(), second.token()]);
    });
}

#[test]
fn a_multi_lock_takes_all_or_none_and_never_deadlocks() {
    simulate(|w| async move {
        let (a, b, c) = (w.client(), w.client(), w.client());
        let of = |client: &Client, names: [&str; 3]| {
            MultiLock::new(names.map(|n| client.lock(n).unwrap())).unwrap()
        };
        let (one, two) = (of(&a, ["x", "y", "z"]), of(&b, ["z", "x", "y"]));
        for _ in 0..10 {
            let run = |multi: MultiLock| {
                let runtime = w.runtime.clone();
                async move {
                    let all = multi.acquire().await.unwrap();
                    runtime.sleep(ms(3)).await;
                    assert!(all.is_valid());
                    all.release().await.unwrap();
                }
            };
            futures::join!(run(one.clone()), run(two.clone()));
        }
        let held = c.lock("y").unwrap().acquire().await.unwrap();
        assert!(one.try_acquire().await.unwrap().is_none());
        assert_eq!(
            two.acquire_timeout(ms(50)).await.unwrap_err().kind(),
            ErrorKind::Timeout
        );
        assert!(
            c.lock("x").unwrap().try_acquire().await.unwrap().is_some(),
            "rolled back before the answer"
        );
        drop(held);
        let twice = [a.lock("x").unwrap(), a.lock("x").unwrap()];
        assert_eq!(MultiLock::new(twice).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_multi_lock_whose_first_lease_ran_out_while_it_waited_for_the_last_is_no_lock() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let held = b.lock("y").unwrap().acquire().await.unwrap();
        let multi = MultiLock::new([
            a.lock("x").unwrap().options(passive(100)).unwrap(),
            a.lock("y").unwrap().options(passive(100)).unwrap(),
        ])
        .unwrap();
        let later = async {
            w.sleep(ms(300)).await;
            held.release().await.unwrap();
        };
        let (taken, ()) = futures::join!(multi.acquire(), later);
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::Lost);
        assert!(b.lock("y").unwrap().try_acquire().await.unwrap().is_some());
    });
}
