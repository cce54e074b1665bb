//! On a cluster: names are spread over the masters, and followed when slots move and masters die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Client, Error, ErrorKind};
use futures::future::join_all;

use crate::{client_of, config, here, until};
use dlock_testkit::{RedisCluster, RedisOptions, RedisServer};

const LIMIT: Duration = Duration::from_secs(30);

fn url(cluster: &RedisCluster) -> String {
    let nodes: Vec<_> = cluster.addresses().iter().map(ToString::to_string).collect();
    format!("redis+cluster://{}", nodes.join(","))
}

pub(crate) async fn client(cluster: &RedisCluster) -> Client {
    client_of(config(&url(cluster)).connect(here()).await.unwrap())
}

/// Blocking work, off the runtime.
pub(crate) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// The tag of the bucket of a name: what decides about its slot.
pub(crate) fn tag(cluster: &RedisCluster, name: &str) -> String {
    let keys = cluster.nodes().iter().flat_map(|node| {
        let keys = node
            .ask(&["KEYS", &format!("dlock{{*}}:{}:{name}", name.len())])
            .unwrap();
        keys.list().unwrap()
    });
    let key = keys.map(|k| k.text()).next().unwrap();
    key.split_inclusive('}').next().unwrap().to_owned()
}

/// The slot of a name that is in use.
pub(crate) fn slot_of_name(cluster: &RedisCluster, name: &str) -> u16 {
    cluster.slot(tag(cluster, name)).unwrap()
}

/// A name that is at that master. Nothing is listened to there yet.
async fn name_at(cluster: &RedisCluster, client: &Client, master: usize) -> String {
    for n in 0.. {
        let name = format!("name-{n}");
        let held = client.lock(&name).unwrap().try_acquire().await.unwrap().unwrap();
        let is_there = cluster.master_of(slot_of_name(cluster, &name)).unwrap() == master;
        held.release().await.unwrap();
        if is_there {
            return name;
        }
    }
    unreachable!("there are names everywhere")
}

/// How often each node was asked where the slots are, in two seconds in which fifty tasks of one client try
/// in vain to have that lock.
async fn looks_while_unserved(cluster: &RedisCluster, client: &Client, name: &str) -> Vec<u64> {
    let looks = || -> Vec<_> {
        let running = cluster.nodes().iter().filter(|node| node.pid().is_some());
        running
            .map(|node| crate::counts::calls(node, "cluster|slots"))
            .collect()
    };
    let (before, until) = (looks(), Instant::now() + Duration::from_secs(2));
    join_all((0..50).map(async |_| {
        while Instant::now() < until {
            let e = client.lock(name).unwrap().try_acquire().await.unwrap_err();
            assert!(is_of_a_move(&e), "{e} {e:?}");
        }
    }))
    .await;
    looks()
        .iter()
        .zip(before)
        .map(|(now, before)| now - before)
        .collect()
}

/// Plain locks too: each where its name is, with whatever braces, and what is remembered of it in the same
/// slot.
#[tokio::test]
async fn plain_locks_are_where_their_names_are() {
    let cluster = apart(|| RedisCluster::start().unwrap()).await;
    let open = async || config(&url(&cluster)).connect_plain(here()).await.unwrap();
    let client = |lock| {
        let client = Client::builder(Arc::new(lock), here());
        client.op_timeout(Duration::from_secs(1)).build().unwrap()
    };
    let (one, two) = (client(open().await), client(open().await));
    let names = (0..40)
        .map(|n| format!("n{n}"))
        .chain(["a{b}c", "a{b", "a}{b}"].map(String::from));
    let held = join_all(names.map(async |name| {
        let guard = one.lock(&name).unwrap().acquire().await.unwrap();
        assert!(two.lock(&name).unwrap().try_acquire().await.unwrap().is_none());
        guard.renew().await.unwrap();
        // Given up, with a tombstone.
        let limited = dlock_core::LockOptions::new().wait_limit(Duration::from_millis(50));
        let waits = two.lock(&name).unwrap().options(limited).unwrap();
        assert_eq!(waits.acquire().await.unwrap_err().kind(), ErrorKind::Timeout);
        guard
    }))
    .await;
    for guard in held {
        guard.release().await.unwrap();
    }
    let e = one.lock("a}b").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
}

#[tokio::test]
async fn names_are_spread_handed_over_and_renewed() {
    let cluster = apart(|| RedisCluster::start().unwrap()).await;
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    let held = join_all((0..200).map(|n| {
        let lock = one.lock(format!("name-{n}")).unwrap();
        async move { lock.acquire().await.unwrap() }
    }))
    .await;
    for node in cluster.nodes() {
        let keys = node.ask(&["DBSIZE"]).unwrap().number().unwrap();
        assert!(keys > 20, "a node has {keys} of 200 names");
    }
    // Each is waited for by another client, and goes to it in the release.
    let waiting: Vec<_> = (0..200)
        .map(|n| {
            let lock = two.lock(format!("name-{n}")).unwrap();
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for guard in held {
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
    for waiter in waiting {
        tokio::time::timeout(LIMIT, waiter).await.unwrap().unwrap();
    }
}

/// A slot that moves takes holders, queues and counters with it; waiters are told by the node that it moved
/// to.
#[tokio::test]
async fn a_watch_that_begins_just_as_another_one_is_dropped_hears() {
    let cluster = apart(|| RedisCluster::start().unwrap()).await;
    let lock = config(&url(&cluster)).connect(here()).await.unwrap();
    crate::watches::watch_again_at_once(&lock).await;
}

#[tokio::test]
async fn a_slot_moves_under_a_holder_and_its_waiters() {
    let cluster = Arc::new(apart(|| RedisCluster::start().unwrap()).await);
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    let held = one.lock("x").unwrap().acquire().await.unwrap();
    let token = held.token().unwrap();
    let lock = two.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let slot = cluster.slot(tag(&cluster, "x")).unwrap();
    let from = cluster.master_of(slot).unwrap();
    let moving = cluster.clone();
    apart(move || moving.move_slot(slot, (from + 1) % 3).unwrap()).await;
    assert!(one.lock("x").unwrap().try_acquire().await.unwrap().is_none());
    held.renew().await.unwrap();
    let at = Instant::now();
    held.release().await.unwrap();
    let next = tokio::time::timeout(LIMIT, waiting).await.unwrap().unwrap();
    assert!(next.token().unwrap() > token);
    assert!(at.elapsed() < Duration::from_secs(3), "{:?}", at.elapsed());
    next.release().await.unwrap();
}

/// In a slot that is under way a script is refused what is not there, also in its middle. A downgrade that
/// took the hold away and then could not write down who shares would let the next writer in beside it.
#[tokio::test]
async fn a_downgrade_in_a_slot_that_moves_is_done_or_not() {
    let cluster = Arc::new(apart(|| RedisCluster::start().unwrap()).await);
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    let held = one.rwlock("x").unwrap().write().acquire().await.unwrap();
    let lock = two.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let slot = cluster.slot(tag(&cluster, "x")).unwrap();
    let from = cluster.master_of(slot).unwrap();
    let migration = cluster.migrate(slot, (from + 1) % 3).unwrap();
    let e = held.downgrade().await.unwrap_err();
    assert!(is_of_a_move(&e), "{e:?}");
    let key = format!("{}:1:x", tag(&cluster, "x"));
    let there = cluster.nodes()[from].ask(&["EXISTS", &key]).unwrap().number();
    assert_eq!(there.unwrap(), 1, "the hold was taken away");
    migration.move_keys().unwrap();
    migration.finish().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(held.is_valid());
    assert!(!waiting.is_finished(), "a writer beside a reader");
    held.release().await.unwrap();
    let next = tokio::time::timeout(LIMIT, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    next.release().await.unwrap();
}

/// A node that gives a slot away tells its listeners, unasked. Requests at that time must get their own
/// answers: one that got another's would believe in a grant that it does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_not_mixed_up_when_a_slot_moves_away() {
    let cluster = Arc::new(apart(|| RedisCluster::start().unwrap()).await);
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    // One waits for a name in that slot, so its client listens there.
    let held = one.lock("x").unwrap().acquire().await.unwrap();
    let slot = cluster.slot(tag(&cluster, "x")).unwrap();
    let lock = two.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    // And all the time many requests are under way, more to each node than the driver has room for.
    let stop = Arc::new(AtomicBool::new(false));
    let busy = (0..200).map(|n| {
        let (lock, stop) = (two.lock(format!("name-{n}")).unwrap(), stop.clone());
        tokio::spawn(async move {
            let mut cycles = 0;
            while !stop.load(Ordering::Relaxed) {
                match lock.try_acquire().await {
                    Ok(Some(held)) => match held.release().await {
                        Ok(()) => cycles += 1,
                        Err(e) => {
                            assert!(is_of_a_move(&e), "{e} {e:?}")
                        }
                    },
                    // Of one that was let go with an outcome that was not known.
                    Ok(None) => {}
                    Err(e) => {
                        assert!(is_of_a_move(&e), "{e} {e:?}")
                    }
                }
            }
            cycles
        })
    });
    let busy: Vec<_> = busy.collect();
    for _ in 0..6 {
        let moving = cluster.clone();
        apart(move || {
            let from = moving.master_of(slot).unwrap();
            moving.move_slot(slot, (from + 1) % 3).unwrap();
        })
        .await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let cycles: u64 = join_all(busy).await.into_iter().map(Result::unwrap).sum();
    assert!(cycles > 500, "{cycles}");
    held.release().await.unwrap();
    tokio::time::timeout(LIMIT, waiting).await.unwrap().unwrap();
}

/// What may come of a slot that is just under way.
fn is_of_a_move(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
}

#[tokio::test]
async fn a_master_dies_and_its_replica_goes_on() {
    let cluster = Arc::new(apart(|| RedisCluster::with(RedisOptions::new(), true).unwrap()).await);
    let client = client(&cluster).await;
    let lock = client.lock("x").unwrap();
    let held = lock.acquire().await.unwrap();
    let token = held.token().unwrap();
    let slot = cluster.slot(tag(&cluster, "x")).unwrap();
    let master = cluster.master_of(slot).unwrap();
    held.release().await.unwrap();
    let dying = cluster.clone();
    apart(move || dying.crash_over(master).unwrap()).await;
    until("it is locked at the new master", LIMIT, async || {
        lock.try_acquire()
            .await
            .is_ok_and(|g| g.is_some_and(|g| g.token().unwrap() > token))
    })
    .await;
}

/// One that nobody replaces: its names are out of reach, which is said within the operation's time; the
/// others go on.
#[tokio::test]
async fn a_cluster_that_is_down_is_said() {
    let cluster = apart(|| RedisCluster::start().unwrap()).await;
    let client = client(&cluster).await;
    client
        .lock("x")
        .unwrap()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    cluster.nodes()[0].crash().unwrap();
    cluster.nodes()[1].crash().unwrap();
    cluster.wait_until_down().unwrap();
    for n in 0..10 {
        let from = Instant::now();
        let tried = client.lock(format!("name-{n}")).unwrap().try_acquire().await;
        let e = tried.unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
            "{e}"
        );
        assert!(from.elapsed() < Duration::from_secs(3), "{:?}", from.elapsed());
    }
    // A new client is told too, at its first request at the latest.
    let from = Instant::now();
    let e = match config(&url(&cluster)).connect(here()).await {
        Ok(opened) => client_of(opened)
            .lock("x")
            .unwrap()
            .try_acquire()
            .await
            .unwrap_err(),
        Err(e) => e,
    };
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
}

async fn refusal(client: &Client, name: &str) -> Error {
    let from = Instant::now();
    let e = client.lock(name).unwrap().try_acquire().await.expect_err(name);
    assert!(
        from.elapsed() < Duration::from_secs(3),
        "{:?}: {e}",
        from.elapsed()
    );
    e
}

#[tokio::test]
async fn a_wrong_password_is_told_by_a_cluster_too() {
    let options = RedisOptions::new()
        .user("default off")
        .user("app on >right ~* &* +@all");
    let cluster = apart(|| RedisCluster::with(options, false).unwrap()).await;
    for who in ["app:hunter2@", "nobody:hunter2@", ""] {
        let url = url(&cluster).replace("//", &format!("//{who}"));
        let from = Instant::now();
        let e = config(&url).connect(here()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{who}: {e} {e:?}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        assert!(from.elapsed() < Duration::from_secs(3), "{:?}", from.elapsed());
    }
}

/// Where a cluster goes on without some of its slots, the names in those are out of reach and the others are
/// not.
#[tokio::test]
async fn an_unserved_slot_is_reported() {
    let options = RedisOptions::new().line("cluster-require-full-coverage no");
    let cluster = apart(|| RedisCluster::with(options, false).unwrap()).await;
    let client = client(&cluster).await;
    drop(client.lock("x").unwrap().acquire().await.unwrap());
    let slot = cluster.slot(tag(&cluster, "x")).unwrap();
    let master = cluster.master_of(slot).unwrap();
    cluster.nodes()[master]
        .ask(&["CLUSTER", "DELSLOTS", &slot.to_string()])
        .unwrap();
    let e = refusal(&client, "x").await;
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("cluster is down"), "{e}");
    for n in 0..10 {
        let name = format!("name-{n}");
        if cluster.slot(format!("{{{name}}}")).unwrap() != slot {
            drop(client.lock(name).unwrap().try_acquire().await.unwrap().unwrap());
        }
    }
}

/// Two nodes that each take the other for the owner: requests are redirected back and forth.
#[tokio::test]
async fn nodes_that_send_to_and_fro_are_said() {
    let cluster = apart(|| RedisCluster::start().unwrap()).await;
    let client = client(&cluster).await;
    drop(client.lock("x").unwrap().acquire().await.unwrap());
    let slot = cluster.slot(tag(&cluster, "x")).unwrap();
    let master = cluster.master_of(slot).unwrap();
    let other = (master + 1) % 3;
    let id = |n: usize| cluster.nodes()[n].ask(&["CLUSTER", "MYID"]).unwrap().text();
    let slot = slot.to_string();
    for (at, to) in [(master, other), (other, master)] {
        // A node does not give away a slot that it has keys of.
        cluster.nodes()[at].ask(&["FLUSHALL"]).unwrap();
        cluster.nodes()[at]
            .ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)])
            .unwrap();
    }
    let e = refusal(&client, "x").await;
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("do not agree"), "{e}");
}

#[tokio::test]
async fn a_node_is_no_server_and_a_server_no_cluster() {
    let cluster = apart(|| RedisCluster::start().unwrap()).await;
    let node = format!("redis://{}", cluster.addresses()[0]);
    let e = config(&node).connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("redis+cluster"), "{e}");
    let server = RedisServer::start().unwrap();
    let url = format!("redis+cluster://{}", server.address());
    config(&url).connect(here()).await.unwrap_err();
}

/// What one master says of the time is nothing that another one goes by: a grant that it pushes is asked for.
#[tokio::test]
async fn masters_whose_clocks_differ_are_not_mixed_up() {
    let options = RedisOptions::new().own_clock();
    let cluster = apart(|| RedisCluster::with(options, false).unwrap()).await;
    for (node, step) in cluster.nodes().iter().zip([-30_000, 0, 30_000]) {
        node.clock().unwrap().step(step).unwrap();
    }
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    // Names of all three, so that the last time that was heard is mostly of another one.
    for n in 0..30 {
        let name = format!("name-{n}");
        let held = one.lock(&name).unwrap().acquire().await.unwrap();
        let lock = two.lock(&name).unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let other = two.lock(format!("other-{n}")).unwrap();
        assert!(other.try_acquire().await.unwrap().is_some());
        let from = Instant::now();
        held.release().await.unwrap();
        let next = waiting.await.unwrap();
        assert!(
            from.elapsed() < Duration::from_millis(500),
            "{:?}",
            from.elapsed()
        );
        assert!(next.is_valid());
        // It believes in no more than it has.
        let key = format!("{}:{}:{name}", tag(&cluster, &name), name.len());
        let remaining = next.remaining();
        let left = cluster
            .nodes()
            .iter()
            .filter_map(|node| node.ask(&["PTTL", &key]).ok()?.number().ok());
        let left = left.max().unwrap();
        assert!(
            remaining.as_millis() as i64 <= left + 5,
            "{remaining:?} of {left} ms"
        );
        next.release().await.unwrap();
    }
}

/// One that is stopped keeps nobody from the names of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_costs_no_lease_at_the_others() {
    let options = RedisOptions::new().line("cluster-node-timeout 60000");
    let cluster = apart(|| RedisCluster::with(options, false).unwrap()).await;
    let client = client(&cluster).await;
    let ttl = dlock_core::LockOptions::new().ttl(Duration::from_secs(3));
    let (mut there, mut elsewhere) = (Vec::new(), Vec::new());
    for n in 0..600 {
        let name = format!("name-{n}");
        let guard = client.lock(&name).unwrap().options(ttl.clone()).unwrap();
        let guard = guard.acquire().await.unwrap();
        let slot = cluster.slot(tag(&cluster, &name)).unwrap();
        match cluster.master_of(slot).unwrap() {
            0 => there.push(name),
            _ => elsewhere.push(guard),
        }
        if elsewhere.len() >= 100 && there.len() >= 50 {
            break;
        }
    }
    cluster.nodes()[0].pause().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..500)
        .map(|n| {
            let lock = client.lock(&there[n % there.len()]).unwrap();
            let stop = stop.clone();
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let _ = lock.try_acquire().await;
                }
            })
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(8);
    let mut slowest = Duration::ZERO;
    while Instant::now() < until {
        let from = Instant::now();
        let fresh = client.lock("fresh").unwrap().try_acquire().await;
        slowest = slowest.max(from.elapsed());
        drop(fresh);
        let lost = elsewhere.iter().filter(|g| !g.is_valid()).count();
        assert_eq!(
            lost,
            0,
            "of {} leases at the others; {slowest:?}",
            elsewhere.len()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.store(true, Ordering::Relaxed);
    cluster.nodes()[0].go_on().unwrap();
    join_all(busy).await;
}

/// It runs on, says at once that it knows of no slots, and is all that the client was told of. What the
/// client has found out since is worth more.
#[tokio::test]
async fn a_seed_that_left_the_cluster_is_not_believed() {
    let cluster = Arc::new(apart(|| RedisCluster::start().unwrap()).await);
    let url = format!("redis+cluster://{}", cluster.addresses()[0]);
    let client = client_of(config(&url).connect(here()).await.unwrap());
    let name = name_at(&cluster, &client, 0).await;
    let leaving = cluster.clone();
    apart(move || leaving.leave(0, 1).unwrap()).await;
    // For a while it is the only one that says anything.
    for node in &cluster.nodes()[1..] {
        node.pause().unwrap();
    }
    let e = refusal(&client, &name).await;
    for node in &cluster.nodes()[1..] {
        node.go_on().unwrap();
    }
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let lock = client.lock(&name).unwrap();
    until("it is where it is now", LIMIT, async || {
        lock.try_acquire().await.is_ok_and(|held| held.is_some())
    })
    .await;
}

/// Where it is, is known: it is waited for, and not looked for.
#[tokio::test]
async fn a_moving_slot_starts_no_look_up() {
    let cluster = Arc::new(apart(|| RedisCluster::start().unwrap()).await);
    let client = client(&cluster).await;
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    let slot = slot_of_name(&cluster, "x");
    held.release().await.unwrap();
    let to = (cluster.master_of(slot).unwrap() + 1) % 3;
    let migration = cluster.migrate(slot, to).unwrap();
    // One of its keys is there and one is not, which is `TRYAGAIN`; then none is, which is `ASK`.
    for moved in [0, 1] {
        let looks = looks_while_unserved(&cluster, &client, "x").await;
        assert!(looks.iter().sum::<u64>() < 20, "{moved}: {looks:?}");
        assert_eq!(migration.move_keys().unwrap(), 1 - moved);
    }
    migration.finish().unwrap();
    assert!(client.lock("x").unwrap().try_acquire().await.unwrap().is_some());
}

/// Nobody takes its place, so that no look shows anything new.
#[tokio::test]
async fn a_master_that_is_dead_is_not_looked_for_all_the_time() {
    let cluster = Arc::new(apart(|| RedisCluster::start().unwrap()).await);
    let client = client(&cluster).await;
    let name = name_at(&cluster, &client, 0).await;
    cluster.nodes()[0].crash().unwrap();
    let looks = looks_while_unserved(&cluster, &client, &name).await;
    assert!(looks.iter().all(|n| *n < 20), "{looks:?}");
}
