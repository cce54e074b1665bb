//! A network that swallows everything and breaks no connection: no driver is told.

use std::net::SocketAddr;
use std::time::Instant;

use dlock_conformance::network::{Direction, Fault, FaultGuard, Network as _};
use dlock_conformance::proxy::ProxyNetwork;

use crate::site::{Judge, LONG, SESSION, SLACK, acquired, alone, client, ensemble, lateness};

async fn a_holder_is_cut_off(addresses: Vec<SocketAddr>, how: Direction) {
    let servers: Vec<_> = addresses.iter().map(|at| (*at).into()).collect();
    let net = ProxyNetwork::start(&servers).unwrap();
    let behind: Vec<_> = net.addresses().iter().map(|at| at.tcp().unwrap()).collect();
    let judge = Judge::default();
    let holder = client(&behind).await;
    let guard = acquired(&holder).await;
    judge.sees(&guard);
    // Past its first ttl: it is renewed.
    tokio::time::sleep(SESSION + SESSION / 4).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    let other = client(&addresses).await;
    let waiter = tokio::spawn(async move {
        let guard = acquired(&other).await;
        (Instant::now(), other, guard)
    });

    let from = Instant::now();
    let hole: Vec<FaultGuard> = (0..addresses.len())
        .map(|n| net.server(n).unwrap().begin(Fault::BlackHole(how)))
        .collect();
    let (why, late) = tokio::time::timeout(LONG, lateness(&guard)).await.unwrap();
    assert!(late < SLACK, "{why:?} was told {late:?} after the deadline");
    assert!(
        from.elapsed() < SESSION + SLACK,
        "told after {:?}",
        from.elapsed()
    );
    // The server hears of its session each time that the driver tries to connect. So who is heard has a
    // network again here, and the node that nobody owns any more is taken away.
    let mut hole = Some(hole);
    if how == Direction::ToClient {
        hole = None;
    }
    let healed = Instant::now();
    let (granted, other, next) = tokio::time::timeout(LONG, waiter).await.unwrap().unwrap();
    judge.sees(&next);
    let waited = granted.saturating_duration_since(if hole.is_some() { from } else { healed });
    assert!(waited < SESSION + SLACK, "granted after {waited:?}");

    // It is as good as anybody when it is back.
    drop(hole);
    next.release().await.unwrap();
    let again = acquired(&holder).await;
    judge.sees(&again);
    again.release().await.unwrap();
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_off_holder_is_told_before_the_next_grant() {
    let server = alone().await;
    a_holder_is_cut_off(vec![server.address()], Direction::Both).await;
}

/// What it asks arrives, so that the server keeps its session; but who does not hear that must not believe
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_can_only_send_is_told_before_the_next_grant() {
    let server = alone().await;
    a_holder_is_cut_off(vec![server.address()], Direction::ToClient).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_cut_from_an_ensemble_is_told_before_the_next_grant() {
    let all = ensemble().await;
    a_holder_is_cut_off(all.addresses(), Direction::Both).await;
}
