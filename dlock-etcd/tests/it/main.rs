//! The etcd backend against real servers, which these tests start and stop: what the conformance kit, which
//! takes any backend, cannot know of this one.

#![allow(missing_docs, clippy::unwrap_used)]

mod bad_input;
mod counts;
mod ensemble;
mod full;
mod late;
mod lost_answers;
mod sessions;
mod shared_with_go;
mod smoke;
mod storm;
mod users;
mod watches;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::spi::{Acquire, Attempt, Grant, LeaseKey, Lock as _, Push, Queueing, Wait, Wake};
use dlock_core::{Client, LockName, Mode, RequestId, Runtime, runtime};
use dlock_etcd::{Config, EtcdLock};
use dlock_testkit::{EtcdOptions, EtcdServer};
use etcd_client::{GetOptions, KeyValue};
use futures::StreamExt as _;

/// Of leases that are to run out by themselves: long enough for a machine that is busy, short enough to wait
/// for.
pub(crate) const SESSION: Duration = Duration::from_secs(2);

/// Longer than a wait in these tests may be. Leases of all other tests are as long: none is lost because the
/// machine was busy.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) const X: Mode = Mode::Exclusive;

pub(crate) fn here() -> Arc<dyn Runtime> {
    runtime::detect().unwrap()
}

pub(crate) fn config(address: SocketAddr) -> Config {
    Config::new(&address.to_string())
        .session_timeout(LONG)
        .timeout(LONG)
}

pub(crate) async fn open_at(address: SocketAddr) -> EtcdLock {
    config(address).connect(here()).await.unwrap()
}

pub(crate) async fn open(server: &EtcdServer) -> EtcdLock {
    open_at(server.address()).await
}

/// Whose lease is one to wait for.
pub(crate) async fn brief(server: &EtcdServer) -> EtcdLock {
    let config = config(server.address()).session_timeout(SESSION);
    config.connect(here()).await.unwrap()
}

pub(crate) fn client_of(lock: EtcdLock) -> Client {
    let client = Client::builder(Arc::new(lock), here());
    client.op_timeout(LONG / 2).build().unwrap()
}

pub(crate) async fn client(server: &EtcdServer) -> Client {
    client_of(open(server).await)
}

pub(crate) fn key(name: &str, client: u128, sequence: u64) -> LeaseKey {
    let name = LockName::new(name).unwrap();
    LeaseKey::new(name, RequestId::new(client, sequence))
}

/// A request that does not wait.
pub(crate) fn at_once(key: &LeaseKey, mode: Mode) -> Acquire {
    Acquire::new(key.clone(), LONG).with_mode(mode)
}

/// A request that joins the line.
pub(crate) fn queued(key: &LeaseKey, mode: Mode) -> Acquire {
    let mut request = at_once(key, mode);
    request.queue = Queueing::Join;
    request.queue_ttl = LONG;
    request
}

pub(crate) async fn granted(lock: &EtcdLock, request: &Acquire) -> Grant {
    match lock.attempt(request).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// The same request again and again, as the engine does, while there is no connection.
pub(crate) async fn granted_in_the_end(lock: &EtcdLock, request: &Acquire) -> Grant {
    let from = Instant::now();
    loop {
        match lock.attempt(request).await {
            Ok(Attempt::Granted(grant)) => return grant,
            Err(e) if e.is_retryable() && from.elapsed() < LONG => {}
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn waits(lock: &EtcdLock, request: &Acquire) -> Wait {
    match lock.attempt(request).await.unwrap() {
        Attempt::Queued(wait) => wait,
        other => panic!("{other:?}"),
    }
}

/// What a waiter is told, within the limit. `None`: nothing, or that it has to ask again.
pub(crate) async fn pushed(wait: &mut Wait, limit: Duration) -> Option<Push> {
    let Wake::Push(stream) = &mut wait.wake else {
        panic!("etcd pushes");
    };
    tokio::time::timeout(limit, stream.next()).await.ok().flatten()
}

/// Waits for the turn of a waiter.
pub(crate) async fn turn(wait: &mut Wait) -> Grant {
    match pushed(wait, LONG).await {
        Some(Push::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

/// Blocking work on servers, beside a runtime that goes on.
pub(crate) async fn hands<S: Send + Sync + 'static, T: Send + 'static>(
    servers: &Arc<S>,
    work: impl FnOnce(&S) -> std::io::Result<T> + Send + 'static,
) -> T {
    let servers = servers.clone();
    tokio::task::spawn_blocking(move || work(&servers))
        .await
        .unwrap()
        .unwrap()
}

pub(crate) async fn start() -> Arc<EtcdServer> {
    with(EtcdOptions::new()).await
}

pub(crate) async fn with(options: EtcdOptions) -> Arc<EtcdServer> {
    tokio::task::spawn_blocking(|| Arc::new(EtcdServer::with(options).unwrap()))
        .await
        .unwrap()
}

/// What `etcdctl` says.
pub(crate) async fn etcdctl(server: &Arc<EtcdServer>, words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
    hands(server, move |s| {
        s.etcdctl(&words.iter().map(String::as_str).collect::<Vec<_>>())
    })
    .await
}

/// Ends a lease, as an operator does.
pub(crate) async fn revoke(server: &Arc<EtcdServer>, lease: i64) {
    etcdctl(server, &["lease", "revoke", &format!("{lease:x}")]).await;
}

/// The leases that there are.
pub(crate) async fn leases(server: &Arc<EtcdServer>) -> Vec<i64> {
    let mut client = etcd_client::Client::connect([server.address().to_string()], None)
        .await
        .unwrap();
    let there = client.leases().await.unwrap();
    there.leases().iter().map(etcd_client::LeaseStatus::id).collect()
}

/// All keys that begin so, in the order in which they were made.
pub(crate) async fn keys(server: &EtcdServer, prefix: &str) -> Vec<KeyValue> {
    let mut client = etcd_client::Client::connect([server.address().to_string()], None)
        .await
        .unwrap();
    let all = GetOptions::new().with_prefix();
    let mut found = client.get(prefix, Some(all)).await.unwrap().take_kvs();
    found.sort_by_key(KeyValue::create_revision);
    found
}

/// The entries of the lock `x`.
pub(crate) async fn line(server: &EtcdServer) -> Vec<KeyValue> {
    keys(server, "dlock/x/").await
}

/// Waits until it is so, and says how long that took.
pub(crate) async fn until(what: &str, limit: Duration, so: impl AsyncFn() -> bool) -> Duration {
    let from = Instant::now();
    while !so().await {
        assert!(from.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    from.elapsed()
}
