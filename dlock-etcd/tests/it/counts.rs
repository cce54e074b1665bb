//! What it costs, by the server's own count.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Guard;
use dlock_core::spi::{Acquire, LeaseKey, Lock as _, Push, Release, RenewItem, RenewOutcome};
use dlock_etcd::EtcdLock;
use dlock_testkit::EtcdServer;

use crate::{LONG, X, client_of, config, granted, hands, here, key, pushed, queued, start, until, waits};

/// So long that no renewal comes between two counts, however long that takes.
const UNHURRIED: Duration = Duration::from_secs(3600);

async fn open(server: &Arc<EtcdServer>) -> EtcdLock {
    let config = config(server.address()).session_timeout(UNHURRIED);
    config.connect(here()).await.unwrap()
}

fn ask(key: &LeaseKey) -> Acquire {
    let mut request = queued(key, X);
    request.ttl = UNHURRIED;
    request
}

/// What the server has counted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    /// What a majority was asked to agree on.
    proposals: f64,
    puts: f64,
    deletes: f64,
    /// What was told to those who watch.
    events: f64,
    /// The same, and what was answered to those who begin or end to watch.
    told: f64,
}

async fn counts(server: &Arc<EtcdServer>) -> Counts {
    let watch = r#"{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}"#;
    hands(server, move |s| {
        Ok(Counts {
            proposals: s.metric("etcd_server_proposals_committed_total")?,
            puts: s.metric("etcd_mvcc_put_total")?,
            deletes: s.metric("etcd_mvcc_delete_total")?,
            events: s.metric("etcd_debugging_mvcc_events_total")?,
            told: s.metric(&format!("grpc_server_msg_sent_total{watch}"))?,
        })
    })
    .await
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            proposals: self.proposals - before.proposals,
            puts: self.puts - before.puts,
            deletes: self.deletes - before.deletes,
            events: self.events - before.events,
            told: self.told - before.told,
        }
    }
}

#[tokio::test]
async fn a_cycle_costs_two_proposals() {
    const CYCLES: u32 = 100;
    let server = start().await;
    let lock = open(&server).await;
    let cycle = async |n: u64, waits: bool| {
        let k = key("x", 1, n);
        let mut request = ask(&k);
        if !waits {
            request.queue = dlock_core::spi::Queueing::No;
        }
        granted(&lock, &request).await;
        lock.release(&k, Release::Now).await.unwrap();
    };
    cycle(0, true).await;
    for waits in [true, false] {
        let before = counts(&server).await;
        for n in 1..=u64::from(CYCLES) {
            cycle(n + if waits { 0 } else { 1000 }, waits).await;
        }
        let cost = counts(&server).await - before;
        let all = f64::from(CYCLES);
        let expected = Counts {
            proposals: 2.0 * all,
            puts: all,
            deletes: all,
            events: 0.0,
            told: 0.0,
        };
        assert_eq!(cost, expected, "waits: {waits}");
    }
    // One more line is expected to be empty, however many join it at once.
    let holder = open(&server).await;
    granted(&holder, &ask(&key("y", 2, 1))).await;
    let before = counts(&server).await;
    let asks: Vec<_> = (5000..5020).map(|n| ask(&key("y", 1, n))).collect();
    let _line = futures::future::join_all(asks.iter().map(|ask| waits(&lock, ask))).await;
    assert_eq!((counts(&server).await - before).proposals, 21.0);
}

/// One to join, one to leave, and one client is told of it, however long the line is.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_costs_two_proposals_and_wakes_one() {
    let server = start().await;
    for waiters in [2_u32, 100, 1000] {
        let (holder, waiting) = (open(&server).await, open(&server).await);
        let name = format!("line-{waiters}");
        let first = key(&name, 1, 0);
        granted(&holder, &ask(&first)).await;
        let before = counts(&server).await;
        let mut line = Vec::new();
        for n in 0..waiters {
            let key = key(&name, 2, n.into());
            line.push((key.clone(), waits(&waiting, &ask(&key)).await));
        }
        until("all watch", LONG, async || {
            let now = counts(&server).await - before;
            now.told >= waiters.into()
        })
        .await;
        // Each beside the others, as in the engine.
        let mut served = Vec::new();
        for (key, mut wait) in line {
            let lock = waiting.clone();
            served.push(tokio::spawn(async move {
                // A thousand others are before it.
                let Some(Push::Granted(grant)) = pushed(&mut wait, LONG * 10).await else {
                    panic!("it is its turn");
                };
                lock.release(&key, Release::Now).await.unwrap();
                grant.token.unwrap()
            }));
        }
        holder.release(&first, Release::Now).await.unwrap();
        let mut tokens = Vec::new();
        for one in served {
            tokens.push(one.await.unwrap());
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        let cost = counts(&server).await - before;
        let all = f64::from(waiters);
        assert_eq!((cost.puts, cost.deletes), (all, all + 1.0));
        assert_eq!(cost.proposals, 2.0 * all + 1.0, "{waiters} in line");
        assert_eq!(cost.events, all, "each is woken once");
        // That it has begun to watch, what it watched for, and that it has ended.
        assert!(cost.told <= 3.0 * all, "{waiters} in line: {cost:?}");
    }
}

/// The holder joins again by the name that it had, while that is watched yet.
#[tokio::test]
async fn a_later_waiter_wakes_no_earlier_one() {
    let server = start().await;
    let (a, b) = (open(&server).await, open(&server).await);
    granted(&a, &ask(&key("x", 1, 1))).await;
    let start = counts(&server).await;
    let mut wait = waits(&b, &ask(&key("x", 2, 1))).await;
    until("it watches", LONG, async || {
        (counts(&server).await - start).told >= 1.0
    })
    .await;
    let before = counts(&server).await;
    a.release(&key("x", 1, 1), Release::Now).await.unwrap();
    let _behind = waits(&a, &ask(&key("x", 1, 2))).await;
    crate::turn(&mut wait).await;
    assert_eq!((counts(&server).await - before).events, 1.0);
}

/// The whole client by one renewal, however much it holds, and in however many batches that is renewed: what
/// was heard a moment ago is not asked for again.
#[tokio::test]
async fn a_renewal_of_many_locks_costs_no_proposal() {
    const HOLDS: u64 = 250;
    let server = start().await;
    let lock = open(&server).await;
    let mut items = Vec::new();
    for n in 0..HOLDS {
        let k = key(&format!("held-{n}"), 1, n);
        granted(&lock, &ask(&k)).await;
        items.push(RenewItem::lease(k, UNHURRIED));
    }
    let before = (counts(&server).await, renewals(&server).await);
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
    assert_eq!(renewals(&server).await, before.1);
    let one = lock.renew().unwrap().renew(&items[..1]).await;
    assert!(matches!(one[..], [RenewOutcome::Renewed(_)]), "{one:?}");
    assert_eq!(renewals(&server).await, before.1 + 1.0);
    assert_eq!((counts(&server).await - before.0).proposals, 0.0);
}

/// How many renewals of leases it was asked for.
async fn renewals(server: &Arc<EtcdServer>) -> f64 {
    let stream =
        r#"{grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"}"#;
    let name = format!("grpc_server_msg_received_total{stream}");
    hands(server, move |s| s.metric(&name)).await
}

/// How many streams of renewals were begun, and how many of watches.
async fn streams(server: &Arc<EtcdServer>) -> (f64, f64) {
    let name = |service: &str, method: &str| {
        format!(
            "grpc_server_started_total{{grpc_method=\"{method}\",grpc_service=\"etcdserverpb.{service}\",\
             grpc_type=\"bidi_stream\"}}"
        )
    };
    let (leases, watches) = (name("Lease", "LeaseKeepAlive"), name("Watch", "Watch"));
    hands(server, move |s| Ok((s.metric(&leases)?, s.metric(&watches)?))).await
}

/// Three of its own in a ttl, and those that the engine asks for: of guards that fall due within an eighth of
/// their period it asks for all together.
#[tokio::test]
async fn a_client_asks_seldom_however_many_guards_there_are() {
    let counted = futures::join!(renewals_in_a_ttl(1), renewals_in_a_ttl(200));
    for asked in [counted.0, counted.1] {
        assert!((1.5..6.0).contains(&asked), "{counted:?}");
    }
}

async fn renewals_in_a_ttl(holds: u32) -> f64 {
    const TTL: Duration = Duration::from_secs(2);
    let server = start().await;
    let config = config(server.address()).session_timeout(TTL);
    let client = client_of(config.connect(here()).await.unwrap());
    let mut guards = Vec::new();
    for n in 0..holds {
        let lock = client.lock(format!("held-{n}")).unwrap();
        guards.push(lock.acquire().await.unwrap());
    }
    let (from, before) = (tokio::time::Instant::now(), renewals(&server).await);
    tokio::time::sleep(TTL * 2).await;
    let ttls = from.elapsed().div_duration_f64(TTL);
    let asked = renewals(&server).await - before;
    assert!(guards.iter().all(Guard::is_valid));
    assert_eq!(streams(&server).await, (1.0, 1.0), "{holds} guards");
    asked / ttls
}
