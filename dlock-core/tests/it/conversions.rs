//! What is asked for a conversion, and what becomes of the hold.

use dlock_core::{ErrorKind, LockOptions, LossReason};

use crate::asked::{passive, s};
use crate::scripted::Says::*;
use crate::scripted::{Store, after, play};
use crate::world::ms;

/// What a hold is here, and what was asked.
#[test]
fn a_conversion_is_sent_when_the_store_may_have_the_other_mode() {
    use ErrorKind::{InvalidInput, LimitReached, Lost, PermissionDenied, Unavailable, Unknown, Unsupported};
    const UP: &str = "convert 1 to exclusive";
    const DOWN: &str = "convert 1 to shared";
    let (up, down) = (true, false);
    let refused = |why| {
        let calls = vec![(up, Fails(why), Some(why)), (down, Yes, None)];
        (false, calls, false, vec![UP])
    };
    let cases = [
        // Whether it begins as exclusive; upgrades and downgrades with their answers, and what comes of each;
        // whether it is exclusive in the end; what was asked.
        (false, vec![(up, Yes, None), (up, Yes, None)], true, vec![UP]),
        (
            true,
            vec![(down, Yes, None), (down, Yes, None)],
            false,
            vec![DOWN],
        ),
        (
            true,
            vec![(down, Yes, None), (up, Yes, None), (down, Yes, None)],
            false,
            vec![DOWN, UP, DOWN],
        ),
        (false, vec![(up, Not, None), (down, Yes, None)], false, vec![UP]),
        refused(Unavailable),
        refused(LimitReached),
        refused(PermissionDenied),
        refused(InvalidInput),
        refused(Unsupported),
        // The store may have done it all the same.
        (
            false,
            vec![(up, Fails(Unknown), Some(Unknown)), (down, Yes, None)],
            false,
            vec![UP, DOWN],
        ),
        (
            false,
            vec![
                (up, Fails(Unknown), Some(Unknown)),
                (up, Not, None),
                (down, Yes, None),
            ],
            false,
            vec![UP, UP, DOWN],
        ),
        (
            true,
            vec![(down, Fails(Unavailable), Some(Unavailable)), (up, Yes, None)],
            true,
            vec![DOWN],
        ),
        (
            true,
            vec![(down, Fails(Unknown), Some(Unknown)), (up, Yes, Some(Unknown))],
            false,
            vec![DOWN],
        ),
        // It is not held any more.
        (
            true,
            vec![(down, Fails(Lost), Some(Lost)), (down, Yes, Some(Lost))],
            false,
            vec![DOWN],
        ),
    ];
    for (n, (exclusive, calls, ends_exclusive, asked)) in cases.iter().enumerate() {
        play(Store::Queues, async |client, store| {
            let rw = client.rwlock("a").unwrap();
            let lock = if *exclusive { rw.write() } else { rw.read() };
            let guard = lock.clone().options(passive()).unwrap().acquire().await.unwrap();
            store
                .conversions
                .set(calls.iter().map(|(_, says, _)| says.clone()));
            store.forget();
            for (up, _, outcome) in calls {
                let answer = match up {
                    true => guard.try_upgrade().await.map(drop),
                    false => guard.downgrade().await,
                };
                assert_eq!(answer.map_err(|e| e.kind()).err(), *outcome, "case {n}");
            }
            assert_eq!(guard.token(), None);
            if guard.is_valid() {
                assert_eq!(guard.mode().is_exclusive(), *ends_exclusive, "case {n}");
            }
            store.sleep(ms(100)).await;
            assert_eq!(store.asked(), *asked, "case {n}");
        });
    }
}

/// The answer to a conversion came too late: it may be held in the store yet.
#[test]
fn a_conversion_answered_after_the_deadline_is_given_back() {
    play(Store::Queues, async |client, store| {
        let rw = client.rwlock("a").unwrap();
        let lock = rw.read().clone().options(passive()).unwrap();
        let guard = lock.acquire().await.unwrap();
        store.sleep(s(27)).await;
        store.conversions.set([after(s(4), Yes)]);
        let e = guard.try_upgrade().await.unwrap_err();
        assert_eq!(e.loss_reason(), Some(LossReason::Expired));
        store.sleep(ms(100)).await;
        assert_eq!(store.times_of("release 1").len(), 1);
    });
}

/// The store gives it for less than before: it is renewed as often as that needs.
#[test]
fn a_conversion_for_a_short_life_is_renewed_soon() {
    play(Store::Queues, async |client, store| {
        let guard = client.rwlock("a").unwrap().write().acquire().await.unwrap();
        store.conversions.set([For(s(3))]);
        guard.downgrade().await.unwrap();
        store.sleep(ms(1_005)).await;
        assert_eq!(store.times_of("renew 1").len(), 1);
    });
}

#[test]
fn unclaimed_capability_sends_no_request() {
    play(Store::Exclusive, async |client, store| {
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        guard.downgrade().await.unwrap();
        let e = guard.try_upgrade().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert_eq!(store.asked(), ["attempt 1", "convert 1 to shared"]);
    });
}

/// A conversion gives a new life, and what is renewed goes by that.
#[test]
fn a_conversion_starts_the_life_of_a_hold_anew() {
    for store in [Store::Queues, Store::Session] {
        for renews in [true, false] {
            play(store, async |client, store| {
                let options = if renews { LockOptions::new() } else { passive() };
                let rw = client.rwlock("a").unwrap();
                let guard = rw
                    .write()
                    .clone()
                    .options(options)
                    .unwrap()
                    .acquire()
                    .await
                    .unwrap();
                store.sleep(s(8)).await;
                guard.downgrade().await.unwrap();
                // The regular time of the first renewal is over, and that of the new life is not.
                store.sleep(s(8)).await;
                assert_eq!(store.times_of("renew 1").len(), 0);
                let left = guard.remaining();
                assert!(left > s(21) && left < s(22), "{left:?}");
                store.sleep(s(21)).await;
                assert!(guard.is_valid());
                store.sleep(s(2)).await;
                assert_eq!(guard.is_valid(), renews);
            });
        }
    }
}
