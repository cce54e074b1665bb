//! Three members, of which one fails, stands still, or is cut off from the others.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dlock_core::spi::Lock as _;
use dlock_core::{Client, ErrorKind, Token};
use dlock_etcd::{Config, EtcdLock};
use dlock_testkit::{EtcdEnsemble, EtcdServer};

use crate::{LONG, SESSION, X, at_once, client_of, granted, hands, here, key, line, queued, until};

async fn ensemble() -> Arc<EtcdEnsemble> {
    tokio::task::spawn_blocking(|| Arc::new(EtcdEnsemble::start().unwrap()))
        .await
        .unwrap()
}

/// A lease that outlasts an election.
const THROUGH: Duration = Duration::from_secs(8);

/// Who knows those members, and asks the first of them first.
async fn open(servers: &EtcdEnsemble, members: &[usize], session: Duration) -> EtcdLock {
    let all = servers.addresses();
    let members: Vec<_> = members.iter().map(|n| all[*n].to_string()).collect();
    let config = Config::new(&members.join(",")).session_timeout(session);
    config.timeout(LONG / 4).connect(here()).await.unwrap()
}

async fn leader(servers: &Arc<EtcdEnsemble>) -> usize {
    hands(servers, |s| s.leader()).await
}

async fn cut(servers: &Arc<EtcdEnsemble>, member: usize) {
    hands(servers, move |s| {
        s.cut(member);
        Ok(())
    })
    .await;
}

async fn heal(servers: &Arc<EtcdEnsemble>, member: usize) {
    hands(servers, move |s| {
        s.heal(member);
        Ok(())
    })
    .await;
}

/// The members from that one on.
fn from(first: usize) -> [usize; 3] {
    [first, (first + 1) % 3, (first + 2) % 3]
}

/// What all clients together saw of one lock.
#[derive(Default)]
struct Seen {
    inside: AtomicU32,
    last: Mutex<Option<Token>>,
    grants: AtomicU32,
    over: AtomicBool,
}

impl Seen {
    async fn takes_part(&self, client: &Client) {
        let lock = client.lock("x").unwrap();
        while !self.over.load(Ordering::SeqCst) {
            let guard = match lock.acquire().await {
                Ok(guard) => guard,
                Err(e) => {
                    let kind = e.kind();
                    use ErrorKind::{Timeout, Unavailable, Unknown};
                    assert!(matches!(kind, Unavailable | Unknown | Timeout), "{e}: {e:?}");
                    continue;
                }
            };
            assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two have it");
            let before = self.last.lock().unwrap().replace(guard.token().unwrap());
            assert!(before < guard.token(), "{before:?}, and then {:?}", guard.token());
            self.grants.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            assert!(guard.is_valid(), "{:?}", guard.loss());
            self.inside.fetch_sub(1, Ordering::SeqCst);
            // What it has answered is for the next who comes.
            let _ = guard.release().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_has_it_at_a_time_while_leaders_are_killed() {
    let servers = ensemble().await;
    let seen = Arc::new(Seen::default());
    let mut crowd = Vec::new();
    for first in [0, 1, 2, 0] {
        // A request that dies with its leader is answered after six seconds, if its client waits so long.
        let lock = Arc::new(open(&servers, &from(first), THROUGH).await);
        let client = Client::builder(lock, here()).op_timeout(Duration::from_secs(1));
        let client = client.build().unwrap();
        let seen = seen.clone();
        crowd.push(tokio::spawn(async move {
            seen.takes_part(&client).await;
            client
        }));
    }
    for _ in 0..3 {
        let before = seen.grants.load(Ordering::SeqCst);
        hands(&servers, |s| {
            let leader = s.leader()?;
            s.crash(leader)?;
            s.start_again(leader)
        })
        .await;
        until("they go on", LONG, async || {
            seen.grants.load(Ordering::SeqCst) > before + 10
        })
        .await;
    }
    seen.over.store(true, Ordering::SeqCst);
    for one in crowd {
        one.await.unwrap();
    }
    until("nothing is left", LONG, async || {
        line(&servers.members()[0]).await.is_empty()
    })
    .await;
}

/// Those that were connected to it go over to another one, with the lease that they have.
#[tokio::test]
async fn clients_of_a_member_that_is_cut_off_keep_their_locks() {
    let servers = ensemble().await;
    for leads in [true, false] {
        let leader = leader(&servers).await;
        let away = if leads { leader } else { (leader + 1) % 3 };
        let session = SESSION * 2;
        let lock = open(&servers, &from(away), session).await;
        let lease = lock.lease_id();
        let client = client_of(lock.clone());
        let guard = client.lock("x").unwrap().acquire().await.unwrap();
        cut(&servers, away).await;
        let other = tokio::time::timeout(LONG, client.lock("y").unwrap().acquire()).await;
        drop(other.unwrap().unwrap());
        // Past what it could have known before.
        tokio::time::sleep(session / 3 + session / 6).await;
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert_eq!(lock.lease_id(), lease);
        guard.release().await.unwrap();
        heal(&servers, away).await;
        hands(&servers, |s| s.wait_until_ok()).await;
    }
}

/// It stops being valid before anybody else is granted the lock (etcd's issue 10811).
async fn clients_of_that_member_only(servers: &Arc<EtcdEnsemble>, away: usize) {
    let client = client_of(open(servers, &[away], SESSION).await);
    let next = client_of(open(servers, &from(away)[1..], LONG).await);
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn(async move {
        let guard = next.lock("x").unwrap().acquire().await;
        (guard.unwrap(), Instant::now())
    });
    let member = servers.members()[away].clone();
    until("it waits", LONG, async || line(&member).await.len() == 2).await;
    let lost = async {
        tokio::time::timeout(LONG, guard.lost())
            .await
            .map(|_| Instant::now())
    };
    let (lost, ()) = tokio::join!(lost, cut(servers, away));
    let lost = lost.unwrap();
    let (second, granted) = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap();
    assert!(lost < granted, "{:?} too late", lost - granted);
    assert!(second.token() > guard.token());
    second.release().await.unwrap();
    heal(servers, away).await;
    hands(servers, |s| s.wait_until_ok()).await;
    until("the same client has it again", LONG, async || {
        matches!(client.lock("x").unwrap().try_acquire().await, Ok(Some(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_have_it_when_a_leader_is_cut_off() {
    let servers = ensemble().await;
    let away = leader(&servers).await;
    clients_of_that_member_only(&servers, away).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_have_it_when_a_follower_is_cut_off() {
    let servers = ensemble().await;
    let away = (leader(&servers).await + 1) % 3;
    clients_of_that_member_only(&servers, away).await;
}

/// A renewal of theirs is not answered in time, and they ask another member.
#[tokio::test]
async fn clients_of_a_member_that_stands_still_go_on() {
    let servers = ensemble().await;
    for leads in [true, false] {
        let leader = leader(&servers).await;
        let still = if leads { leader } else { (leader + 1) % 3 };
        let lock = open(&servers, &from(still), SESSION * 2).await;
        let lease = lock.lease_id();
        let client = client_of(lock.clone());
        let guard = client.lock("x").unwrap().acquire().await.unwrap();
        let member = servers.members()[still].clone();
        hands(&member, EtcdServer::pause).await;
        let since = Instant::now();
        let other = client.lock("y").unwrap();
        let other = tokio::time::timeout(LONG, other.acquire()).await;
        drop(other.unwrap().unwrap());
        // A third of its ttl until it renews, a sixth for the answer, and the election; then some for a busy
        // machine.
        let took = since.elapsed();
        assert!(took < SESSION * 2, "{took:?}");
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert_eq!(lock.lease_id(), lease);
        hands(&member, EtcdServer::go_on).await;
        hands(&servers, |s| s.wait_until_ok()).await;
        assert!(guard.is_valid(), "{:?}", guard.loss());
        guard.release().await.unwrap();
    }
}

/// It stands still three quarters of the time, and never for as long as an election takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_member_costs_no_lock() {
    let servers = ensemble().await;
    for leads in [true, false] {
        let leader = leader(&servers).await;
        let slow = if leads { leader } else { (leader + 1) % 3 };
        let member = servers.members()[slow].clone();
        let seen = Arc::new(Seen::default());
        let (mut crowd, mut leases) = (Vec::new(), Vec::new());
        for first in [slow, slow + 1] {
            let lock = open(&servers, &from(first % 3), THROUGH).await;
            leases.push((lock.clone(), lock.lease_id()));
            let (client, seen) = (client_of(lock), seen.clone());
            crowd.push(tokio::spawn(async move {
                let held = client.lock(format!("held {first}")).unwrap();
                let held = held.acquire().await.unwrap();
                seen.takes_part(&client).await;
                assert!(held.is_valid(), "{:?}", held.loss());
                held.release().await.unwrap();
                client
            }));
        }
        hands(&member, |member| {
            for _ in 0..40 {
                member.pause()?;
                std::thread::sleep(Duration::from_millis(60));
                member.go_on()?;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        })
        .await;
        seen.over.store(true, Ordering::SeqCst);
        let clients = futures::future::join_all(crowd).await;
        let grants = seen.grants.load(Ordering::SeqCst);
        assert!(grants > 20, "{grants}, and a slow leader has it: {leads}");
        assert!(leases.iter().all(|(lock, lease)| lock.lease_id() == *lease));
        assert!(clients.iter().all(Result::is_ok), "{clients:?}");
    }
}

/// The request lies in its socket while its client gives it up by another member. When it goes on it carries
/// it out, or does not any more.
#[tokio::test]
async fn what_a_member_carries_out_late_leaves_nothing() {
    let servers = ensemble().await;
    let still = (leader(&servers).await + 1) % 3;
    let lock = open(&servers, &from(still), SESSION * 2).await;
    let member = servers.members()[still].clone();
    let given_up = key("x", 1, 1);
    hands(&member, EtcdServer::pause).await;
    let e = lock.attempt(&queued(&given_up, X)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
    until("it is abandoned", LONG, async || {
        let answers = lock.abandon(std::slice::from_ref(&given_up)).await;
        answers[0].is_ok()
    })
    .await;
    hands(&member, EtcdServer::go_on).await;
    hands(&servers, |s| s.wait_until_ok()).await;
    assert!(line(&member).await.is_empty());
}

/// A client that knows the other members waits for the missing one no longer than for any connection.
#[tokio::test]
async fn one_of_three_may_be_away_when_a_client_begins() {
    let servers = ensemble().await;
    hands(&servers, |s| s.crash(1)).await;
    let lock = open(&servers, &[1, 2, 0], THROUGH).await;
    granted(&lock, &at_once(&key("x", 1, 1), X)).await;
}
