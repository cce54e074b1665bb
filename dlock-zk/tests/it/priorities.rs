//! Locks with priorities: the most urgent is next, one at a time, and tokens grow whatever the order was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Lock as _, LostLeases, Push, Release, Released, RenewItem, RenewOutcome,
    Signal,
};
use dlock_core::{ErrorKind, LockOptions, Mode, Token};
use dlock_zk::ZkLock;
use futures::StreamExt as _;
use futures::future::{Either, select};

use crate::forced::{ended_meanwhile, lost};
use crate::frames::{EXISTS, MULTI, Stop, Way};
use crate::servers::ZkServer;
use crate::{
    LONG, at_once, builder, children, client_of, expire, granted, hands, here, key, listens, pushed, queued,
    start, turn, unanswered, until, waits,
};

const X: Mode = Mode::Exclusive;
const LINE: &str = "/dlock/locks/x";
const SOON: Duration = Duration::from_millis(100);

async fn open(server: &ZkServer) -> ZkLock {
    let builder = builder().priorities();
    builder.open(&server.address().to_string(), here()).await.unwrap()
}

/// One whose requests are seen on their way.
pub(crate) async fn open_by_a_way(server: &Arc<ZkServer>) -> (Way, ZkLock) {
    let way = Way::to(server.address()).unwrap();
    let builder = builder().priorities();
    let lock = builder.open(&way.address.to_string(), here()).await.unwrap();
    listens(server, &lock).await;
    (way, lock)
}

fn urgent(client: u128, n: u64, priority: u8) -> Acquire {
    queued(&key("x", client, n), X).with_priority(priority)
}

#[tokio::test]
async fn the_most_urgent_is_next_and_of_equals_the_first() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let mut last = granted(&a, &urgent(1, 0, 5)).await.token;
    let mut waiting = Vec::new();
    for (n, priority) in [(1, 1), (2, 9), (3, 5), (4, 9), (5, 10)] {
        let lock = if n % 2 == 0 { &a } else { &b };
        waiting.push((n, lock, waits(lock, &urgent(1, n, priority)).await));
    }
    let seen = b.watch().unwrap().inspect(&key("x", 1, 0).name).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting), (1, 5));
    assert_eq!(
        (seen.holders[0].id, seen.holders[0].token),
        (key("x", 1, 0).id, last)
    );
    a.release(&key("x", 1, 0), Release::Now).await.unwrap();
    for next in [5, 2, 4, 3, 1] {
        for (n, _, wait) in &mut waiting {
            if *n != next {
                assert!(pushed(wait, SOON).await.is_none(), "{n} before {next}");
            }
        }
        let at = waiting.iter().position(|(n, ..)| *n == next).unwrap();
        let (n, lock, mut wait) = waiting.remove(at);
        let token = turn(&mut wait).await.token;
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
        lock.release(&key("x", 1, n), Release::Now).await.unwrap();
    }
    assert!(children(&server, LINE).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_takes_turns_and_tokens_grow() {
    let server = start().await;
    let (inside, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let mut crowd = Vec::new();
    for _ in 0..3 {
        let client = client_of(open(&server).await);
        for n in 0..10_u8 {
            let (client, inside, last) = (client.clone(), inside.clone(), last.clone());
            crowd.push(tokio::spawn(async move {
                for round in 0..5 {
                    let options = LockOptions::new().priority(1 + (n * 7 + round * 3) % 10);
                    let lock = client.lock("x").unwrap().options(options).unwrap();
                    let guard = tokio::time::timeout(LONG * 2, lock.acquire())
                        .await
                        .unwrap()
                        .unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    let token = guard.token().map_or(0, Token::get);
                    assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for one in crowd {
        one.await.unwrap();
    }
    assert!(children(&server, LINE).await.is_empty());
}

/// Asks, and gives up when the lock has been taken and the answer to that is on its way.
pub(crate) async fn taken_without_an_answer(
    server: &Arc<ZkServer>,
    way: &Way,
    lock: &ZkLock,
    request: &Acquire,
) {
    way.stop(Stop::Behind(MULTI));
    let asking = select(lock.attempt(request), Box::pin(way.stopped()));
    assert!(matches!(asking.await, Either::Right(_)), "it was answered");
    until("it is taken", LONG, async || {
        children(server, LINE).await.len() == 2
    })
    .await;
    way.go_on();
}

#[tokio::test]
async fn a_hold_whose_answer_was_lost_is_known_again() {
    let server = start().await;
    let (way, lock) = open_by_a_way(&server).await;
    let request = urgent(1, 1, 5);
    taken_without_an_answer(&server, &way, &lock, &request).await;
    let grant = granted(&lock, &request).await;
    assert_eq!(granted(&lock, &request).await.token, grant.token);
    assert_eq!(
        children(&server, LINE).await.len(),
        2,
        "its place, and that it has it"
    );
    let items = [RenewItem::lease(request.key.clone(), LONG)];
    let outcomes = lock.renew().unwrap().renew(&items).await;
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed(_)]), "{outcomes:?}");
    assert_eq!(
        lock.release(&request.key, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(
        lock.release(&request.key, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    assert!(children(&server, LINE).await.is_empty());
}

#[tokio::test]
async fn a_hold_whose_answer_was_lost_is_given_up() {
    let server = start().await;
    let (way, lock) = open_by_a_way(&server).await;
    let request = urgent(1, 1, 5);
    taken_without_an_answer(&server, &way, &lock, &request).await;
    let abandoned = lock.abandon(std::slice::from_ref(&request.key)).await.remove(0);
    assert!(
        matches!(abandoned, Ok(Abandoned::Withdrawn | Abandoned::WasGranted(_))),
        "{abandoned:?}"
    );
    assert!(children(&server, LINE).await.is_empty());
    granted(&lock, &urgent(1, 2, 1)).await;
}

/// With `zkCli`. Whatever is left of it does not stand in the way of others.
#[tokio::test]
async fn a_hold_of_which_one_node_was_deleted_leaves_nothing() {
    let server = start().await;
    for of in ["held", "its place"] {
        let lock = open(&server).await;
        let (first, second) = (urgent(1, 1, 5), urgent(1, 2, 5));
        granted(&lock, &first).await;
        let nodes = children(&server, LINE).await;
        let node = nodes.iter().find(|n| (*n == "held") == (of == "held")).unwrap();
        let path = format!("{LINE}/{node}");
        hands(&server, move |s| s.with_session(|s| s.delete(&path))).await;
        if of == "held" {
            let outcomes = lock
                .renew()
                .unwrap()
                .renew(&[RenewItem::lease(first.key.clone(), LONG)])
                .await;
            assert!(matches!(outcomes[..], [RenewOutcome::Gone]), "{outcomes:?}");
        }
        let released = lock.release(&first.key, Release::Now).await.unwrap();
        assert_eq!(released, Released::NotHeld, "{of}");
        assert!(children(&server, LINE).await.is_empty(), "{of}");
        granted(&lock, &second).await;
        lock.release(&second.key, Release::Now).await.unwrap();
    }
}

#[tokio::test]
async fn a_release_that_is_sent_again_spares_the_next_holder() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let (first, second) = (urgent(1, 1, 1), urgent(2, 1, 9));
    let before = granted(&a, &first).await;
    let mut wait = waits(&b, &second).await;
    hands(&server, |s| s.pause()).await;
    unanswered(a.release(&first.key, Release::Now)).await;
    hands(&server, |s| s.go_on()).await;
    assert!(turn(&mut wait).await.token > before.token);
    assert_eq!(
        a.release(&first.key, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(children(&server, LINE).await.len(), 2, "the successor's");
    assert_eq!(
        b.release(&second.key, Release::Now).await.unwrap(),
        Released::Released
    );
}

#[tokio::test]
async fn the_lock_of_one_that_died_goes_to_the_most_urgent() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    granted(&a, &urgent(1, 0, 10)).await;
    let mut later = waits(&b, &urgent(2, 1, 3)).await;
    let mut sooner = waits(&b, &urgent(2, 2, 4)).await;
    expire(&server, a.session_id().unwrap()).await;
    turn(&mut sooner).await;
    assert!(pushed(&mut later, SOON).await.is_none());
}

#[tokio::test]
async fn a_try_leaves_nothing_and_is_told_when_it_is_free() {
    let server = start().await;
    let lock = open(&server).await;
    let (first, second) = (urgent(1, 0, 1), at_once(&key("x", 1, 1), X).with_priority(9));
    granted(&lock, &first).await;
    let Attempt::Held(mut wait) = lock.attempt(&second).await.unwrap() else {
        panic!("it is held");
    };
    assert_eq!(children(&server, LINE).await.len(), 2, "the holder's");
    assert!(pushed(&mut wait, SOON).await.is_none());
    lock.release(&first.key, Release::Now).await.unwrap();
    assert!(matches!(pushed(&mut wait, LONG).await, Some(Push::Changed)));
    granted(&lock, &second).await;
}

#[tokio::test]
async fn an_operator_ends_the_hold_and_nobody_elses_wait() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    let mut signals = a.signals();
    granted(&a, &urgent(1, 0, 1)).await;
    let mut next = waits(&b, &urgent(2, 1, 9)).await;
    // Also by one who knows nothing of priorities.
    let operator = crate::open(&server).await;
    let name = key("x", 1, 0).name;
    assert_eq!(operator.watch().unwrap().inspect(&name).await.unwrap().waiting, 1);
    assert_eq!(operator.watch().unwrap().force_release(&name).await.unwrap(), 1);
    turn(&mut next).await;
    let told = tokio::time::timeout(LONG, signals.next()).await.unwrap();
    let Some(Signal::Lost(LostLeases::These(keys), _)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(keys, [key("x", 1, 0)]);
    assert_eq!(
        a.release(&key("x", 1, 0), Release::Now).await.unwrap(),
        Released::NotHeld
    );
}

/// With `zkCli`, and then with dlock: its place was gone before.
#[tokio::test]
async fn a_holder_whose_place_was_deleted_is_told_that_it_was_ended() {
    let server = start().await;
    let lock = open(&server).await;
    listens(&server, &lock).await;
    let mut signals = lock.signals();
    let kept = queued(&key("y", 1, 1), X);
    let request = urgent(1, 2, 5);
    for request in [&kept, &request] {
        granted(&lock, request).await;
    }
    let nodes = children(&server, LINE).await;
    let place = format!("{LINE}/{}", nodes.iter().find(|n| *n != "held").unwrap());
    hands(&server, move |s| s.with_session(|s| s.delete(&place))).await;
    let operator = open(&server).await;
    assert_eq!(
        operator
            .watch()
            .unwrap()
            .force_release(&request.key.name)
            .await
            .unwrap(),
        1
    );
    let told = tokio::time::timeout(LONG, signals.next()).await;
    let Ok(Some(Signal::Lost(LostLeases::These(keys), _))) = told else {
        panic!("{told:?}");
    };
    assert_eq!(keys, std::slice::from_ref(&request.key));
    assert_eq!(
        lock.release(&request.key, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    assert_eq!(
        lock.release(&kept.key, Release::Now).await.unwrap(),
        Released::Released
    );
}

/// Its place is looked for, since it is not told any more which ones were ended; meanwhile it hears that it has the lock, and has another token by that.
#[tokio::test]
async fn a_hold_that_was_taken_while_its_place_was_looked_for_is_told() {
    let server = start().await;
    let (way, lock) = open_by_a_way(&server).await;
    let mut signals = lock.signals();
    let request = urgent(1, 1, 5);
    way.stop(Stop::Behind(MULTI));
    let asking = select(lock.attempt(&request), Box::pin(way.stopped())).await;
    let Either::Right(((), mut asking)) = asking else {
        panic!("it was answered");
    };
    way.go_on();
    until("it is taken", LONG, async || {
        children(&server, LINE).await.len() == 2
    })
    .await;
    way.stop(Stop::Before(EXISTS));
    let names = std::iter::once("x".to_owned()).chain((0..64).map(|n| format!("n{n}")));
    ended_meanwhile(&server, names.collect());
    way.stopped().await;
    let told = futures::poll!(&mut asking);
    let std::task::Poll::Ready(Ok(Attempt::Granted(_))) = told else {
        panic!("{told:?}");
    };
    way.go_on();
    lost(&mut signals, vec![request.key.clone()]).await;
}

#[tokio::test]
async fn with_priorities_and_without_exclude_one_another() {
    let server = start().await;
    let (urgently, in_turn) = (open(&server).await, crate::open(&server).await);
    let plain = queued(&key("x", 2, 1), X);
    granted(&urgently, &urgent(1, 0, 5)).await;
    let e = in_turn.attempt(&plain).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    let watched = in_turn.watch().unwrap().watch(&plain.key.name).await;
    assert!(watched.is_err_and(|e| e.kind() == ErrorKind::InvalidInput));
    urgently.release(&key("x", 1, 0), Release::Now).await.unwrap();
    granted(&in_turn, &plain).await;
    let e = urgently.attempt(&urgent(1, 1, 9)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert_eq!(children(&server, LINE).await.len(), 1, "nothing of it is left");
}

/// One without a priority came while the lock was taken, and its answers were lost. It asks again when the lock is free, and is the first in the line.
#[tokio::test]
async fn no_token_falls_where_a_name_is_used_with_priorities_and_without() {
    let server = start().await;
    let ((way, urgently), in_turn) = (open_by_a_way(&server).await, crate::open(&server).await);
    let (first, plain) = (urgent(1, 1, 5), queued(&key("x", 2, 1), X));
    way.stop(Stop::Before(MULTI));
    let taking = select(urgently.attempt(&first), Box::pin(way.stopped())).await;
    let Either::Right(((), taking)) = taking else {
        panic!("it was answered");
    };
    let mut asking = in_turn.attempt(&plain);
    assert!(futures::poll!(&mut asking).is_pending());
    until("both are in the line", LONG, async || {
        children(&server, LINE).await.len() == 2
    })
    .await;
    drop(asking);
    way.go_on();
    let before = match taking.await {
        Ok(Attempt::Granted(grant)) => {
            urgently.release(&first.key, Release::Now).await.unwrap();
            grant.token
        }
        other => {
            assert!(
                other.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidInput),
                "{other:?}"
            );
            None
        }
    };
    let after = granted(&in_turn, &plain).await.token;
    assert!(after > before, "{after:?} after {before:?}");
    in_turn.release(&plain.key, Release::Now).await.unwrap();
    assert!(children(&server, LINE).await.is_empty());
}

#[tokio::test]
async fn what_has_no_meaning_with_priorities_is_refused() {
    let server = start().await;
    let lock = open(&server).await;
    for mode in [Mode::READER, Mode::permit(std::num::NonZeroU32::MIN)] {
        let e = lock.attempt(&at_once(&key("x", 1, 1), mode)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    }
    for priority in [0, 11] {
        let e = lock.attempt(&urgent(1, 1, priority)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }
    let in_turn = crate::open(&server).await;
    let e = in_turn.attempt(&urgent(1, 1, 6)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    let e = builder()
        .priorities()
        .unfair()
        .check_address("zk://h")
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
}
