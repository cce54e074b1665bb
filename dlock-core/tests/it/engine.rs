//! The life of a hold over the memory backend, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::sim::Sim;
use dlock_core::spi::{LeaseKey, Release};
use dlock_core::{Client, ErrorKind, GuardEvent, LockOptions, LossReason, Memory};
use futures::future::{Either, join_all, select};
use futures::{FutureExt as _, StreamExt};

use crate::world::*;

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
fn a_held_lock_outlives_its_ttl_and_a_passive_one_ends_with_it() {
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
fn a_second_release_of_one_lease_touches_nothing() {
    simulate(|w| async move {
        let client = w.client();
        let lock = client.lock("a").unwrap();
        let first = lock.acquire().await.unwrap();
        let (key, token) = (LeaseKey::new(first.name().clone(), first.id()), first.token());
        first.release().await.unwrap();
        let second = lock.acquire().await.unwrap();
        // A guard has no second release, but a message of the first may arrive twice.
        for _ in 0..2 {
            client.backend().release(&key, Release::Now).await.unwrap();
        }
        assert!(second.is_valid() && lock.try_acquire().await.unwrap().is_none());
        assert!(second.token() > token);
        second.release().await.unwrap();
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
fn a_dropped_guard_is_released_even_without_its_client() {
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
fn guard_is_never_valid_beyond_its_maximum_hold() {
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
fn a_maximum_hold_ends_by_the_clock_even_if_the_keeper_stalls() {
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
        let held = guard.held();
        let e = guard.release().await.unwrap_err();
        assert_eq!(e.loss_reason(), Some(LossReason::MaxHold));
        assert!(!held.is_valid());
        assert_eq!(held.loss(), Some(LossReason::MaxHold));
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
fn a_waiter_gets_the_lock_when_the_minimum_hold_is_over() {
    simulate(|w| async move {
        let options = ttl(30_000).min_hold(ms(1000));
        let lock = w.client().lock("a").unwrap().options(options).unwrap();
        let guard = lock.acquire().await.unwrap();
        let next = w.client().lock("a").unwrap();
        let mut waiting = Box::pin(next.acquire());
        select(&mut waiting, w.runtime.sleep(ms(300))).await;
        guard.release().await.unwrap();
        let released = w.runtime.now();
        let _next = waiting.await.unwrap();
        let waited = w.runtime.now().since(released);
        assert!(waited >= ms(700) && waited < ms(750), "{waited:?}");
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
fn events_report_a_hold_and_end_with_it() {
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
fn slow_event_reader_gets_gaps_and_the_last_event() {
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
            Some(Ok(dlock_core::Change::Snapshot { skipped: false, .. }))
        ));
        let first = a.lock("a").unwrap().acquire().await.unwrap();
        let second = b.lock("a").unwrap();
        let first_token = first.token();
        let (_, second) = futures::join!(first.release(), second.acquire());
        let second = second.unwrap();
        let mut tokens = Vec::new();
        while tokens.len() < 2 {
            match select(changes.next(), w.runtime.sleep(ms(1000))).await {
                Either::Left((Some(Ok(dlock_core::Change::Granted(h))), _)) => tokens.push(h.token),
                Either::Left((Some(Ok(_)), _)) => {}
                _ => panic!("the watch is silent"),
            }
        }
        assert_eq!(tokens, [first_token, second.token()]);
    });
}
