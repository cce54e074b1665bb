//! What an acquire leaves in the store when it fails, or comes too late: nothing.

use std::pin::pin;
use std::time::Duration;

use dlock_core::spi::Push;
use dlock_core::{Client, ErrorKind};
use futures::future::{Either, join, select};

use crate::asked::{OP_TIMEOUT, passive, s};
use crate::scripted::Says::*;
use crate::scripted::{Says, Scripted, Store, after, play};
use crate::world::ms;

/// What becomes of an acquire: `Ok(true)` a guard, `Ok(false)` none.
type Outcome = Result<bool, ErrorKind>;

#[derive(Clone, Copy)]
enum Asks {
    Tries,
    Waits,
    WaitsFor(Duration),
}

/// One acquire without auto-renewal, the release of what it got, and what comes in the background.
async fn acquire(client: &Client, store: &Scripted, asks: Asks) -> Outcome {
    let lock = client.lock("a").unwrap().options(passive()).unwrap();
    let got = match asks {
        Asks::Tries => lock.try_acquire().await,
        Asks::Waits => lock.acquire().await.map(Some),
        Asks::WaitsFor(limit) => lock.acquire_timeout(limit).await.map(Some),
    };
    let outcome = match got {
        Ok(Some(guard)) => guard.release().await.map(|()| true),
        Ok(None) => Ok(false),
        Err(e) => Err(e),
    };
    store.sleep(s(100)).await;
    outcome.map_err(|e| e.kind())
}

/// Nothing is left in the store of what was asked for and not had. What cannot be there is not given back.
#[test]
fn possible_grant_is_given_back_exactly_once() {
    use ErrorKind::{InvalidInput, PermissionDenied, Timeout, Unavailable, Unknown, Unsupported};
    type Case<'a> = (Asks, &'a [Says], &'a [Says], &'a [Says], Outcome, &'a [&'a str]);
    let [tries, waits, limited] = [Asks::Tries, Asks::Waits, Asks::WaitsFor(s(1))];
    let as_long_as_an_operation = Asks::WaitsFor(OP_TIMEOUT);
    let provisional = Provisional(s(10));
    let none: &[Says] = &[];
    // How it asks; the answers to attempts, renewals and abandons; what comes of it; what was asked.
    let cases: &[Case] = &[
        (waits, &[Yes], none, none, Ok(true), &["attempt 1", "release 1"]),
        (tries, &[Held], none, none, Ok(false), &["attempt 1"]),
        // Refused before it was in the store.
        (
            waits,
            &[Fails(InvalidInput)],
            none,
            none,
            Err(InvalidInput),
            &["attempt 1"],
        ),
        (
            waits,
            &[Fails(Unsupported)],
            none,
            none,
            Err(Unsupported),
            &["attempt 1"],
        ),
        // The same, and a copy of before may have got there.
        (
            waits,
            &[Fails(Unknown), Fails(InvalidInput)],
            none,
            none,
            Err(InvalidInput),
            &["attempt 1", "attempt 1", "abandon 1"],
        ),
        (
            tries,
            &[Fails(Unknown), Held],
            none,
            none,
            Ok(false),
            &["attempt 1", "attempt 1", "abandon 1"],
        ),
        (
            tries,
            &[Fails(Unavailable), Held],
            none,
            none,
            Ok(false),
            &["attempt 1", "attempt 1"],
        ),
        (
            waits,
            &[Fails(Unknown), Yes],
            none,
            none,
            Ok(true),
            &["attempt 1", "attempt 1", "release 1", "abandon 1"],
        ),
        // Refused after a part of it was done.
        (
            waits,
            &[Fails(PermissionDenied)],
            none,
            none,
            Err(PermissionDenied),
            &["attempt 1", "abandon 1"],
        ),
        (
            waits,
            &[Fails(PermissionDenied)],
            none,
            &[Fails(Unavailable)],
            Err(PermissionDenied),
            &["attempt 1", "abandon 1", "abandon 1"],
        ),
        // And giving it back is refused as well.
        (
            waits,
            &[Fails(PermissionDenied)],
            none,
            &[Fails(PermissionDenied)],
            Err(PermissionDenied),
            &["attempt 1", "abandon 1"],
        ),
        (
            waits,
            &[Fails(PermissionDenied)],
            none,
            &[Not],
            Err(PermissionDenied),
            &["attempt 1", "abandon 1"],
        ),
        // Over before its answer came.
        (
            waits,
            &[Over],
            none,
            none,
            Ok(true),
            &["attempt 1", "abandon 1", "attempt 2", "release 2"],
        ),
        (
            tries,
            &[Over],
            none,
            &[Fails(Unavailable)],
            Ok(true),
            &["attempt 1", "abandon 1", "abandon 1", "attempt 2", "release 2"],
        ),
        // The wait limit runs out while it is given back.
        (
            limited,
            &[Over],
            none,
            &[Silence],
            Err(Timeout),
            &["attempt 1", "abandon 1", "abandon 1"],
        ),
        (
            limited,
            &[Over],
            none,
            &[Silence, Silence],
            Err(Unknown),
            &["attempt 1", "abandon 1", "abandon 1", "abandon 1"],
        ),
        (
            waits,
            &[Fails(Unknown), Over],
            none,
            none,
            Ok(true),
            &["attempt 1", "attempt 1", "abandon 1", "attempt 2", "release 2"],
        ),
        (
            waits,
            &[Over, Fails(InvalidInput)],
            none,
            none,
            Err(InvalidInput),
            &["attempt 1", "abandon 1", "attempt 2"],
        ),
        (
            waits,
            &[Fails(Unavailable), Over, Fails(InvalidInput)],
            none,
            none,
            Err(InvalidInput),
            &["attempt 1", "attempt 1", "abandon 1", "attempt 2"],
        ),
        // A grant that has to be confirmed.
        (
            waits,
            std::slice::from_ref(&provisional),
            none,
            none,
            Ok(true),
            &["attempt 1", "renew 1", "release 1"],
        ),
        (
            waits,
            std::slice::from_ref(&provisional),
            &[Not],
            none,
            Ok(true),
            &["attempt 1", "renew 1", "abandon 1", "attempt 2", "release 2"],
        ),
        (
            waits,
            std::slice::from_ref(&provisional),
            &[Fails(Unsupported)],
            none,
            Err(Unsupported),
            &["attempt 1", "renew 1", "abandon 1"],
        ),
        // The wait limit runs out.
        (
            limited,
            &[Queued(0)],
            none,
            none,
            Err(Timeout),
            &["attempt 1", "abandon 1"],
        ),
        (
            limited,
            &[Queued(0)],
            none,
            &[Fails(Unavailable)],
            Err(Unknown),
            &["attempt 1", "abandon 1", "abandon 1"],
        ),
        (
            limited,
            &[Silence],
            none,
            none,
            Err(Timeout),
            &["attempt 1", "abandon 1"],
        ),
        (
            as_long_as_an_operation,
            &[Silence],
            none,
            none,
            Err(Timeout),
            &["attempt 1", "abandon 1"],
        ),
    ];
    for (n, (asks, attempts, renewals, abandons, outcome, asked)) in cases.iter().enumerate() {
        play(Store::Queues, async |client, store| {
            store.attempts.set(attempts.iter().cloned());
            store.renewals.set(renewals.iter().cloned());
            store.abandons.set(abandons.iter().cloned());
            assert_eq!(acquire(&client, store, *asks).await, *outcome, "case {n}");
            assert_eq!(store.asked(), *asked, "case {n}");
        });
    }
}

/// A grant that came too late is in the store until it is given back, and would be in the way.
#[test]
fn next_attempt_waits_until_a_late_grant_is_given_back() {
    play(Store::Plain, async |client, store| {
        store.attempts.set([Over]);
        store.abandons.set([after(s(1), Yes)]);
        assert_eq!(acquire(&client, store, Asks::Tries).await, Ok(true));
        let [given_back, next] = ["abandon 1", "attempt 2"].map(|what| store.times_of(what)[0]);
        assert!(next - given_back >= s(1), "{given_back:?} {next:?}");
    });
}

/// A grant that is over and that cannot be given back fails the acquire as a lost answer does. Whoever ends
/// that wait leaves nothing either.
#[test]
fn late_grant_that_stays_fails_the_acquire_in_time() {
    for (store, ends) in [
        (Store::Queues, None),
        (Store::Plain, None),
        (Store::Plain, Some("drop")),
        (Store::Plain, Some("close")),
    ] {
        play(store, async |client, store| {
            store.attempts.set([Over]);
            store.abandons.set([Silence]);
            let began = store.now();
            let lock = client.lock("a").unwrap().options(passive()).unwrap();
            let end = async {
                match ends {
                    None => std::future::pending().await,
                    Some(_) => store.sleep(s(1)).await,
                }
                if ends == Some("close") {
                    client.close().await.unwrap();
                }
            };
            match select(pin!(lock.acquire()), pin!(end)).await {
                Either::Left((got, _)) => {
                    let e = got.unwrap_err();
                    let (kind, at) = match ends {
                        None => (ErrorKind::Unknown, OP_TIMEOUT),
                        Some(_) => (ErrorKind::Closed, s(1)),
                    };
                    assert_eq!(e.kind(), kind, "{e}");
                    let took = store.now() - began;
                    assert!(took >= at && took < at + ms(110), "{took:?}");
                }
                Either::Right(_) => assert!(ends.is_some()),
            }
            store.sleep(s(1)).await;
            let asked = store.asked();
            assert_eq!(asked[..3], ["attempt 1", "abandon 1", "abandon 1"], "{ends:?}");
            assert!(asked[3..].iter().all(|what| what == "close"), "{asked:?}");
        });
    }
}

/// A store that cannot be asked: it is tried for as long as an operation may take.
#[test]
fn store_away_for_too_long_fails_the_acquire() {
    use ErrorKind::{Unavailable, Unknown};
    for store in [Store::Queues, Store::Plain] {
        for (first, then, confirms, outcome, owes) in [
            (vec![], Unavailable, false, Unavailable, false),
            (vec![], Unknown, false, Unknown, true),
            (vec![Fails(Unknown)], Unavailable, false, Unknown, true),
            (vec![Held], Unavailable, false, Unavailable, false),
            (
                vec![Provisional(s(60)); 500],
                Unavailable,
                true,
                Unavailable,
                true,
            ),
        ] {
            play(store, async |client, store| {
                match confirms {
                    true => store.renewals.set_for_ever(Fails(then)),
                    false => store.attempts.set_for_ever(Fails(then)),
                }
                store.attempts.begin_with(first.clone());
                store.abandons.set_for_ever(Yes);
                let began = store.now();
                let lock = client.lock("a").unwrap().options(passive()).unwrap();
                let waiting = lock.acquire();
                let poke = async {
                    store.sleep(ms(1)).await;
                    if let Some(line) = store.lines.lock().unwrap().first() {
                        line.unbounded_send(Push::Changed).unwrap();
                    }
                };
                let (answer, ()) = join(waiting, poke).await;
                let took = store.now() - began;
                assert_eq!(answer.unwrap_err().kind(), outcome, "{first:?} {then:?}");
                assert!(took >= OP_TIMEOUT && took < OP_TIMEOUT + s(1), "{took:?}");
                store.sleep(s(1)).await;
                assert_eq!(
                    store.asked().contains(&"abandon 1".to_owned()),
                    owes,
                    "{first:?} {then:?}"
                );
            });
        }
    }
}

/// Of a session leases do not lapse by themselves: what cannot be given back is tried for a ttl.
#[test]
fn refused_abandon_is_repeated_for_a_ttl_on_a_session() {
    play(Store::Session, async |client, store| {
        let denied = Fails(ErrorKind::PermissionDenied);
        store.attempts.set([denied.clone()]);
        store.abandons.set_for_ever(denied);
        acquire(&client, store, Asks::Waits).await.unwrap_err();
        let tries = store.times_of("abandon 1");
        let last = *tries.last().unwrap();
        assert!(tries.len() > 20 && last > s(30) && last < s(36), "{last:?}");
    });
}
