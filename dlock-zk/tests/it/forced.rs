//! An operator ends a lock: its holder is told, the next waiter gets it, and no other is affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_core::spi::{
    Abandoned, Attempt, LeaseKey, Lock as _, LostLeases, Release, Released, RenewItem, RenewOutcome,
    RwLock as _, Signal, Watch as _,
};
use dlock_core::{Mode, Token};
use dlock_zk::{Config, ZkLock};
use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::BoxStream;

use crate::bent::Bent;
use crate::frames::{CREATE, EXISTS, MULTI, Stop, Way};
use crate::{
    LONG, at_once, children, config, granted, here, key, listens, open, queued, start, turn, until, waits,
    with,
};
use dlock_testkit::{ZkOptions, ZkServer};

const X: Mode = Mode::Exclusive;

/// Waits until a request under way has made its node.
async fn there_are(server: &Arc<ZkServer>, line: &str, nodes: usize) {
    until("its node is there", LONG, async || {
        children(server, line).await.len() == nodes
    })
    .await;
}

/// That lease is the one that is there.
async fn holds_alone(seen_by: &ZkLock, lease: &LeaseKey, token: Option<Token>) {
    let held = seen_by.inspect(&lease.name).await.unwrap();
    let tokens: Vec<_> = held.holders.iter().map(|h| h.token).collect();
    assert_eq!(tokens, [token]);
}

#[tokio::test]
async fn the_holder_is_told_at_once_and_the_next_one_has_it() {
    let server = start().await;
    let (holder, next, operator) = (open(&server).await, open(&server).await, open(&server).await);
    let mut signals = holder.signals();
    let (ended, kept, second) = (key("x", 1, 1), key("y", 1, 2), key("x", 2, 1));
    let before = granted(&holder, &at_once(&ended, X)).await;
    granted(&holder, &at_once(&kept, X)).await;
    let mut wait = waits(&next, &queued(&second, X)).await;
    assert_eq!(operator.force_release(&ended.name).await.unwrap(), 1);
    assert!(turn(&mut wait).await.token > before.token);
    let told = tokio::time::timeout(LONG, signals.next()).await.unwrap().unwrap();
    let Signal::Lost(LostLeases::These(keys), _) = told else {
        panic!("{told:?}");
    };
    assert_eq!(keys, std::slice::from_ref(&ended));
    let items = [
        RenewItem::lease(ended.clone(), LONG),
        RenewItem::lease(kept.clone(), LONG),
    ];
    let outcomes = holder.renew().unwrap().renew(&items).await;
    assert!(
        matches!(outcomes[..], [RenewOutcome::Gone, RenewOutcome::Renewed(_)]),
        "{outcomes:?}"
    );
    assert_eq!(
        holder.release(&ended, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    assert_eq!(
        holder.release(&kept, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(
        next.release(&second, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(operator.force_release(&ended.name).await.unwrap(), 0);
}

/// More than are kept of, while the holder's connection is away.
#[tokio::test]
async fn a_holder_that_missed_some_looks_for_its_own() {
    let server = start().await;
    let lock = config()
        .session_timeout(Duration::from_secs(30))
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap();
    let mut signals = lock.signals();
    let k = |n: u64| key(&format!("x{n}"), 1, n);
    for n in 0..100 {
        granted(&lock, &crate::Acquire::new(k(n), Duration::from_secs(60))).await;
    }
    let operator = open(&server).await;
    for n in 0..99 {
        assert_eq!(operator.force_release(&k(n).name).await.unwrap(), 1);
    }
    let mut lost = Vec::new();
    while lost.len() < 99 {
        match tokio::time::timeout(LONG, signals.next()).await.unwrap().unwrap() {
            Signal::Lost(LostLeases::These(keys), _) => lost.extend(keys),
            other => panic!("{other:?}"),
        }
    }
    assert!(!lost.contains(&k(99)));
    assert_eq!(
        lock.release(&k(99), Release::Now).await.unwrap(),
        Released::Released
    );
}

/// One more than the node that tells it keeps.
#[tokio::test]
async fn each_of_many_readers_is_told() {
    const READERS: u64 = 65;
    let server = start().await;
    let lock = config()
        .session_timeout(Duration::from_secs(30))
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap();
    let mut signals = lock.signals();
    for n in 0..READERS {
        let request = crate::Acquire::new(key("x", 1, n), Duration::from_secs(60));
        granted(&lock, &request.with_mode(Mode::READER)).await;
    }
    let operator = open(&server).await;
    let ended = operator.force_release(&key("x", 1, 0).name).await.unwrap();
    assert_eq!(u64::from(ended), READERS);
    let mut lost = std::collections::BTreeSet::new();
    while (lost.len() as u64) < READERS {
        match tokio::time::timeout(LONG, signals.next()).await {
            Ok(Some(Signal::Lost(LostLeases::These(keys), _))) => lost.extend(keys),
            other => panic!("{} are told, and then {other:?}", lost.len()),
        }
    }
    assert!(crate::children(&server, "/dlock/locks/x").await.is_empty());
}

/// It was read that it is admitted, and nobody has been told so yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_under_way_is_not_handed_out_after_it_was_ended() {
    let server = start().await;
    let (lock, operator) = (open(&server).await, open(&server).await);
    let mut signals = lock.signals();
    let (first, later) = (key("x", 1, 1), key("y", 1, 2));
    granted(&lock, &at_once(&later, X)).await;
    let request = at_once(&first, X);
    let mut asking = Box::pin(lock.attempt(&request));
    // It is sent, and answered, and its answers lie there.
    assert!(futures::poll!(&mut asking).is_pending());
    there_are(&server, "/dlock/locks/x", 1).await;
    assert_eq!(operator.force_release(&first.name).await.unwrap(), 1);
    // What was ended is told in order: with this the first one has been.
    assert_eq!(operator.force_release(&later.name).await.unwrap(), 1);
    let told = tokio::time::timeout(LONG, signals.next()).await.unwrap().unwrap();
    assert!(matches!(told, Signal::Lost(LostLeases::These(_), _)), "{told:?}");
    let dlock_core::spi::Attempt::Granted(grant) = asking.await.unwrap() else {
        panic!("nobody has it");
    };
    holds_alone(&operator, &first, grant.token).await;
    assert_eq!(
        lock.release(&first, Release::Now).await.unwrap(),
        Released::Released
    );
}

/// Ends the locks of those names, and takes and ends those that nobody has, while nothing else of this
/// thread's runtime goes on: who listens in it sees the end of it alone.
pub(crate) fn ended_meanwhile(server: &Arc<ZkServer>, names: Vec<String>) {
    let server = server.clone();
    let ending = async move {
        let operator = open(&server).await;
        for (n, name) in (0..).zip(names) {
            let k = key(&name, 3, n);
            if operator.force_release(&k.name).await.unwrap() == 0 {
                granted(&operator, &at_once(&k, X)).await;
                assert_eq!(operator.force_release(&k.name).await.unwrap(), 1);
            }
        }
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(ending);
    })
    .join()
    .unwrap();
}

/// A client with observed requests, which holds that many locks.
async fn holds_by_a_way(server: &Arc<ZkServer>, config: Config, holds: u64) -> (Way, ZkLock) {
    let way = Way::to(server.address()).unwrap();
    let lock = config
        .servers(&way.address.to_string())
        .connect(here())
        .await
        .unwrap();
    listens(server, &lock).await;
    for n in 0..holds {
        granted(&lock, &at_once(&key(&format!("x{n}"), 1, n), X)).await;
    }
    (way, lock)
}

/// Waits until those are told to be lost. That a connection broke, where the machine was busy for long, says
/// nothing of them.
pub(crate) async fn lost(signals: &mut BoxStream<'static, Signal>, mut keys: Vec<LeaseKey>) {
    while !keys.is_empty() {
        match tokio::time::timeout(LONG, signals.next()).await {
            Ok(Some(Signal::Lost(LostLeases::These(lost), _))) => keys.retain(|key| !lost.contains(key)),
            Ok(Some(Signal::Doubt | Signal::Back)) => {}
            other => panic!("{keys:?} are not told, but {other:?}"),
        }
    }
}

/// However long the looks for the others take: here they are never answered.
#[tokio::test]
async fn named_holders_are_told_first() {
    let server = start().await;
    let (way, lock) = holds_by_a_way(&server, config(), 100).await;
    let mut signals = lock.signals();
    way.stop(Stop::Before(EXISTS));
    ended_meanwhile(&server, vec!["x7".to_owned(), "x8".to_owned()]);
    let keys = [7, 8].map(|n| key(&format!("x{n}"), 1, n));
    lost(&mut signals, keys.to_vec()).await;
}

/// Its node is there, and it does not know that yet; and others are looked for, since something was missed.
#[tokio::test]
async fn a_grant_under_way_in_a_search_is_not_taken_for_an_ended_one() {
    let server = start().await;
    let (way, lock) = holds_by_a_way(&server, config(), 300).await;
    let mut signals = lock.signals();
    let request = at_once(&key("y", 1, 1000), X);
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    there_are(&server, "/dlock/locks/y", 1).await;
    way.stop(Stop::Before(EXISTS));
    ended_meanwhile(&server, vec!["y".to_owned(), "x0".to_owned()]);
    way.stopped().await;
    // Its answers lie there.
    let attempt = futures::poll!(&mut asking);
    way.go_on();
    let attempt = match attempt {
        Poll::Ready(attempt) => attempt,
        Poll::Pending => asking.await,
    };
    let Ok(Attempt::Granted(grant)) = attempt else {
        panic!("{attempt:?}");
    };
    let held = lock.inspect(&request.key.name).await.unwrap();
    if held
        .holders
        .first()
        .is_none_or(|holder| holder.token != grant.token)
    {
        lost(&mut signals, vec![request.key.clone()]).await;
    }
}

/// It asks again, since the answer to its take was lost, and reads that it has it; and before it hears that,
/// it is ended.
#[tokio::test]
async fn an_unfair_lock_that_is_found_again_is_not_one_that_was_ended() {
    let server = start().await;
    let (way, lock) = holds_by_a_way(&server, config().unfair(), 1).await;
    let mut signals = lock.signals();
    let request = at_once(&key("y", 1, 1000), X);
    way.dropped(lock.attempt(&request), &[Stop::Behind(MULTI)]).await;
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    let address = server.address().to_string();
    let operator = config().unfair().servers(&address).connect(here()).await.unwrap();
    assert_eq!(operator.force_release(&request.key.name).await.unwrap(), 1);
    // What was ended is told in order: with this the first one has been.
    let other = key("x0", 1, 0);
    assert_eq!(operator.force_release(&other.name).await.unwrap(), 1);
    lost(&mut signals, vec![other]).await;
    let attempt = asking.await;
    let Ok(Attempt::Granted(grant)) = attempt else {
        panic!("{attempt:?}");
    };
    holds_alone(&operator, &request.key, grant.token).await;
}

/// Its node is there, and it does not know that yet. An unfair lock has none to be read anew.
#[tokio::test]
async fn an_unfair_grant_under_way_is_not_one_that_was_ended() {
    let server = start().await;
    let address = server.address().to_string();
    let open = async || config().unfair().servers(&address).connect(here()).await.unwrap();
    let (lock, operator) = (open().await, open().await);
    let mut signals = lock.signals();
    let (first, later) = (key("x", 1, 1), key("y", 1, 2));
    granted(&lock, &at_once(&later, X)).await;
    let request = at_once(&first, X);
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    there_are(&server, "/dlock/unfair", 2).await;
    for k in [&first, &later] {
        assert_eq!(operator.force_release(&k.name).await.unwrap(), 1);
    }
    // What was ended is told in order.
    lost(&mut signals, vec![later]).await;
    let e = asking.await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::Unavailable, "{e}");
    assert!(children(&server, "/dlock/unfair").await.is_empty());
    // And nothing of it is noted any more.
    drop(signals);
    until("its session is closed", LONG / 4, async || {
        children(&server, "/dlock/sessions").await.len() == 1
    })
    .await;
}

/// The same of one that is in the line, when what was ended is not to be read any more.
#[tokio::test]
async fn a_grant_under_way_is_doubted_where_something_was_missed() {
    let server = start().await;
    let (way, lock) = holds_by_a_way(&server, config(), 1).await;
    let request = at_once(&key("y", 1, 1000), X);
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    there_are(&server, "/dlock/locks/y", 1).await;
    way.stop(Stop::Before(EXISTS));
    ended_meanwhile(&server, vec!["y".to_owned()]);
    let forgetting = server.with_session(|s| {
        s.delete("/dlock/forced")?;
        s.create("/dlock/forced", b"")
    });
    assert!(forgetting.unwrap());
    way.stopped().await;
    way.go_on();
    let Attempt::Granted(grant) = asking.await.unwrap() else {
        panic!("nobody has it");
    };
    holds_alone(&lock, &request.key, grant.token).await;
}

/// Somebody else is ended each time before it comes to that.
#[tokio::test]
async fn an_end_by_force_is_tried_again_and_not_for_ever() {
    const MOST: u32 = 16;
    let server = start().await;
    let (way, lock) = holds_by_a_way(&server, config(), 1).await;
    let name = key("x0", 1, 0).name;
    let tries = AtomicU32::new(0);
    way.stop(Stop::Before(MULTI));
    let disturbing = async {
        while tries.fetch_add(1, Ordering::SeqCst) <= MOST {
            way.stopped().await;
            crate::hands(&server, |s| s.with_session(|s| s.set("/dlock/forced", b""))).await;
            way.stop(Stop::Before(MULTI));
        }
    };
    let told = select(lock.force_release(&name), Box::pin(disturbing)).await;
    let Either::Left((told, _)) = told else {
        panic!("it goes on for ever");
    };
    assert_eq!(told.unwrap_err().kind(), dlock_core::ErrorKind::Unavailable);
    assert!(tries.load(Ordering::SeqCst) > 2, "it is tried again");
    assert_eq!(children(&server, "/dlock/locks/x0").await.len(), 1);
}

/// It was ended before it was answered; it makes another node, and is dropped when the server has that.
#[tokio::test]
async fn what_is_asked_for_behind_an_end_by_force_is_known() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let (way, lock) = holds_by_a_way(&server, config(), 1).await;
    let mut signals = lock.signals();
    let request = at_once(&key("y", 1, 1000), X);
    let mut asking = lock.attempt(&request);
    assert!(futures::poll!(&mut asking).is_pending());
    there_are(&server, "/dlock/locks/y", 1).await;
    ended_meanwhile(&server, vec!["y".to_owned(), "x0".to_owned()]);
    lost(&mut signals, vec![key("x0", 1, 0)]).await;
    way.dropped(asking, &[Stop::Behind(CREATE)]).await;
    until("it is made again", LONG, async || {
        children(&server, "/dlock/locks/y").await.len() == 1
    })
    .await;
    let abandoned = lock.abandon(std::slice::from_ref(&request.key)).await.remove(0);
    assert_eq!(abandoned.unwrap(), Abandoned::Withdrawn);
    assert!(children(&server, "/dlock/locks/y").await.is_empty());
}

/// Something was missed, and the connection breaks while it is looked for.
#[tokio::test]
async fn a_look_for_ended_holds_that_failed_is_repeated() {
    let server = start().await;
    let (way, lock) = holds_by_a_way(&server, config(), 1).await;
    let mut signals = lock.signals();
    way.stop(Stop::Before(EXISTS));
    ended_meanwhile(&server, vec!["x0".to_owned()]);
    let forgetting = server.with_session(|s| {
        s.delete("/dlock/forced")?;
        s.create("/dlock/forced", b"")
    });
    assert!(forgetting.unwrap());
    way.stopped().await;
    way.break_off();
    lost(&mut signals, vec![key("x0", 1, 0)]).await;
}

/// Somebody deleted all of it under the session, which does not listen.
#[tokio::test]
async fn what_is_missing_is_made_by_who_ends_a_lock() {
    let server = start().await;
    let runtime = Bent::new();
    // Its first task makes the session, and the second one listens.
    runtime.loses.store(1, Ordering::SeqCst);
    let address = server.address().to_string();
    let operator = config().servers(&address).connect(runtime).await.unwrap();
    let k = key("x", 1, 1);
    granted(&operator, &at_once(&k, X)).await;
    assert_eq!(operator.force_release(&k.name).await.unwrap(), 1);
    crate::hands(&server, |s| s.with_session(|s| s.delete_all("/dlock"))).await;
    assert_eq!(operator.force_release(&k.name).await.unwrap(), 0);
    assert_eq!(children(&server, "/dlock").await, ["forced"]);
}

#[tokio::test]
async fn a_foreign_node_ends_no_hold() {
    let server = start().await;
    let lock = open(&server).await;
    let k = key("x", 1, 1);
    granted(&lock, &at_once(&k, X)).await;
    crate::hands(&server, |s| {
        s.with_session(|s| s.create("/dlock/locks/x/somebody-else", b""))
    })
    .await;
    let outcomes = lock
        .renew()
        .unwrap()
        .renew(&[RenewItem::lease(k.clone(), LONG)])
        .await;
    assert!(matches!(outcomes[..], [RenewOutcome::Renewed(_)]), "{outcomes:?}");
    let e = lock.attempt(&at_once(&key("x", 1, 2), X)).await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::BackendData, "{e}");
    assert!(e.to_string().contains("`somebody-else`"), "{e}");
    let e = lock.force_release(&k.name).await.unwrap_err();
    assert_eq!(e.kind(), dlock_core::ErrorKind::BackendData, "{e}");
    let left = children(&server, "/dlock/locks/x").await;
    assert_eq!(left.len(), 2, "the holder's and the foreign one: {left:?}");
    assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::Released);
}

/// With `zkCli`: a hold that is the only one of its client hears of it by its next renewal.
#[tokio::test]
async fn a_hold_whose_node_was_deleted_is_not_renewed() {
    let server = start().await;
    let address = server.address().to_string();
    for (config, line) in [
        (config as fn() -> Config, "/dlock/locks/x"),
        (|| config().unfair(), "/dlock/unfair"),
    ] {
        let lock = config().servers(&address).connect(here()).await.unwrap();
        let other = config().servers(&address).connect(here()).await.unwrap();
        let k = key("x", 1, 1);
        granted(&lock, &at_once(&k, X)).await;
        let node = crate::children(&server, line).await.remove(0);
        let path = format!("{line}/{node}");
        crate::hands(&server, move |s| s.with_session(|s| s.delete(&path))).await;
        let next = key("x", 2, 1);
        granted(&other, &at_once(&next, X)).await;
        let outcomes = lock
            .renew()
            .unwrap()
            .renew(&[RenewItem::lease(k.clone(), LONG)])
            .await;
        assert!(matches!(outcomes[..], [RenewOutcome::Gone]), "{outcomes:?}");
        assert_eq!(lock.release(&k, Release::Now).await.unwrap(), Released::NotHeld);
        assert_eq!(crate::children(&server, line).await.len(), 1, "the next one's");
        other.release(&next, Release::Now).await.unwrap();
    }
    assert!(crate::children(&server, "/dlock/holders").await.is_empty());
}

#[tokio::test]
async fn all_readers_are_ended_and_an_unfair_lock_too() {
    let server = start().await;
    let lock = open(&server).await;
    granted(&lock, &at_once(&key("x", 1, 5), X)).await;
    lock.convert(&key("x", 1, 5), Mode::READER).await.unwrap();
    for n in 0..5 {
        granted(&lock, &at_once(&key("x", 1, n), Mode::READER)).await;
    }
    assert_eq!(lock.force_release(&key("x", 1, 0).name).await.unwrap(), 6);
    let left = children(&server, "/dlock/locks/x").await;
    assert!(left.is_empty(), "with the mark of the downgrade: {left:?}");
    granted(&lock, &at_once(&key("x", 1, 9), X)).await;
    let address = server.address().to_string();
    let unfair = config().unfair().servers(&address).connect(here()).await.unwrap();
    let mut signals = unfair.signals();
    let k = key("x", 1, 0);
    granted(&unfair, &at_once(&k, X)).await;
    assert_eq!(unfair.force_release(&k.name).await.unwrap(), 1);
    // While it is looked for, a release is told to ask again.
    lost(&mut signals, vec![k.clone()]).await;
    granted(&unfair, &at_once(&key("x", 1, 1), X)).await;
    assert_eq!(unfair.release(&k, Release::Now).await.unwrap(), Released::NotHeld);
}
