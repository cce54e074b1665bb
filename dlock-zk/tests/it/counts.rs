//! What it costs, by the server's own count.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Acquire, LeaseKey, Lock as _, Release, RenewItem, RenewOutcome, RwLock as _, Watch};
use dlock_core::{Guard, Mode, Timestamp};
use dlock_zk::ZkLock;
use futures::StreamExt as _;

use crate::{
    LONG, at_once, client_of, config, granted, hands, here, key, listens, queued, turn, until, waits, with,
};
use dlock_testkit::{ZkOptions, ZkServer};

/// So long that nothing comes between two counts, however long that takes: no ping, and no sweep that finds a
/// line empty for a moment, which has to be made again then.
const UNHURRIED: Duration = Duration::from_secs(3600);

const X: Mode = Mode::Exclusive;

/// The requests of the first lock below a root, and its release.
const FIRST: u64 = 8;

async fn start() -> Arc<ZkServer> {
    let least = Duration::from_millis(400);
    with(ZkOptions::new().containers(UNHURRIED).sessions(least, UNHURRIED)).await
}

async fn open(server: &Arc<ZkServer>) -> ZkLock {
    let config = config().session_timeout(UNHURRIED);
    let lock = config
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap();
    listens(server, &lock).await;
    // Answered after what it listens to: from here on it has looked, and does not look for what it holds.
    lock.inspect(&key("none", 1, 0).name).await.unwrap();
    lock
}

fn ask(key: &LeaseKey, mode: Mode) -> Acquire {
    let mut request = queued(key, mode);
    request.ttl = UNHURRIED;
    request
}

async fn received(server: &Arc<ZkServer>, lock: &ZkLock) -> u64 {
    let session = lock.session_id().unwrap();
    let clients = hands(server, |s| s.clients()).await;
    clients.iter().find(|c| c.session == session).unwrap().received
}

#[tokio::test]
async fn a_cycle_costs_three_requests() {
    let server = start().await;
    let lock = open(&server).await;
    let cycle = async |n: u64| {
        let k = key(["x", "y"][n as usize % 2], 1, n);
        granted(&lock, &ask(&k, X)).await;
        lock.release(&k, Release::Now).await.unwrap();
    };
    let before = received(&server, &lock).await;
    cycle(0).await;
    // Once in vain, what is above it, and once more with its line; and the release.
    assert_eq!(received(&server, &lock).await - before, FIRST);
    cycle(1).await;
    let before = received(&server, &lock).await;
    for n in 2..=101 {
        cycle(n).await;
    }
    assert_eq!(received(&server, &lock).await - before, 300);
}

/// Those who hold other locks read what was ended, and look for nothing.
#[tokio::test]
async fn a_release_by_force_costs_others_one_request() {
    let server = start().await;
    let (lock, operator) = (open(&server).await, open(&server).await);
    for n in 0..3 {
        granted(&lock, &ask(&key(&format!("held-{n}"), 1, n), X)).await;
    }
    let before = received(&server, &lock).await;
    for n in 1..=3 {
        let other = key("other", 2, n);
        granted(&operator, &ask(&other, X)).await;
        assert_eq!(operator.force_release(&other.name).await.unwrap(), 1);
        until("it has read that", LONG, async || {
            received(&server, &lock).await >= before + n
        })
        .await;
    }
    assert_eq!(received(&server, &lock).await - before, 3);
}

/// It may not make the node that tells of ends by force, and tries to after a while.
#[tokio::test]
async fn a_client_that_may_not_listen_asks_now_and_then() {
    let server = start().await;
    hands(&server, |s| {
        s.with_session(|s| {
            // All rights but to create.
            s.create_with("/dlock", 0b11011)?;
            s.create("/dlock/sessions", b"")
        })
    })
    .await;
    let config = config().session_timeout(UNHURRIED);
    let address = server.address().to_string();
    let lock = config.servers(&address).connect(here()).await.unwrap();
    let before = received(&server, &lock).await;
    let from = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = received(&server, &lock).await - before;
    // Each time it looks for the node, for the directory, and for the node.
    let most = 4 * (1 + from.elapsed().as_secs());
    assert!(asked <= most, "{asked} requests, and not {most}");
}

#[tokio::test]
async fn a_look_is_one_and_a_watcher_looks_when_there_is_something() {
    let server = start().await;
    let lock = open(&server).await;
    let held = key("x", 1, 1);
    granted(&lock, &ask(&held, X)).await;
    let before = received(&server, &lock).await;
    lock.inspect(&held.name).await.unwrap();
    // It catches up, and reads the line and its holder.
    assert_eq!(received(&server, &lock).await - before, 3);
    hands(&server, |s| {
        s.with_session(|s| s.create("/dlock/locks/x/foreign", b""))
    })
    .await;
    lock.inspect(&held.name).await.unwrap_err();
    assert_eq!(received(&server, &lock).await - before, 5);
    let mut changes = Watch::watch(&lock, &key("y", 1, 2).name).await.unwrap();
    changes.next().await.unwrap().unwrap();
    let before = received(&server, &lock).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(received(&server, &lock).await, before);
}

/// From when a lease counts: from the last write that was answered, whatever it was.
#[tokio::test]
async fn each_write_is_a_sign_that_the_session_lives() {
    let server = start().await;
    let lock = open(&server).await;
    let held = [0, 1].map(|n| key(&format!("held-{n}"), 1, n));
    for k in &held {
        let from = Timestamp::now();
        assert!(granted(&lock, &ask(k, X)).await.counted_from >= from);
    }
    let (plain, converted) = (key("plain", 1, 2), key("converted", 1, 3));
    granted(&lock, &ask(&plain, X)).await;
    granted(&lock, &ask(&converted, X)).await;
    lock.convert(&converted, Mode::READER).await.unwrap();
    let items = held.map(|k| RenewItem::lease(k, UNHURRIED));
    for k in [plain, converted] {
        let from = Timestamp::now();
        lock.release(&k, Release::Now).await.unwrap();
        let before = received(&server, &lock).await;
        for renewed in lock.renew().unwrap().renew(&items).await {
            let RenewOutcome::Renewed(renewal) = renewed else {
                panic!("{renewed:?}");
            };
            assert!(renewal.counted_from >= from, "{renewal:?} after {k:?}");
        }
        assert_eq!(received(&server, &lock).await, before, "nothing was asked");
    }
}

#[tokio::test]
async fn an_unfair_cycle_costs_two_requests() {
    let server = start().await;
    let config = config().session_timeout(UNHURRIED).unfair();
    let lock = config
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap();
    listens(&server, &lock).await;
    let cycle = async |n: u64| {
        let k = key("x", 1, n);
        let mut request = at_once(&k, X);
        request.ttl = UNHURRIED;
        granted(&lock, &request).await;
        lock.release(&k, Release::Now).await.unwrap();
    };
    cycle(0).await;
    let before = received(&server, &lock).await;
    for n in 1..=100 {
        cycle(n).await;
    }
    assert_eq!(received(&server, &lock).await - before, 200);
}

// The first request for a name creates its queue, to be sure.
const MADE: u64 = 1;

/// Create and list to join, a look with a watch, a list when it fires, a deletion: five, however long the
/// line is.
#[tokio::test]
async fn a_hand_over_costs_five_requests_and_wakes_one() {
    let server = start().await;
    for waiters in [2_u64, 100] {
        let holder = open(&server).await;
        let waiting = open(&server).await;
        let name = format!("line-{waiters}");
        let first = key(&name, 1, 0);
        let second = |n| key(&name, 2, n);
        granted(&holder, &ask(&first, X)).await;
        let before = received(&server, &waiting).await;
        let mut line = Vec::new();
        for n in 0..waiters {
            line.push(waits(&waiting, &ask(&second(n), X)).await);
        }
        assert_eq!(
            received(&server, &waiting).await - before,
            2 * waiters + MADE,
            "to join"
        );
        // In the order of the line, each beside the others, as in the engine.
        let served: Vec<_> = line
            .into_iter()
            .enumerate()
            .map(|(n, mut wait)| {
                let (lock, key) = (waiting.clone(), second(n as u64));
                tokio::spawn(async move {
                    let grant = turn(&mut wait).await;
                    lock.release(&key, Release::Now).await.unwrap();
                    grant.token.unwrap()
                })
            })
            .collect();
        let watched = before + 3 * waiters + MADE;
        until("all watch", LONG, async || {
            received(&server, &waiting).await == watched
        })
        .await;
        holder.release(&first, Release::Now).await.unwrap();
        let mut tokens = Vec::new();
        for one in served {
            tokens.push(one.await.unwrap());
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        assert_eq!(
            received(&server, &waiting).await - before,
            5 * waiters + MADE,
            "{waiters} in line"
        );
    }
}

/// A woken waiter looks once, and watches one more node. Permit holders are in front of all waiters: each
/// release wakes each of them.
#[tokio::test]
async fn a_waiter_for_permits_watches_one_more_node() {
    const N: u64 = 10;
    let server = start().await;
    let (holder, waiting) = (open(&server).await, open(&server).await);
    let permit = Mode::permit(NonZeroU32::new(10).unwrap());
    for n in 0..N {
        granted(&holder, &ask(&key("x", 1, n), permit)).await;
    }
    let before = received(&server, &waiting).await;
    let mut line = Vec::new();
    for n in 0..N {
        let mut wait = waits(&waiting, &ask(&key("x", 2, n), permit)).await;
        line.push(tokio::spawn(async move { turn(&mut wait).await }));
    }
    let watched = before + 2 * N + MADE + N * N;
    until("all watch", LONG, async || {
        received(&server, &waiting).await == watched
    })
    .await;
    // From the last to the first.
    for (n, next) in (0..N).rev().zip(line) {
        holder.release(&key("x", 1, n), Release::Now).await.unwrap();
        next.await.unwrap();
    }
    let asked = received(&server, &waiting).await - watched;
    // Each looks, and all but the one that is let in watch one more. Who is let in takes back what it
    // watches, if nobody else does at that moment: at most all that told nothing.
    let (looks, watches) = (N * (N + 1) / 2, N * (N - 1) / 2);
    let taken_back = N * N + watches - looks;
    assert!(
        asked <= looks + watches + taken_back,
        "{asked} requests for {N} releases"
    );
}

/// One question for the whole session, however much it holds, and in however many batches that is renewed:
/// what was heard a moment ago is not asked again.
#[tokio::test]
async fn a_session_is_asked_for_once_whatever_it_holds() {
    const HOLDS: u64 = 200;
    let server = start().await;
    let lock = open(&server).await;
    let mut items = Vec::new();
    for n in 0..HOLDS {
        let k = key(&format!("held-{n}"), 1, n);
        granted(&lock, &ask(&k, X)).await;
        items.push(RenewItem::lease(k, UNHURRIED));
    }
    let before = received(&server, &lock).await;
    for batch in [2, 5, items.len()]
        .into_iter()
        .flat_map(|size| items.chunks(size))
    {
        let renewed = lock.renew().unwrap().renew(batch).await;
        assert!(
            renewed.iter().all(|r| matches!(r, RenewOutcome::Renewed(_))),
            "{renewed:?}"
        );
    }
    let asked = received(&server, &lock).await - before;
    assert!(asked <= 1, "{asked} requests");
}

/// What somebody deleted or ended by force is seen where just one is to be looked for: its node, and the
/// session.
#[tokio::test]
async fn a_lease_that_is_renewed_alone_is_looked_for() {
    let server = start().await;
    let lock = open(&server).await;
    granted(&lock, &ask(&key("other", 1, 0), X)).await;
    let k = key("alone", 1, 1);
    granted(&lock, &ask(&k, X)).await;
    let before = received(&server, &lock).await;
    let renewed = lock
        .renew()
        .unwrap()
        .renew(&[RenewItem::lease(k, UNHURRIED)])
        .await;
    assert!(matches!(renewed[..], [RenewOutcome::Renewed(_)]), "{renewed:?}");
    assert_eq!(received(&server, &lock).await - before, 2);
}

/// The same of the guards of a client. Those that fall due within an eighth of their period are renewed
/// together, which limits the requests in a period.
#[tokio::test]
async fn a_client_asks_seldom_however_many_guards_there_are() {
    const PERIODS: f64 = 6.0;
    let server = start().await;
    let session = Duration::from_secs(6);
    let lock = config()
        .session_timeout(session)
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap();
    // Each question writes the node of the session, and nobody else does.
    let node = format!("/dlock/sessions/{:016x}", lock.session_id().unwrap());
    let questions = async || {
        let node = node.clone();
        let stat = hands(&server, move |s| s.with_session(|s| s.stat(&node))).await;
        stat.unwrap().version
    };
    let client = client_of(lock.clone());
    let mut guards = Vec::new();
    for n in 0..200 {
        guards.push(client.lock(format!("held-{n}")).unwrap().acquire().await.unwrap());
    }
    let (from, before) = (tokio::time::Instant::now(), questions().await);
    // A third of what a session is believed in.
    let period = session.mul_f64(2.0 / 9.0);
    tokio::time::sleep(period.mul_f64(PERIODS)).await;
    let asked = questions().await - before;
    let periods = from.elapsed().div_duration_f64(period);
    assert!(guards.iter().all(Guard::is_valid));
    assert!(
        asked > 0 && f64::from(asked) < 10.0 * periods,
        "{asked} in {periods} periods"
    );
}
