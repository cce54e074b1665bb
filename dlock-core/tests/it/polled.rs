//! Waiters that look, given what the looks say: who is asked for, and when the next look is.

use std::time::Duration;

use dlock_core::spi::Signal;
use dlock_core::{Client, ErrorKind, LockOptions};
use futures::future::{join, join_all};

use crate::scripted::Says::*;
use crate::scripted::{Scripted, Store, play};
use crate::world::ms;

/// As many wait, until the client is closed.
async fn crowd(client: &Client, store: &Scripted, many: u32, then: impl AsyncFn()) {
    *store.polled.lock().unwrap() = Some((ms(100), ms(100)));
    store.attempts.set((0..many).map(|n| Queued(many - 1 - n)));
    let long = LockOptions::new().ttl(Duration::from_secs(3600));
    let lock = client.lock("a").unwrap().options(long).unwrap();
    let waits = join_all((0..many).map(async |_| {
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    }));
    let ends = async {
        then().await;
        client.close().await.unwrap();
    };
    join(waits, ends).await;
}

fn asks(store: &Scripted) -> Vec<String> {
    let mut asked = store.asked();
    asked.retain(|what| what.starts_with("ask"));
    asked
}

/// In the order of the line, which is not that in which they came.
#[test]
fn change_asks_for_the_first_eight_waiters() {
    play(Store::Queues, async |client, store| {
        store.looks.set_for_ever(Not);
        store.renewals.set_for_ever(Queued(3));
        crowd(&client, store, 12, async || {
            store.sleep(ms(50)).await;
            store.looks.begin_with([Yes]);
            store.sleep(ms(500)).await;
            let first: Vec<_> = (5..=12).rev().map(|n| format!("ask {n}")).collect();
            assert_eq!(asks(store), first);
        })
        .await;
    });
}

/// As long as somebody else has it, nobody in line is asked for.
#[test]
fn nobody_in_line_is_asked_for_when_others_hold() {
    play(Store::Queues, async |client, store| {
        store.looks.set_for_ever(Held);
        crowd(&client, store, 12, async || {
            store.sleep(ms(1_000)).await;
            assert!(store.times_of("look").len() > 5);
            assert_eq!(asks(store), Vec::<String>::new());
        })
        .await;
    });
}

/// Where the store knows no line, each change concerns everybody, however many.
#[test]
fn without_a_line_all_try_again_after_a_change() {
    for news in [Yes, Held, Fails(ErrorKind::Unavailable)] {
        play(Store::Plain, async |client, store| {
            *store.polled.lock().unwrap() = Some((ms(100), ms(100)));
            store.attempts.set(vec![Held; 12]);
            store.looks.set_for_ever(Not);
            store.looks.begin_with([news.clone()]);
            let lock = client.lock("a").unwrap();
            let waits = join_all((0..12).map(async |_| lock.acquire().await.unwrap()));
            waits.await;
            assert_eq!(
                store
                    .asked()
                    .iter()
                    .filter(|what| what.starts_with("attempt"))
                    .count(),
                24
            );
            assert!(store.now() < ms(125), "{:?}", store.now());
        });
    }
}

/// The others go on looking when one has gone; when all have, nobody looks.
#[test]
fn looks_end_with_the_last_waiter_and_not_before() {
    play(Store::Queues, async |client, store| {
        *store.polled.lock().unwrap() = Some((ms(100), ms(100)));
        store.looks.set_for_ever(Not);
        store.attempts.set([Queued(0), Queued(1), Queued(2)]);
        let lock = client.lock("a").unwrap();
        let waits = async |limit| {
            let waited = lock.acquire_timeout(ms(limit)).await;
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
            let before = store.times_of("look").len();
            store.sleep(ms(1_000)).await;
            store.times_of("look").len() - before
        };
        let (one, two, three) = futures::join!(waits(310), waits(910), waits(3_310));
        assert!(one >= 9 && two >= 9, "{one} {two}");
        assert_eq!(three, 0);
        // And begin again with the next one.
        store.attempts.set([Queued(0)]);
        store.looks.set_for_ever(Yes);
        let begun = store.now();
        lock.acquire().await.unwrap();
        assert!(store.now() - begun < ms(125));
    });
}

/// Looks come seldom when nothing changes, and often after news.
#[test]
fn news_make_looks_frequent_again() {
    for told in [false, true] {
        play(Store::Queues, async |client, store| {
            *store.polled.lock().unwrap() = Some((ms(10), ms(1_000)));
            store.looks.set_for_ever(Not);
            store.attempts.set([Queued(0)]);
            let lock = client.lock("a").unwrap();
            let news = async {
                store.sleep(ms(5_000)).await;
                assert!(store.times_of("look").len() < 24);
                store.forget();
                match told {
                    true => store.tell.unbounded_send(Signal::Changed).unwrap(),
                    false => store.looks.begin_with([Held]),
                }
                store.sleep(ms(1_150)).await;
                let looks = store.times_of("look");
                assert!(looks.windows(5).any(|w| w[4] - w[0] < ms(100)), "{looks:?}");
            };
            let limit = async {
                let waited = lock.acquire_timeout(ms(6_200)).await;
                assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
            };
            join(limit, news).await;
        });
    }
}
