//! What the engine asks of a store after what it has heard, and what it does not.

use std::time::Duration;

use dlock_core::sim::Sim;
use dlock_core::spi::{LostLeases, Push, Queueing, Signal};
use dlock_core::{AutoRenew, Client, ErrorKind, GuardEvent, LockOptions, LossReason, Memory, Mode, Token};
use futures::future::join;
use futures::{FutureExt as _, StreamExt as _};

use crate::scripted::Says::*;
use crate::scripted::{Scripted, Store, after, play};
use crate::world::ms;

pub(crate) const OP_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn passive() -> LockOptions {
    LockOptions::new().auto_renew(AutoRenew::Off)
}

#[test]
fn failures_with_a_success_in_between_do_not_add_up() {
    play(Store::Plain, async |client, store| {
        let row = [Fails(ErrorKind::Unavailable), Held];
        store.attempts.set(std::iter::repeat_n(row, 200).flatten());
        *store.polled.lock().unwrap() = Some((ms(100), ms(100)));
        let lock = client.lock("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        assert!(store.now() > 2 * OP_TIMEOUT);
        // A failure costs a pause, and a change after it none.
        drop(guard);
    });
}

/// Somebody may be told sooner than a pause is over; nobody waits for a pause that is over.
#[test]
fn a_failure_costs_a_pause_and_a_success_after_it_none() {
    play(Store::Plain, async |client, store| {
        store.attempts.set([Fails(ErrorKind::Unavailable), Held]);
        let lock = client.lock("a").unwrap();
        let change = async {
            store.sleep(ms(500)).await;
            store.lines.lock().unwrap()[0]
                .unbounded_send(Push::Changed)
                .unwrap();
        };
        let (guard, ()) = join(lock.acquire(), change).await;
        guard.unwrap();
        let [first, second, third] = store.times_of("attempt 1")[..] else {
            panic!("{:?}", store.asked());
        };
        assert!(
            second - first >= ms(12) && second - first <= ms(25),
            "{:?}",
            second - first
        );
        assert!(third < ms(502), "{third:?}");
    });
}

/// A closed client answers by itself.
#[test]
fn a_client_that_is_closed_asks_the_store_nothing() {
    play(Store::Queues, async |client, store| {
        let (lock, rw) = (client.lock("a").unwrap(), client.rwlock("b").unwrap());
        let writer = rw.write().acquire().await.unwrap();
        let reader = client.rwlock("c").unwrap().read().acquire().await.unwrap();
        client.close().await.unwrap();
        assert_eq!(writer.loss(), Some(LossReason::Closed));
        store.forget();
        let answers = [
            lock.acquire().await.map(drop),
            lock.try_acquire().await.map(drop),
            writer.renew().await,
            writer.downgrade().await,
            reader.try_upgrade().await.map(drop),
        ];
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Closed);
        }
        client.close().await.unwrap();
        assert_eq!(store.asked(), Vec::<String>::new());
    });
}

/// The first waiter asks just after something is known to run out, and the others later and spread:
/// for them it only pays if those before them are dead. All renew their entry at a third of its life.
#[test]
fn queued_waiters_ask_at_rechecks_and_each_third_of_ttl() {
    for (ahead, recheck, earliest, latest) in [
        (0, Some(ms(500)), ms(500), ms(503)),
        (1, Some(ms(500)), ms(500), ms(503)),
        (2, Some(ms(500)), ms(504), ms(1060)),
        (0, Some(s(600)), s(9), ms(10_001)),
        (0, None, s(9), ms(10_001)),
    ] {
        play(Store::Queues, async |client, store| {
            let line = |ahead| recheck.map_or(Queued(ahead), |d| Recheck(ahead, d));
            // It comes forward.
            store.attempts.set([line(7)]);
            let line = line(ahead);
            store.renewals.set(std::iter::repeat_n(line, 20));
            let lock = client.lock("a").unwrap();
            let guard = lock.acquire().await.unwrap();
            for pair in store.times_of("ask 1").windows(2) {
                let pause = pair[1] - pair[0];
                assert!(
                    pause >= earliest && pause <= latest,
                    "{ahead} {recheck:?}: {pause:?}"
                );
            }
            assert_eq!(store.times_of("attempt 1").len(), 1);
            guard.release().await.unwrap();
        });
    }
}

/// Clients that failed in one moment do not come back in one moment.
#[test]
fn pauses_after_failures_double_and_half_of_each_is_random() {
    let shares = std::sync::Mutex::new(Vec::new());
    play(Store::Plain, async |client, store| {
        store.attempts.set_for_ever(Fails(ErrorKind::Unavailable));
        client.lock("a").unwrap().acquire().await.unwrap_err();
        let tries = store.times_of("attempt 1");
        for (n, pair) in tries.windows(2).enumerate() {
            let full = ms(25) * 2_u32.pow(n.min(5) as u32);
            let pause = pair[1] - pair[0];
            assert!(pause >= full / 2 && pause <= full, "{n}: {pause:?}");
            let share = (pause - full / 2).as_secs_f64() / (full / 2).as_secs_f64();
            shares.lock().unwrap().push(share);
        }
    });
    let mut shares = shares.into_inner().unwrap();
    shares.sort_by(f64::total_cmp);
    let (least, middle, most) = (shares[0], shares[shares.len() / 2], shares[shares.len() - 1]);
    assert!(
        least < 0.2 && middle > 0.25 && middle < 0.75 && most > 0.8,
        "{shares:?}"
    );
}

/// The answers to those who ask for their turn, and what becomes of the wait.
#[test]
fn queue_place_survives_transient_errors() {
    use ErrorKind::{BackendData, PermissionDenied, Unavailable};
    let away = |n| vec![Fails(Unavailable); n];
    // About sixty tries take four seconds.
    let on_and_off = [away(50), vec![Queued(0)], away(50)].concat();
    for (asks, outcome, attempts, abandons) in [
        (vec![Yes], None, 1, 0),
        // The store does not know it any more: it joins the line anew.
        (vec![Not], None, 2, 0),
        // It comes late, and is over.
        (vec![Over], None, 2, 1),
        (on_and_off, None, 1, 0),
        (away(200), Some(Unavailable), 1, 1),
        (vec![Fails(PermissionDenied)], Some(PermissionDenied), 1, 1),
        (vec![Panics], Some(BackendData), 1, 1),
    ] {
        play(Store::Queues, async |client, store| {
            store.attempts.set([Queued(0)]);
            store.renewals.set(asks.clone());
            let lock = client.lock("a").unwrap().options(passive()).unwrap();
            let answer = lock.acquire().await;
            assert_eq!(
                answer.as_ref().map_err(|e| e.kind()).err(),
                outcome.as_ref().copied()
            );
            if let Some(Unavailable) = outcome {
                let (asked, now) = (store.times_of("ask 1"), store.now());
                assert!(now - asked[0] >= OP_TIMEOUT && now - asked[0] < OP_TIMEOUT + ms(110));
                for pair in asked.windows(2) {
                    assert!(pair[1] - pair[0] >= ms(50) && pair[1] - pair[0] <= ms(101));
                }
            }
            store.sleep(ms(100)).await;
            let asked = store.asked();
            let count = |what: &str| asked.iter().filter(|a| a.starts_with(what)).count();
            assert_eq!(
                (count("attempt"), count("abandon")),
                (attempts, abandons),
                "{asks:?}"
            );
        });
    }
}

/// One look of a client serves all its waiters of a name. What happened here is looked at at once.
#[test]
fn looks_are_shared_and_immediate_after_a_local_release() {
    for lets_go in ["release", "drop", "downgrade"] {
        play(Store::Queues, async |client, store| {
            *store.polled.lock().unwrap() = Some((ms(100), ms(1000)));
            store.looks.set_for_ever(Not);
            let lock = client.lock("a").unwrap();
            let held = lock.acquire().await.unwrap();
            store.attempts.set(vec![Queued(0), Queued(1), Queued(2)]);
            let waits = async || drop(lock.acquire().await.unwrap());
            let release = async {
                store.sleep(s(8)).await;
                let looks = store.times_of("look");
                assert!(looks[0] >= ms(99) && looks[0] <= ms(110), "{looks:?}");
                let pauses: Vec<_> = looks.windows(2).map(|w| w[1] - w[0]).collect();
                // After those for each newcomer.
                assert!(
                    pauses[2..].iter().all(|p| *p >= ms(75) && *p <= ms(1001)),
                    "{pauses:?}"
                );
                assert!(pauses.last().unwrap() >= &ms(750), "{pauses:?}");
                assert!(!store.asked().iter().any(|what| what.starts_with("ask")));
                store.looks.set([Yes]);
                store.forget();
                let mut kept = None;
                match lets_go {
                    "release" => held.release().await.unwrap(),
                    "drop" => drop(held),
                    _ => kept.insert(held).downgrade().await.unwrap(),
                }
                let released = store.now();
                store.sleep(ms(2)).await;
                let looked = store.times_of("look")[0];
                assert!(looked - released <= ms(1), "{lets_go}: {looked:?}");
                // In one request, the first in line first.
                let asked = store.asked();
                let asks: Vec<_> = asked.iter().filter(|what| what.starts_with("ask")).collect();
                assert_eq!(asks, ["ask 2", "ask 3", "ask 4"], "{lets_go}");
                drop(kept);
            };
            futures::join!(waits(), waits(), waits(), release);
        });
    }
}

/// A store that cannot say whether anything is left says so at once, to all.
#[test]
fn doubt_asks_for_everything_at_once() {
    for signal in [Signal::Doubt, Signal::Back] {
        play(Store::Queues, async |client, store| {
            let held = client.lock("a").unwrap().acquire().await.unwrap();
            let lock = client.lock("b").unwrap().options(passive()).unwrap();
            let _passive = lock.acquire().await.unwrap();
            store.attempts.set([Queued(0)]);
            let third = client.lock("c").unwrap();
            let word = async {
                store.sleep(s(1)).await;
                store.forget();
                store.renewals.set([Yes]);
                store.tell.unbounded_send(signal.clone()).unwrap();
            };
            let (guard, ()) = join(third.acquire(), word).await;
            guard.unwrap();
            assert!(held.remaining() > s(29));
            assert_eq!(store.times_of("renew 1"), [s(1)]);
            assert_eq!(store.times_of("ask 3"), [s(1)]);
            assert_eq!(store.times_of("renew 2").len(), 0);
            // A grant that was on its way, which nobody is to renew.
            store.attempts.set([after(s(1), Yes)]);
            let fourth = client.lock("d").unwrap().options(passive()).unwrap();
            let word = async {
                store.sleep(ms(500)).await;
                store.tell.unbounded_send(Signal::Doubt).unwrap();
            };
            let (guard, ()) = join(fourth.acquire(), word).await;
            store.sleep(s(2)).await;
            assert!(guard.unwrap().is_valid());
            assert_eq!(store.times_of("renew 4").len(), 0);
        });
    }
}

/// What the store names as lost is lost, and given back: the word may be late, and the lease the next one.
#[test]
fn only_leases_reported_lost_are_lost() {
    play(Store::Queues, async |client, store| {
        let (a, b) = (client.lock("a").unwrap(), client.lock("b").unwrap());
        let (a, b) = (a.acquire().await.unwrap(), b.acquire().await.unwrap());
        let these = LostLeases::These(vec![store.key(1)]);
        store
            .tell
            .unbounded_send(Signal::Lost(these, LossReason::SessionLost))
            .unwrap();
        assert_eq!(a.lost().await, LossReason::SessionLost);
        store.sleep(ms(10)).await;
        assert!(b.is_valid());
        assert_eq!(store.asked(), ["attempt 1", "attempt 2", "release 1"]);
    });
}

/// The word of a loss comes before the answer that it is about; or it is of another loss.
#[test]
fn grant_reported_lost_in_transit_makes_no_guard() {
    type Word = fn(&Scripted) -> LostLeases;
    let all: Word = |_| LostLeases::All;
    let this: Word = |store| LostLeases::These(vec![store.key(1)]);
    let others: Word = |_| LostLeases::of(|key| key.name.as_bytes() != b"a");
    let never: Word = |_| LostLeases::of(|_| false);
    for (before, meanwhile, is_lost) in [
        (never, all, true),
        (never, this, true),
        (never, others, false),
        (all, others, false),
        (all, all, true),
    ] {
        play(Store::Queues, async |client, store| {
            let tell = |what: Word| {
                let signal = Signal::Lost(what(store), LossReason::SessionLost);
                store.tell.unbounded_send(signal).unwrap();
            };
            tell(before);
            store.sleep(ms(1)).await;
            store.attempts.set([after(s(1), Yes)]);
            let lock = client.lock("a").unwrap().options(passive()).unwrap();
            let word = async {
                store.sleep(ms(500)).await;
                tell(meanwhile);
            };
            let (guard, ()) = join(lock.acquire(), word).await;
            let key = if is_lost { 2 } else { 1 };
            assert_eq!(guard.unwrap().id(), store.key(key).id);
            let asked: &[&str] = match is_lost {
                true => &["attempt 1", "abandon 1", "attempt 2"],
                false => &["attempt 1"],
            };
            assert_eq!(store.asked(), asked);
        });
    }
}

/// Its entry went with the leases; and who waits to hear of a release of that session hears.
#[test]
fn session_loss_makes_waiters_ask_at_once() {
    play(Store::Session, async |client, store| {
        let held = client.lock("a").unwrap().acquire().await.unwrap();
        let mut events = held.events();
        store.releases.set_for_ever(Fails(ErrorKind::Unavailable));
        drop(held);
        store.attempts.set([Queued(0)]);
        let lock = client.lock("b").unwrap();
        let word = async {
            store.sleep(ms(1_234)).await;
            assert!(events.next().now_or_never().is_none());
            let lost = Signal::Lost(LostLeases::All, LossReason::SessionLost);
            store.tell.unbounded_send(lost).unwrap();
            store.sleep(ms(1)).await;
            let told = events.next().now_or_never();
            assert!(matches!(told, Some(Some(GuardEvent::Lost(_)))), "{told:?}");
        };
        let (guard, ()) = join(lock.acquire(), word).await;
        guard.unwrap();
        assert_eq!(store.times_of("ask 2"), [ms(1_234)]);
    });
}

/// Pushes that end with a connection cost one question; those that never begin are asked for with pauses.
#[test]
fn repeatedly_ended_pushes_are_retried_with_pauses() {
    play(Store::Queues, async |client, store| {
        store.attempts.set(vec![Queued(0); 12]);
        let lock = client.lock("a").unwrap();
        let ends = async {
            store.sleep(s(3)).await;
            for n in 1..12 {
                store.lines.lock().unwrap().clear();
                while store.lines.lock().unwrap().is_empty() {
                    store.sleep(ms(1)).await;
                }
                let asked = store.times_of("attempt 1");
                let pause = asked[n] - asked[n - 1];
                match n {
                    1 => assert!(asked[1] < s(3) + ms(2), "{asked:?}"),
                    _ => assert!(pause >= ms(12) && pause <= ms(900), "{n}: {pause:?}"),
                }
                assert!(n < 8 || pause >= ms(400), "{n}: {pause:?}");
            }
            // One that has lasted for a while is not in that row.
            store.sleep(s(5)).await;
            store.lines.lock().unwrap().clear();
        };
        let (guard, ()) = join(lock.acquire(), ends).await;
        guard.unwrap();
        assert!(store.now() - *store.times_of("attempt 1").last().unwrap() < ms(2));
    });
}

#[test]
fn an_attempt_says_what_was_asked_for() {
    for kind in [Store::Queues, Store::Plain] {
        play(kind, async |client, store| {
            let mut options = LockOptions::new().ttl(s(20)).owner_label("me");
            if kind == Store::Queues {
                options = options.priority(7);
            }
            let rw = client.rwlock("a").unwrap();
            let lock = rw.read().clone().options(options).unwrap();
            drop((lock.try_acquire().await.unwrap(), lock.acquire().await.unwrap()));
            let acquires = store.acquires.lock().unwrap();
            for (request, waits) in acquires.iter().zip([false, true]) {
                let queues = waits && kind == Store::Queues;
                assert_eq!(request.queue == Queueing::Join, queues);
                assert_eq!(request.waits, waits);
                assert_eq!((request.ttl, request.queue_ttl), (s(20), s(20)));
                assert_eq!(request.priority, if kind == Store::Queues { 7 } else { 5 });
                assert_eq!(
                    (request.mode, request.owner.as_deref()),
                    (Mode::READER, Some("me"))
                );
            }
        });
    }
}

/// The first poll of the request takes long by itself.
#[test]
fn a_wait_limit_counts_from_before_the_first_question() {
    play(Store::Queues, async |client, store| {
        store.attempts.set([Stalls(ms(300), Box::new(Queued(0)))]);
        let lock = client.lock("a").unwrap();
        let e = lock.acquire_timeout(s(1)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Timeout);
        assert!(
            store.now() >= s(1) && store.now() < ms(1_010),
            "{:?}",
            store.now()
        );
    });
}

/// With auto-renewal the first renewal confirms it, in the background; where it is too short for that, the
/// guard comes with it confirmed.
#[test]
fn a_claim_window_is_confirmed_in_time() {
    for (window, at_once) in [(s(9), false), (ms(60), true)] {
        play(Store::Queues, async |client, store| {
            store.attempts.set([Provisional(window)]);
            let guard = client.lock("a").unwrap().acquire().await.unwrap();
            assert_eq!(store.times_of("renew 1").len(), usize::from(at_once));
            store.sleep(window * 2).await;
            assert!(guard.is_valid());
            let first = store.times_of("renew 1")[0];
            assert!(first <= window / 3, "{first:?}");
        });
    }
}

/// The end of a client pays what it owes.
#[test]
fn abandons_in_progress_outlive_close() {
    play(Store::Queues, async |client, store| {
        store.attempts.set([Fails(ErrorKind::PermissionDenied)]);
        store.abandons.set([Silence]);
        let lock = client.lock("a").unwrap();
        let closes = async {
            store.sleep(ms(500)).await;
            client.close().await.unwrap();
        };
        let (answer, ()) = join(lock.acquire(), closes).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(store.asked(), ["attempt 1", "abandon 1", "abandon 1", "close"]);
    });
}

/// What changes while it is being asked for may not be in the answer.
#[test]
fn a_change_while_the_store_is_asked_is_asked_for_again() {
    for polled in [false, true] {
        play(Store::Queues, async |client, store| {
            *store.polled.lock().unwrap() = polled.then_some((ms(500), s(5)));
            store.looks.set([Yes, Yes]);
            store.attempts.set([Queued(0)]);
            store.renewals.set([after(s(2), Queued(0)), Yes]);
            let lock = client.lock("a").unwrap();
            let word = async {
                store.sleep(ms(400)).await;
                for _ in 0..2 {
                    if let Some(line) = store.lines.lock().unwrap().first() {
                        line.unbounded_send(Push::Changed).unwrap();
                    }
                    store.sleep(s(1)).await;
                }
            };
            let (guard, ()) = join(lock.acquire(), word).await;
            guard.unwrap();
            let [one, two] = store.times_of("ask 1")[..] else {
                panic!("{:?}", store.asked());
            };
            assert!(two - one >= s(2) && two - one < ms(2_002), "{one:?} {two:?}");
        });
    }
}

/// A new waiter does not wait for the others' next look.
#[test]
fn new_waiter_is_looked_for_soon() {
    play(Store::Queues, async |client, store| {
        *store.polled.lock().unwrap() = Some((ms(100), s(60)));
        store.looks.set_for_ever(Not);
        store.attempts.set([Queued(0), Queued(1)]);
        let lock = client.lock("a").unwrap().options(passive()).unwrap();
        let comes = async {
            store.sleep(s(20)).await;
            assert!(store.times_of("look").len() < 20);
            store.looks.set_for_ever(Yes);
            lock.acquire().await.unwrap();
            store.now()
        };
        let (first, at) = join(lock.acquire(), comes).await;
        first.unwrap();
        assert!(at >= ms(20_099) && at < ms(20_110), "{at:?}");
    });
}

/// And so with a look: what this client lets go of meanwhile may not be in its answer.
#[test]
fn a_change_during_a_look_is_looked_for_again() {
    play(Store::Queues, async |client, store| {
        *store.polled.lock().unwrap() = Some((s(1), s(60)));
        let lock = client.lock("a").unwrap();
        let held = lock.acquire().await.unwrap();
        store.looks.set([after(s(1), Not), Yes]);
        store.attempts.set([Queued(0)]);
        let release = async {
            store.sleep(ms(1_500)).await;
            held.release().await.unwrap();
        };
        let (guard, ()) = join(lock.acquire(), release).await;
        guard.unwrap();
        let [one, two, ..] = store.times_of("look")[..] else {
            panic!("{:?}", store.asked());
        };
        assert!(two - one >= s(1) && two - one < ms(1_002), "{one:?} {two:?}");
    });
}

/// A time limit that was near when the keeper had something else to do is still one.
#[test]
fn a_silent_store_is_given_up_on_time_beside_a_renewal() {
    play(Store::Queues, async |client, store| {
        let every = LockOptions::new().auto_renew(AutoRenew::Every(s(8)));
        let lock = client.lock("a").unwrap().options(every).unwrap();
        let _held = lock.acquire().await.unwrap();
        store.sleep(ms(3_500)).await;
        store.attempts.set([Silence]);
        let e = client.lock("b").unwrap().try_acquire().await.unwrap_err();
        assert_eq!((e.kind(), store.now()), (ErrorKind::Unknown, ms(8_500)));
    });
}

/// Nor through a gate that it handed out before.
#[test]
fn a_gate_ends_with_its_client() {
    let sim = Sim::new(0);
    sim.block_on(async {
        let store = Memory::new(sim.runtime());
        let client = || Client::builder(store.connect(), sim.runtime()).build().unwrap();
        let (closed, other) = (client(), client());
        let gate = closed.gate().unwrap();
        closed.close().await.unwrap();
        let token = Token::new(1).unwrap();
        let refused = gate.write("r", token, b"v").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed);
        assert!(other.gate().unwrap().read("r").await.unwrap().is_none());
    });
}
