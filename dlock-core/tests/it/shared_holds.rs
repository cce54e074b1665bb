//! Holds that several guards share, and holds that change their mode, in virtual time.

use std::sync::Arc;

use dlock_core::sim::{FaultPlan, Link, Sim};
use dlock_core::{Client, ErrorKind, Memory, Upgrade};
use futures::future::select;

use crate::world::*;

#[test]
fn re_entry_counts_and_is_local_to_its_owner() {
    simulate(|w| async move {
        let client = w.client();
        let owner = client.owner();
        let lock = client.lock("a").unwrap().reentrant(&owner).unwrap();
        let (outer, inner) = futures::join!(lock.acquire(), lock.acquire());
        let (outer, inner) = (outer.unwrap(), inner.unwrap());
        assert_eq!((outer.token(), outer.id()), (inner.token(), inner.id()));
        let stranger = client.lock("a").unwrap().reentrant(&client.owner()).unwrap();
        assert!(stranger.try_acquire().await.unwrap().is_none());
        outer.release().await.unwrap();
        assert!(inner.is_valid());
        assert!(stranger.try_acquire().await.unwrap().is_none());
        drop(inner);
        w.sleep(ms(1)).await;
        assert!(stranger.try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn a_lost_lease_is_lost_at_every_level_and_cannot_be_re_entered() {
    simulate(|w| async move {
        let client = w.client();
        let lock = client
            .lock("a")
            .unwrap()
            .options(passive(100))
            .unwrap()
            .reentrant(&client.owner())
            .unwrap();
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        w.sleep(ms(200)).await;
        assert!(!outer.is_valid() && !inner.is_valid());
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Lost);
        drop((outer, inner));
        assert!(lock.acquire().await.unwrap().is_valid());
    });
}

#[test]
fn an_owner_has_a_limit() {
    simulate(|w| async move {
        let client = w.client();
        let lock = client.lock("a").unwrap().reentrant(&client.owner()).unwrap();
        let mut guards = Vec::new();
        for _ in 0..dlock_core::Owner::MAX_DEPTH {
            guards.push(lock.acquire().await.unwrap());
        }
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::LimitReached);
    });
}

#[test]
fn downgrade_lets_no_writer_in_between_and_readers_in_at_once() {
    simulate(|w| async move {
        let (a, b, c) = (w.client(), w.client(), w.client());
        let writer = a.rwlock("a").unwrap().write().acquire().await.unwrap();
        let (read, write) = (b.rwlock("a").unwrap(), c.rwlock("a").unwrap());
        let mut reading = Box::pin(read.read().acquire());
        assert!(futures::poll!(reading.as_mut()).is_pending());
        let mut writing = Box::pin(write.write().acquire());
        assert!(futures::poll!(writing.as_mut()).is_pending());
        let token = writer.token();
        writer.downgrade().await.unwrap();
        assert_eq!(writer.token(), token);
        let reader = reading.await.unwrap();
        assert!(futures::poll!(writing.as_mut()).is_pending());
        drop((writer, reader));
        assert!(writing.await.unwrap().token() > token);
    });
}

#[test]
fn a_downgrade_that_is_refused_leaves_the_guard_as_it_was() {
    simulate(|w| async move {
        let (client, other) = (w.client(), w.client());
        let guard = client.lock("a").unwrap().acquire().await.unwrap();
        let token = guard.token();
        // Waits for a permit, so that the name has no room for readers.
        let permits = other.semaphore("a", 2).unwrap();
        let mut waiting = Box::pin(permits.acquire());
        select(&mut waiting, w.runtime.sleep(ms(50))).await;
        let refused = guard.downgrade().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(guard.mode().is_exclusive(), "{guard:?}");
        assert_eq!(guard.try_upgrade().await.unwrap(), Upgrade::Done);
        assert_eq!(guard.token(), token);
    });
}

#[test]
fn of_two_upgraders_none_waits_for_the_other() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let one = a.rwlock("a").unwrap().read().acquire().await.unwrap();
        let two = b.rwlock("a").unwrap().read().acquire().await.unwrap();
        let (x, y) = futures::join!(one.try_upgrade(), two.try_upgrade());
        assert!(x.unwrap() != Upgrade::Done && y.unwrap() != Upgrade::Done);
        assert!(one.is_valid() && two.is_valid());
        let token = two.token();
        two.release().await.unwrap();
        assert_eq!(one.try_upgrade().await.unwrap(), Upgrade::Done);
        assert!(one.mode().is_exclusive() && one.token() > token);
    });
}

/// A guard whose dropped upgrade the store may have done is a reader here and a writer there.
#[test]
fn downgrade_after_unanswered_upgrade_asks_the_store() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let (server, node) = (sim.runtime(), sim.client_runtime_with("client", ms(0), 0));
        let on_server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(on_server.clone()));
        let link = Link::new(store.connect(), &node, &on_server, FaultPlan::healthy());
        let client = Client::builder(link.clone(), Arc::new(node)).build().unwrap();
        let other = Client::builder(store.connect(), server.clone()).build().unwrap();
        sim.block_on(async move {
            let guard = client.rwlock("a").unwrap().read().acquire().await.unwrap();
            let others = other.rwlock("a").unwrap();
            let mut dropped = Box::pin(guard.try_upgrade());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            drop(dropped);
            server.sleep(ms(100)).await;
            assert!(!guard.mode().is_exclusive());
            assert!(others.read().try_acquire().await.unwrap().is_none());
            guard.downgrade().await.unwrap();
            assert!(others.read().try_acquire().await.unwrap().is_some());

            // Not waited for, the upgrade may arrive after the downgrade that was to take it back. So the
            // next downgrade is sent too.
            let mut dropped = Box::pin(guard.try_upgrade());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            drop(dropped);
            guard.downgrade().await.unwrap();
            server.sleep(ms(100)).await;
            guard.downgrade().await.unwrap();
            assert!(others.read().try_acquire().await.unwrap().is_some());
            assert!(guard.is_valid() && !guard.mode().is_exclusive());
        });
    }
}

#[test]
fn while_a_conversion_waits_for_its_answer_no_other_is_sent() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let node = sim.client_runtime_with("client", ms(0), 0);
        let server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(server.clone()));
        let link = Link::new(store.connect(), &node, &server, FaultPlan::healthy());
        let client = Client::builder(link, Arc::new(node)).build().unwrap();
        sim.block_on(async move {
            let guard = client.rwlock("a").unwrap().write().acquire().await.unwrap();
            let (one, two) = futures::join!(guard.downgrade(), guard.downgrade());
            one.unwrap();
            assert_eq!(two.unwrap_err().kind(), ErrorKind::Unavailable);
            // Both were answered, so an upgrade is safe.
            assert_eq!(guard.try_upgrade().await.unwrap(), Upgrade::Done);
            let (down, up) = futures::join!(guard.downgrade(), guard.try_upgrade());
            down.unwrap();
            assert_eq!(up.unwrap(), Upgrade::Busy);
            assert!(!guard.mode().is_exclusive());
        });
    }
}

/// The old downgrade arrives last: had the upgrade been answered meanwhile, a reader would be let in beside
/// an exclusive guard.
#[test]
fn after_an_unanswered_downgrade_there_is_no_upgrade() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let (server, node) = (sim.runtime(), sim.client_runtime_with("client", ms(0), 0));
        let on_server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(on_server.clone()));
        let link = Link::new(store.connect(), &node, &on_server, FaultPlan::healthy());
        let client = Client::builder(link.clone(), Arc::new(node)).build().unwrap();
        let other = Client::builder(store.connect(), server.clone()).build().unwrap();
        sim.block_on(async move {
            let guard = client.rwlock("a").unwrap().write().acquire().await.unwrap();
            link.hold();
            let mut dropped = Box::pin(guard.downgrade());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            drop(dropped);
            assert!(!guard.mode().is_exclusive());
            assert_eq!(guard.try_upgrade().await.unwrap_err().kind(), ErrorKind::Unknown);
            link.let_go();
            let reader = other.rwlock("a").unwrap().read().acquire().await.unwrap();
            assert!(guard.is_valid() && reader.is_valid());
            // Settled at once by asking again; upgraded never.
            guard.downgrade().await.unwrap();
            reader.release().await.unwrap();
            assert_eq!(guard.try_upgrade().await.unwrap_err().kind(), ErrorKind::Unknown);
        });
    }
}

#[test]
fn of_two_upgrades_of_one_hold_one_is_under_way() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let node = sim.client_runtime_with("client", ms(0), 0);
        let server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(server.clone()));
        let link = Link::new(store.connect(), &node, &server, FaultPlan::healthy());
        let client = Client::builder(link, Arc::new(node)).build().unwrap();
        sim.block_on(async move {
            let guard = client.rwlock("a").unwrap().read().acquire().await.unwrap();
            let (one, two) = futures::join!(guard.try_upgrade(), guard.try_upgrade());
            assert_eq!((one.unwrap(), two.unwrap()), (Upgrade::Done, Upgrade::Busy));
            // A dropped one is nobody's answer: the next may be sent.
            guard.downgrade().await.unwrap();
            let mut dropped = Box::pin(guard.try_upgrade());
            assert!(futures::poll!(dropped.as_mut()).is_pending());
            drop(dropped);
            assert_eq!(guard.try_upgrade().await.unwrap(), Upgrade::Done);
        });
    }
}
