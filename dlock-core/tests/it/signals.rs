//! What a backend says by itself of the leases that it has, and when it says so.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::Nature;
use dlock_core::combinators::{Shard, Sharded};
use dlock_core::sim::Sim;
use dlock_core::spi::{LostLeases, Signal};
use dlock_core::{AutoRenew, Client, LockName, LockOptions, LossReason, Memory};
use futures::future::join;

use crate::twisted::Twisted;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn a_grant_lost_before_its_reply_is_read_never_becomes_a_guard() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let backend = Twisted::new(&store, sim.runtime());
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        let watching = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            backend.lose_next_grant.store(true, Ordering::SeqCst);
            let guard = client.lock("a").unwrap().acquire().await.unwrap();
            assert!(guard.is_valid());
            let holders = watching.inspect("a").await.unwrap().holders;
            assert_eq!(holders.len(), 1);
            assert_eq!(holders[0].id, guard.id());
        });
    }
}

/// The store does not say that it is lost, only that something happened: it is asked at once, and not when
/// the renewal is due.
#[test]
fn a_grant_on_its_way_during_doubt_is_renewed_at_once() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let backend = Twisted::new(&store, sim.runtime());
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            backend.forget_next_grant.store(true, Ordering::SeqCst);
            let guard = client.lock("a").unwrap().acquire().await.unwrap();
            sim.runtime().sleep(ms(50)).await;
            assert_eq!(guard.loss(), Some(LossReason::Refused), "seed {seed}");
        });
    }
}

/// The word of the end of a session comes late: meanwhile there is the next one, and a lease in it. It counts
/// as lost, for who knows; so it is given back, or it would be kept by nobody for as long as the session
/// lives.
#[test]
fn a_lease_taken_for_one_of_the_ended_session_is_given_back() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let of_a_session = |claims: dlock_core::Capabilities| claims.with_nature(Nature::Session);
        let backend = Twisted::of(store.connect(), sim.runtime(), of_a_session);
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        let other = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            let lock = |name| client.lock(name).unwrap();
            let (held, dropped) = (
                lock("held").acquire().await.unwrap(),
                lock("dropped").acquire().await.unwrap(),
            );
            // This one is owed already when the word comes, and cannot be paid before.
            backend.no_release.store(true, Ordering::SeqCst);
            drop(dropped);
            sim.runtime().sleep(ms(100)).await;
            backend.says(Signal::Lost(LostLeases::All, LossReason::SessionLost));
            assert_eq!(held.lost().await, LossReason::SessionLost);
            backend.no_release.store(false, Ordering::SeqCst);
            sim.runtime().sleep(Duration::from_secs(2)).await;
            for name in ["held", "dropped"] {
                let free = other.lock(name).unwrap().try_acquire().await.unwrap();
                assert!(
                    free.is_some(),
                    "seed {seed}: nobody holds {name}, and nobody can have it"
                );
            }
        });
    }
}

/// Without auto-renewal nobody asks for it again: what the shard says is all there is.
#[test]
fn a_shard_that_lost_all_loses_its_own_leases_and_no_others() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let stores = [Memory::new(sim.runtime()), Memory::new(sim.runtime())];
        let backends = [0, 1].map(|n: usize| Twisted::new(&stores[n], sim.runtime()));
        let shard = |n: usize| Shard::new(["east", "west"][n], backends[n].clone());
        let sharded = Sharded::new(vec![shard(0), shard(1)], sim.runtime(), ms(500)).unwrap();
        let of = |id: &str| {
            let mut names = (0..).map(|n| LockName::new(format!("name{n}")).unwrap());
            names.find(|name| sharded.shard_of(name) == id).unwrap()
        };
        let (eastern, western) = (of("east"), of("west"));
        let client = Client::builder(Arc::new(sharded), sim.runtime()).build().unwrap();
        sim.block_on(async {
            let options = LockOptions::new().auto_renew(AutoRenew::Off);
            let held = async |name: &LockName| {
                let lock = client.lock(name).unwrap().options(options.clone()).unwrap();
                lock.acquire().await.unwrap()
            };
            let (east, west) = (held(&eastern).await, held(&western).await);
            backends[0].says(Signal::Lost(LostLeases::All, LossReason::SessionLost));
            sim.runtime().sleep(ms(50)).await;
            assert_eq!(
                (east.loss(), west.loss()),
                (Some(LossReason::SessionLost), None),
                "seed {seed}"
            );
            assert!(west.is_valid());
        });
    }
}

/// One shard hangs, and would be waited for far longer than a lease lasts.
#[test]
fn hanging_shard_costs_others_no_renewal() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let stores = [Memory::new(sim.runtime()), Memory::new(sim.runtime())];
        let backends = [0, 1].map(|n: usize| Twisted::new(&stores[n], sim.runtime()));
        let shard = |n: usize| Shard::new(["east", "west"][n], backends[n].clone());
        let sharded = Sharded::new(vec![shard(0), shard(1)], sim.runtime(), Duration::from_secs(2)).unwrap();
        let names: Vec<_> = (0..20)
            .map(|n| LockName::new(format!("name{n}")).unwrap())
            .collect();
        let is_western: Vec<_> = names
            .iter()
            .map(|name| sharded.shard_of(name) == "west")
            .collect();
        let eastern = names.iter().zip(&is_western).find(|(_, west)| !**west).unwrap().0;
        let eastern = std::str::from_utf8(eastern.as_bytes()).unwrap().to_owned();
        let client = Client::builder(Arc::new(sharded), sim.runtime()).build().unwrap();
        sim.block_on(async {
            let options = LockOptions::new().ttl(Duration::from_secs(3));
            let mut guards = Vec::new();
            for name in &names {
                let lock = client.lock(name).unwrap().options(options.clone()).unwrap();
                guards.push(lock.acquire().await.unwrap());
            }
            *backends[0].away.lock().unwrap() = Some((eastern.leak(), Duration::from_secs(3600)));
            sim.runtime().sleep(Duration::from_secs(20)).await;
            for (guard, west) in guards.iter().zip(&is_western) {
                assert_eq!(guard.is_valid(), *west, "seed {seed}: {}", guard.name());
            }
        });
    }
}

/// Somebody stands in line on one shard for a while, and another shard loses what it had: the turn is as good
/// as before.
#[test]
fn loss_of_a_shard_costs_no_queue_place_on_another() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let stores = [Memory::new(sim.runtime()), Memory::new(sim.runtime())];
        let backends = [0, 1].map(|n: usize| Twisted::new(&stores[n], sim.runtime()));
        let shard = |n: usize| Shard::new(["east", "west"][n], backends[n].clone());
        let sharded = Sharded::new(vec![shard(0), shard(1)], sim.runtime(), ms(500)).unwrap();
        let mut names = (0..).map(|n| LockName::new(format!("name{n}")).unwrap());
        let western = names.find(|name| sharded.shard_of(name) == "west").unwrap();
        let client = Client::builder(Arc::new(sharded), sim.runtime()).build().unwrap();
        let other = Client::builder(stores[1].connect(), sim.runtime())
            .build()
            .unwrap();
        sim.block_on(async {
            let held = other.lock(&western).unwrap().acquire().await.unwrap();
            let lock = client.lock(&western).unwrap();
            let mut waiting = pin!(lock.acquire());
            let turn = async {
                sim.runtime().sleep(Duration::from_secs(20)).await;
                backends[0].says(Signal::Lost(LostLeases::All, LossReason::SessionLost));
                sim.runtime().sleep(ms(10)).await;
                held.release().await.unwrap();
                // Its turn, and nobody else's.
                let tried = other.lock(&western).unwrap().try_acquire().await.unwrap();
                assert!(tried.is_none(), "seed {seed}");
            };
            let (guard, ()) = join(waiting.as_mut(), turn).await;
            assert!(guard.unwrap().is_valid(), "seed {seed}");
        });
    }
}

/// What tells the lost ones from others panics: whatever it was asked of counts as lost, and the client goes
/// on.
#[test]
fn panicking_loss_predicate_counts_as_lost() {
    let sim = Sim::new(1);
    let store = Memory::new(sim.runtime());
    let backend = Twisted::new(&store, sim.runtime());
    let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
    sim.block_on(async {
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let broken = LostLeases::of(|_| std::panic::resume_unwind(Box::new("broken")));
        backend.says(Signal::Lost(broken, LossReason::SessionLost));
        assert_eq!(guard.lost().await, LossReason::SessionLost);
        client.lock("b").unwrap().acquire().await.unwrap();
    });
}
