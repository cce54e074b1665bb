//! What becomes of a hold, given the answers of the store: renewals, losses, releases, the end of the client.

use std::time::Duration;

use dlock_core::spi::{LostLeases, Signal};
use dlock_core::{AutoRenew, Drift, ErrorKind, Guard, GuardEvent, LockOptions, LossReason};
use futures::future::join;
use futures::{FutureExt as _, StreamExt as _};

use crate::scripted::Says::*;
use crate::scripted::{Store, after, play};
use crate::world::ms;

const OP_TIMEOUT: Duration = Duration::from_secs(5);

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The events that were told so far, in a word each.
fn told(events: &mut dlock_core::GuardEvents) -> Vec<&'static str> {
    std::iter::from_fn(|| match events.next().now_or_never().flatten()? {
        GuardEvent::Renewed => Some("renewed"),
        GuardEvent::RenewalFailed(_) => Some("failed"),
        GuardEvent::HeldLong => Some("long"),
        GuardEvent::Lost(_) => Some("lost"),
        GuardEvent::Released => Some("released"),
        _ => Some("?"),
    })
    .collect()
}

async fn held(client: &dlock_core::Client, options: LockOptions) -> Guard {
    let lock = client.lock("a").unwrap().options(options).unwrap();
    lock.acquire().await.unwrap()
}

/// A renewal whose answer is lost is tried again, ever sooner as the deadline comes near; and what the store
/// has not confirmed by then is lost at the deadline, and given back.
#[test]
fn renewals_that_fail_are_repeated_up_to_the_deadline() {
    for ttl in [ms(900), s(6), s(60), s(600)] {
        for silent in [false, true] {
            play(Store::Queues, async |client, store| {
                let guard = held(
                    &client,
                    LockOptions::new().ttl(ttl).drift_margin(Drift::new(0, ms(1))),
                )
                .await;
                let mut events = guard.events();
                store.renewals.set_for_ever(match silent {
                    true => Silence,
                    false => Fails(ErrorKind::Unavailable),
                });
                let mut ends = Box::pin(guard.lost());
                assert_eq!(ends.as_mut().await, LossReason::Expired);
                assert_eq!(store.now(), ttl - ms(1));
                let tries = store.times_of("renew 1");
                let first = tries[0];
                assert!(first >= ttl * 7 / 24 && first <= ttl / 3, "{first:?}");
                let pauses: Vec<_> = tries.windows(2).map(|w| w[1] - w[0]).collect();
                if silent {
                    // Each has its time: a third of what is left, a sixth of the ttl, no more than an
                    // operation may take where that is enough.
                    assert!(tries.len() >= 3, "{ttl:?}: {tries:?}");
                    let most = (ttl / 6).max((ttl / 4).min(OP_TIMEOUT)).max(ms(100)) + s(1);
                    assert!(
                        pauses.iter().all(|p| *p >= ttl / 6 && *p <= most),
                        "{ttl:?}: {pauses:?}"
                    );
                } else {
                    assert!(pauses.iter().all(|p| *p <= s(1)), "{pauses:?}");
                    assert!(pauses.iter().sum::<Duration>() >= ttl / 2, "{pauses:?}");
                    assert!(*pauses.last().unwrap() <= ms(8), "{pauses:?}");
                }
                assert!(told(&mut events).contains(&"failed"));
                store.sleep(s(2)).await;
                assert_eq!(store.times_of("renew 1").len(), tries.len());
                assert_eq!(store.times_of("release 1").len(), 1);
                // Nothing is left of it for who lets go now.
                assert_eq!(
                    guard.release().await.unwrap_err().loss_reason(),
                    Some(LossReason::Expired)
                );
                assert_eq!(store.times_of("release 1").len(), 1);
            });
        }
    }
}

/// One that goes well in between starts a new life.
#[test]
fn a_confirmed_renewal_moves_the_deadline_and_the_next_one() {
    play(Store::Queues, async |client, store| {
        let guard = held(&client, LockOptions::new().auto_renew(AutoRenew::Every(s(4)))).await;
        let mut events = guard.events();
        store.sleep(ms(20_500)).await;
        assert_eq!(store.times_of("renew 1"), [4, 8, 12, 16, 20].map(s));
        assert_eq!(told(&mut events), ["renewed"; 5]);
        let left = guard.remaining();
        assert!(left > s(29) && left < ms(29_500), "{left:?}");
        // Given for less than was asked for: renewed as often as that needs.
        store.renewals.set_for_ever(For(s(4)));
        store.sleep(ms(10_100)).await;
        let last = store.times_of("renew 1").split_off(5);
        assert_eq!(last, [24, 26, 28, 30].map(s));
        assert_eq!(guard.ttl(), s(4));
        // A guard is never believed for less than it was told.
        store.renewals.set([Not]);
        store.sleep(s(2)).await;
        assert_eq!(guard.loss(), Some(LossReason::Refused));
        store.sleep(s(10)).await;
        // The store says itself that it is not held: nothing is given back.
        assert_eq!(store.times_of("release 1").len(), 0);
    });
}

#[test]
fn manual_renewal_returns_the_stores_answer() {
    for (says, outcome, releases) in [
        (Yes, None, 0),
        (Fails(ErrorKind::Unavailable), Some(ErrorKind::Unavailable), 0),
        (Not, Some(ErrorKind::Lost), 0),
        (Over, None, 0),
        (Panics, Some(ErrorKind::BackendData), 0),
        (after(s(31), Yes), Some(ErrorKind::Unknown), 0),
        (after(s(4), Yes), Some(ErrorKind::Lost), 1),
    ] {
        play(Store::Queues, async |client, store| {
            let guard = held(&client, LockOptions::new().auto_renew(AutoRenew::Off)).await;
            let mut events = guard.events();
            let late = releases > 0;
            store.sleep(if late { s(27) } else { s(10) }).await;
            store.renewals.set([says.clone()]);
            assert_eq!(
                guard.renew().await.map_err(|e| e.kind()).err(),
                outcome,
                "{says:?}"
            );
            let expected: &[&str] = match (&says, outcome) {
                (_, None) => &["renewed"],
                (_, Some(ErrorKind::Unavailable | ErrorKind::Unknown)) => &["failed"],
                (_, Some(ErrorKind::Lost)) => &["lost"],
                _ => &[],
            };
            assert_eq!(told(&mut events), *expected, "{says:?}");
            store.sleep(s(1)).await;
            assert_eq!(store.times_of("release 1").len(), releases, "{says:?}");
            if let Yes = says {
                let left = guard.remaining();
                assert!(left > s(28) && left < s(29), "{left:?}");
                store.sleep(s(30)).await;
                assert_eq!(guard.loss(), Some(LossReason::Expired));
            }
            if outcome == Some(ErrorKind::Lost) {
                let e = guard.renew().await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Lost);
                assert_eq!(store.times_of("renew 1").len(), 1, "{says:?}");
            }
        });
    }
}

/// The store is asked until it answers, and no longer than there can be anything to release.
#[test]
fn a_release_is_repeated_until_answered_or_lapsed() {
    use ErrorKind::{Closed, Unavailable, Unknown};
    for (releases, outcome, asked) in [
        (vec![Yes], None, 1),
        (vec![Not], Some(ErrorKind::Lost), 1),
        (vec![Fails(Unavailable), Fails(Unknown), Yes], Some(Unknown), 3),
        (vec![Silence, Yes], Some(Unknown), 2),
        (vec![Fails(Unavailable), Not], Some(Unknown), 2),
        (vec![Fails(Unavailable), Panics, Yes], Some(Unknown), 3),
        (vec![Fails(Unavailable), Fails(Closed), Yes], Some(Unknown), 2),
    ] {
        for dropped in [false, true] {
            play(Store::Queues, async |client, store| {
                let guard = held(&client, LockOptions::new()).await;
                let (held, mut events) = (guard.held(), guard.events());
                store.releases.set(releases.iter().cloned());
                if dropped {
                    drop(guard);
                } else {
                    let answer = guard.release().await.map_err(|e| e.kind());
                    assert_eq!(answer.err(), outcome, "{releases:?}");
                }
                assert!(!held.is_valid());
                store.sleep(s(100)).await;
                assert_eq!(store.times_of("release 1").len(), asked, "{releases:?}");
                let released = matches!(releases.last(), Some(Yes)) && asked == releases.len();
                let expected = if released { "released" } else { "lost" };
                assert_eq!(told(&mut events), [expected], "{releases:?}");
                let loss = (!released).then_some(LossReason::Refused);
                assert_eq!(held.loss(), loss, "{releases:?}");
            });
        }
    }
    for store in [Store::Queues, Store::Session] {
        play(store, async |client, store| {
            let guard = held(&client, LockOptions::new()).await;
            store.releases.set_for_ever(Fails(Unavailable));
            drop(guard);
            store.sleep(s(200)).await;
            let tries = store.times_of("release 1");
            for (n, pair) in tries.windows(2).enumerate().take(8) {
                let full = ms(25) * 2_u32.pow(n.min(5) as u32);
                let pause = pair[1] - pair[0];
                assert!(pause >= full / 2 && pause <= full, "{n}: {pause:?}");
            }
            let last = *tries.last().unwrap();
            // A session keeps its leases for as long as it lives.
            match client.capabilities().nature {
                dlock_core::Nature::Session => assert!(last > s(198), "{last:?}"),
                _ => assert!(last > s(33) && last <= s(35), "{last:?}"),
            }
        });
    }
}

#[test]
fn retried_release_keeps_the_remaining_minimum_hold() {
    play(Store::Queues, async |client, store| {
        let guard = held(&client, LockOptions::new().min_hold(s(10))).await;
        store.sleep(s(4)).await;
        store.releases.set([
            Fails(ErrorKind::Unavailable),
            Silence,
            Fails(ErrorKind::Unavailable),
        ]);
        drop(guard);
        store.sleep(s(20)).await;
        let asked: Vec<_> = store
            .asked()
            .into_iter()
            .filter(|what| what.starts_with("release"))
            .collect();
        assert_eq!(asked[0], "release 1 and keep for 6s");
        assert!(asked[1].starts_with("release 1 and keep for 5.9"), "{asked:?}");
        assert!(
            asked[2].starts_with("release 1 and keep for 0.9") || asked[2].contains("ms"),
            "{asked:?}"
        );
        let guard = held(&client, LockOptions::new().min_hold(s(10))).await;
        store.sleep(s(10)).await;
        guard.release().await.unwrap();
        assert_eq!(store.times_of("release 2").len(), 1);
    });
}

/// However the store answers, the end of a client takes no longer than an operation, and the connection is
/// closed last.
#[test]
fn the_end_of_a_client_gives_everything_back_and_is_limited() {
    for (releases, closes, least, most) in [
        (Yes, Yes, s(0), ms(10)),
        (after(ms(2_300), Yes), Yes, ms(2_300), ms(2_310)),
        (
            Fails(ErrorKind::Unavailable),
            Yes,
            OP_TIMEOUT,
            OP_TIMEOUT + ms(10),
        ),
        (Silence, Yes, OP_TIMEOUT, OP_TIMEOUT + ms(10)),
        (Yes, Silence, OP_TIMEOUT, OP_TIMEOUT + ms(10)),
        (Yes, Panics, s(0), ms(10)),
        (Yes, Fails(ErrorKind::Unavailable), s(0), ms(10)),
        (Silence, Silence, 2 * OP_TIMEOUT, 2 * OP_TIMEOUT + ms(10)),
    ] {
        play(Store::Queues, async |client, store| {
            let guard = held(&client, LockOptions::new()).await;
            let mut events = guard.events();
            store.attempts.set([Queued(0)]);
            let waits = client.lock("b").unwrap();
            store.releases.set_for_ever(releases.clone());
            store.closes.set([closes.clone()]);
            let ends = async {
                store.sleep(ms(1_234)).await;
                let (one, two) = join(client.close(), client.close()).await;
                one.unwrap();
                two.unwrap();
            };
            let (waited, ()) = join(waits.acquire(), ends).await;
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::Closed);
            let took = store.now() - ms(1_234);
            assert!(
                took >= least && took <= most,
                "{releases:?}, {closes:?}: {took:?}"
            );
            assert_eq!(guard.loss(), Some(LossReason::Closed));
            assert_eq!(told(&mut events), ["lost"]);
            let mut asked = store.asked();
            assert_eq!(asked.pop().as_deref(), Some("close"));
            for what in ["release 1", "abandon 2"] {
                assert!(asked.iter().any(|a| a == what), "{what} in {asked:?}");
            }
            // Nothing is asked after the end.
            store.forget();
            drop(guard);
            store.sleep(s(100)).await;
            assert_eq!(store.asked(), Vec::<String>::new());
        });
    }
}

/// Who holds nothing, waits for nothing and owes nothing costs nothing.
#[test]
fn a_client_with_nothing_to_do_sleeps() {
    for polled in [None, Some((ms(5), ms(50)))] {
        play(Store::Queues, async |client, store| {
            *store.polled.lock().unwrap() = polled;
            store.looks.set_for_ever(Not);
            // Far longer than it is looked at: whatever is forgotten here would be in the timers yet.
            let long = LockOptions::new().ttl(s(12 * 3600));
            let lock = client.lock("a").unwrap().options(long).unwrap();
            lock.acquire().await.unwrap().release().await.unwrap();
            drop(lock.acquire().await.unwrap());
            store.sleep(ms(100)).await;
            store
                .attempts
                .set([after(ms(10), Fails(ErrorKind::Unavailable)), after(ms(10), Yes)]);
            store
                .releases
                .set([after(ms(10), Fails(ErrorKind::Unavailable)), after(ms(10), Yes)]);
            lock.acquire().await.unwrap().release().await.unwrap_err();
            store.attempts.set([Queued(0)]);
            lock.acquire_timeout(s(1)).await.unwrap_err();
            store.attempts.set([Held]);
            lock.acquire_timeout(ms(100)).await.unwrap_err();
            let lost = lock.acquire().await.unwrap();
            store
                .tell
                .unbounded_send(Signal::Lost(LostLeases::All, LossReason::SessionLost))
                .unwrap();
            assert_eq!(lost.lost().await, LossReason::SessionLost);
            let passive = LockOptions::new().ttl(s(30)).auto_renew(AutoRenew::Off);
            let passive = lock.clone().options(passive).unwrap();
            let expires = passive.acquire().await.unwrap();
            assert_eq!(expires.lost().await, LossReason::Expired);
            store.sleep(s(60)).await;
            store.forget();
            let before = store.sleeps();
            store.sleep(s(3600)).await;
            assert_eq!(store.sleeps() - before, 1, "and this one is of the test");
            assert_eq!(store.asked(), Vec::<String>::new());
        });
    }
}

/// A hold that is held long is told of again and again, and no more often than was asked for.
#[test]
fn long_hold_is_reported_repeatedly() {
    play(Store::Queues, async |client, store| {
        let options = LockOptions::new().warn_after(s(3)).auto_renew(AutoRenew::Off);
        let guard = held(&client, options.ttl(s(60))).await;
        let mut events = guard.events();
        store.sleep(ms(2_990)).await;
        assert_eq!(told(&mut events), Vec::<&str>::new());
        for _ in 0..5 {
            store.sleep(ms(20)).await;
            assert_eq!(told(&mut events), ["long"]);
            store.sleep(ms(2_980)).await;
            assert_eq!(told(&mut events), Vec::<&str>::new());
        }
    });
}

/// A part of the store hangs: what is elsewhere is released all the same. One that answers is not flooded.
#[test]
fn releases_make_room_for_more_when_none_is_answered() {
    // Unanswered or answered, this often again; and anew when all is quiet again.
    for (releases, times) in [(Silence, 1), (after(ms(95), Yes), 2), (after(ms(260), Yes), 2)] {
        play(Store::Queues, async |client, store| {
            store.releases.set_for_ever(releases.clone());
            for _ in 0..times {
                let mut guards = Vec::new();
                for n in 0..200 {
                    guards.push(client.lock(format!("name{n}")).unwrap().acquire().await.unwrap());
                }
                store.forget();
                drop(guards);
                store.sleep(ms(50)).await;
                for sent in [64, 128, 192, 200] {
                    assert_eq!(store.asked().len(), sent, "{releases:?}");
                    store.sleep(ms(100)).await;
                }
                store.sleep(s(2)).await;
            }
        });
    }
}

/// The last moment at which anything of it can be in the store: at the end of its life in the line it may
/// have been granted for a ttl. A session keeps what it has for as long as it lives.
#[test]
fn abandon_is_retried_for_as_long_as_it_matters() {
    for store in [Store::Queues, Store::Session] {
        play(store, async |client, store| {
            store.attempts.set([Silence]);
            store.abandons.set_for_ever(Fails(ErrorKind::Unavailable));
            let lock = client.lock("a").unwrap();
            assert!(lock.try_acquire().now_or_never().is_none());
            store.sleep(s(200)).await;
            let last = *store.times_of("abandon 1").last().unwrap();
            match client.capabilities().nature {
                dlock_core::Nature::Session => assert!(last > s(198), "{last:?}"),
                _ => assert!(last > s(64) && last <= s(65), "{last:?}"),
            }
        });
    }
}

/// Past half of its life, or granted for less than half of what it asks for. What delays it would delay
/// others of the same request: here all that comes after it.
#[test]
fn a_lease_that_is_short_of_time_is_renewed_apart() {
    for (granted, every, later) in [(Yes, s(10), ms(5_900)), (For(s(12)), s(3), ms(0))] {
        play(Store::Queues, async |client, store| {
            let options = LockOptions::new().auto_renew(AutoRenew::Every(every));
            store.attempts.set([granted.clone()]);
            store.renewals.set_for_ever(Silence);
            let short = held(&client, options.clone()).await;
            store.sleep(later).await;
            let lock = client.lock("b").unwrap().options(options).unwrap();
            let other = lock.acquire().await.unwrap();
            store.sleep(every + ms(200)).await;
            let at = store.now();
            let last = |n| store.times_of(n).pop().unwrap();
            assert!(at - last("renew 1") < s(1), "{:?} at {at:?}", store.asked());
            assert!(at - last("renew 2") < s(1), "{:?} at {at:?}", store.asked());
            drop((short, other));
        });
    }
}

/// A renewal by hand is one: the next is due a period later, or as soon as the new life needs it.
#[test]
fn a_renewal_by_hand_moves_the_next_one() {
    for (life, earliest, latest) in [
        (s(30), ms(8_749), ms(10_002)),
        (s(3), ms(874), ms(1_002)),
        (ms(900), ms(262), ms(302)),
    ] {
        play(Store::Queues, async |client, store| {
            let guard = held(&client, LockOptions::new()).await;
            store.sleep(ms(5_100)).await;
            store.renewals.set([For(life)]);
            guard.renew().await.unwrap();
            store.sleep(s(12)).await;
            let [by_hand, next] = store.times_of("renew 1")[..2] else {
                panic!("{:?}", store.asked());
            };
            let pause = next - by_hand;
            assert!(pause >= earliest && pause <= latest, "{pause:?}");
        });
    }
}

/// Nobody has looked at the clock while the deadline passed: the first to look does the rest.
#[test]
fn a_loss_that_its_own_guard_finds_is_given_back() {
    for how in ["looks", "releases", "drops"] {
        play(Store::Queues, async |client, store| {
            let guard = held(&client, LockOptions::new()).await;
            let mut events = guard.events();
            store.stall(s(31));
            match how {
                "looks" => assert!(!guard.is_valid()),
                "releases" => {
                    let e = guard.release().now_or_never().unwrap().unwrap_err();
                    assert_eq!(e.loss_reason(), Some(LossReason::Expired));
                }
                _ => drop(guard),
            }
            assert_eq!(told(&mut events), ["lost"], "{how}");
            store.sleep(s(2)).await;
            assert_eq!(store.times_of("release 1").len(), 1, "{how}");
        });
    }
}

/// A copy of its request may still be on its way when the store says that it is not held.
#[test]
fn a_refused_hold_whose_request_may_come_late_is_abandoned() {
    for late in [false, true] {
        play(Store::Queues, async |client, store| {
            store.attempts.set(late.then_some(Fails(ErrorKind::Unknown)));
            let guard = held(&client, LockOptions::new()).await;
            store.renewals.set([Not]);
            assert_eq!(guard.lost().await, LossReason::Refused);
            store.sleep(s(1)).await;
            assert_eq!(store.times_of("abandon 1").len(), usize::from(late));
        });
    }
}

/// All leases of a session live with it. One that nobody renews lasts for its ttl, whatever the session owes.
#[test]
fn a_hold_without_renewal_is_kept_by_its_session_for_its_ttl() {
    play(Store::Session, async |client, store| {
        store.attempts.set([For(s(6))]);
        store.renewals.set_for_ever(For(s(6)));
        let guard = held(&client, LockOptions::new().auto_renew(AutoRenew::Off)).await;
        assert_eq!(guard.ttl(), s(30));
        assert_eq!(guard.lost().await, LossReason::Expired);
        let at = store.now();
        assert!(at > s(29) && at < s(30), "{at:?}");
        // By hand it starts anew.
        let guard = held(&client, LockOptions::new().auto_renew(AutoRenew::Off)).await;
        store.sleep(s(20)).await;
        guard.renew().await.unwrap();
        store.sleep(s(20)).await;
        assert!(guard.is_valid());
        store.sleep(s(10)).await;
        assert!(!guard.is_valid());
    });
}

/// The timers of a runtime stand still while the machine is suspended, and leases do not.
#[test]
fn clock_is_checked_every_second_while_holding() {
    play(Store::Queues, async |client, store| {
        let guard = held(&client, LockOptions::new().ttl(s(600))).await;
        let before = store.sleeps();
        store.sleep(s(20)).await;
        assert!(store.sleeps() - before >= 20, "{}", store.sleeps() - before);
        drop(guard);
    });
}

/// Guards keep the keeper, and what is owed does: as long as it can be of use.
#[test]
fn the_keeper_ends_with_the_last_that_needs_it() {
    for (releases, owed_for) in [(Yes, s(0)), (Fails(ErrorKind::Unavailable), s(35))] {
        play(Store::Queues, async |client, store| {
            let guard = held(&client, LockOptions::new()).await;
            store.releases.set_for_ever(releases.clone());
            drop(client);
            store.sleep(ms(1_234)).await;
            assert!(guard.is_valid());
            let began = store.now();
            drop(guard);
            while store.tasks() > 0 {
                store.sleep(ms(1)).await;
            }
            let took = store.now() - began;
            assert!(took >= owed_for && took < owed_for + ms(10), "{took:?}");
            // Other clients may share the backend.
            assert!(!store.asked().contains(&"close".to_owned()));
        });
    }
}

#[test]
fn an_aborted_client_ends_its_holds_and_asks_nothing_more() {
    play(Store::Queues, async |client, store| {
        let guard = held(&client, LockOptions::new()).await;
        store.attempts.set([Queued(0), Silence]);
        let (b, c) = (client.lock("b").unwrap(), client.lock("c").unwrap());
        let aborts = async {
            store.sleep(ms(1_234)).await;
            store.forget();
            client.abort();
            assert_eq!(guard.lost().await, LossReason::Closed);
        };
        let (waits, silent, ()) = futures::join!(b.acquire(), c.acquire(), aborts);
        assert_eq!(waits.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::Closed);
        assert!(store.now() < ms(1_240), "{:?}", store.now());
        drop(guard);
        client.close().await.unwrap();
        store.sleep(s(100)).await;
        assert_eq!((store.tasks(), store.asked()), (0, Vec::new()));
    });
}

/// Nothing is under way any more when the connection is closed.
#[test]
fn a_client_closes_its_connection_when_all_is_answered() {
    for what in ["renews", "releases", "tries"] {
        play(Store::Queues, async |client, store| {
            let guard = held(&client, LockOptions::new().auto_renew(AutoRenew::Every(s(2)))).await;
            if what != "tries" {
                store.renewals.set([after(s(2), Yes)]);
            }
            store.releases.set([after(s(2), Yes)]);
            store.attempts.set([after(s(2), Yes)]);
            let other = client.lock("b").unwrap();
            store.sleep(ms(2_111)).await;
            let closes = async {
                store.sleep(ms(222)).await;
                client.close().await.unwrap();
                store.now()
            };
            let least = match what {
                "renews" => {
                    store.releases.set([Yes]);
                    let (_, at) = join(guard.lost(), closes).await;
                    assert!(at < ms(4_010), "{at:?}");
                    s(4)
                }
                "releases" => {
                    store.renewals.set([Yes]);
                    let (released, at) = join(guard.release(), closes).await;
                    released.unwrap_err();
                    assert!(at < ms(4_400), "{at:?}");
                    ms(2_333)
                }
                _ => {
                    store.releases.set([Yes]);
                    let (tried, at) = join(other.try_acquire(), closes).await;
                    assert_eq!(tried.unwrap_err().kind(), ErrorKind::Closed);
                    assert!(at < ms(2_340), "{at:?}");
                    ms(2_333)
                }
            };
            assert!(store.now() >= least, "{what}: {:?}", store.now());
            assert_eq!(store.asked().last().unwrap(), "close");
        });
    }
}

/// Sixty-four at a time; where none of them is answered, as many more each tenth of a second.
#[test]
fn releases_go_on_beside_those_that_hang() {
    for hang in [false, true] {
        play(Store::Queues, async |client, store| {
            let mut guards = Vec::new();
            for n in 0..300 {
                let lock = client.lock(&*format!("n{n}")).unwrap();
                guards.push(lock.acquire().await.unwrap());
            }
            let began = store.now();
            match hang {
                true => store.releases.set(vec![Silence; 130]),
                false => store.releases.set(vec![after(ms(10), Yes); 300]),
            }
            drop(guards);
            store.sleep(ms(5)).await;
            let releases = || {
                let all = store.asked();
                all.iter().filter(|what| what.starts_with("release")).count()
            };
            assert_eq!(releases(), 64);
            store.sleep(if hang { ms(240) } else { ms(50) }).await;
            assert_eq!(releases(), 300, "{:?}", store.now() - began);
            // Those that hang leave room for one more.
            drop(client.lock("more").unwrap().acquire().await.unwrap());
            store.sleep(ms(5)).await;
            assert_eq!(releases(), 301);
        });
    }
}

/// What ran out in the store before its turn came is not asked for, and keeps nobody.
#[test]
fn releases_that_wait_longer_than_their_leases_live_are_moot() {
    play(Store::Queues, async |client, store| {
        let passive = LockOptions::new().ttl(s(1)).auto_renew(AutoRenew::Off);
        let lock = |n: u32| {
            client
                .lock(&*format!("n{n}"))
                .unwrap()
                .options(passive.clone())
                .unwrap()
        };
        let mut guards = Vec::new();
        for n in 0..3_000 {
            guards.push(lock(n).acquire().await.unwrap());
        }
        store.releases.set_for_ever(Silence);
        drop((guards, client));
        store.sleep(3 * OP_TIMEOUT).await;
        let all = store.asked();
        let asked = all.iter().filter(|what| what.starts_with("release")).count();
        assert!((1_024..2_500).contains(&asked), "{asked}");
        assert_eq!(store.tasks(), 0);
    });
}

/// At once, and not when it would look at something next.
#[test]
fn the_keeper_ends_with_its_last_user() {
    play(Store::Queues, async |client, store| {
        let guard = held(&client, LockOptions::new().ttl(s(3600))).await;
        assert_eq!(store.tasks(), 1);
        drop(client);
        store.sleep(ms(1)).await;
        assert_eq!(store.tasks(), 1);
        drop(guard);
        store.sleep(ms(1)).await;
        assert_eq!(store.tasks(), 0);
    });
    play(Store::Queues, async |client, store| {
        store.sleep(ms(1)).await;
        drop(client);
        store.sleep(ms(1)).await;
        assert_eq!(store.tasks(), 0);
    });
}
