//! The Redis backend against real servers, which these tests start and stop: what the conformance kit, which
//! takes any backend, cannot know of this one.

#![allow(missing_docs, clippy::unwrap_used)]

mod bad_input;
#[cfg(feature = "cluster")]
mod bad_node;
#[cfg(feature = "cluster")]
mod cluster;
mod counts;
mod demoted;
mod ears;
mod halfway;
mod hand_over;
mod listing;
mod lost_answers;
mod members;
mod plain;
mod rejoin;
mod replicas;
#[cfg(feature = "sentinel")]
mod sentinel;
mod short_ways;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod tokens;
mod too_old;
mod upgrades;
mod users;
mod waiters;
mod watches;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::RequestId;
use dlock_core::spi::{Acquire, Attempt, LeaseKey, Queueing};
use dlock_core::{Client, LockName, Runtime, runtime};
use dlock_redis::{Config, RedisLock};

use dlock_testkit::RedisServer;

/// Of the tests' own: long enough for a machine that is busy, short enough to wait for.
const TTL: Duration = Duration::from_secs(2);

pub(crate) fn here() -> Arc<dyn Runtime> {
    runtime::detect().unwrap()
}

/// That URL, with a timeout of the tests' own.
pub(crate) fn config(url: &str) -> Config {
    Config::from_url(url).unwrap().timeout(Duration::from_secs(1))
}

pub(crate) async fn open(server: &RedisServer) -> RedisLock {
    config(&server.url()).connect(here()).await.unwrap()
}

pub(crate) fn client_of(lock: RedisLock) -> Client {
    let client = Client::builder(Arc::new(lock), here());
    client.op_timeout(Duration::from_secs(1)).build().unwrap()
}

pub(crate) async fn client(server: &RedisServer) -> Client {
    client_of(open(server).await)
}

pub(crate) fn key(name: &str, client: u128, sequence: u64) -> LeaseKey {
    let name = LockName::new(name).unwrap();
    LeaseKey::new(name, RequestId::new(client, sequence))
}

/// An exclusive request that queues.
pub(crate) fn queued(key: &LeaseKey) -> Acquire {
    let mut request = Acquire::new(key.clone(), TTL);
    request.queue = Queueing::Join;
    request.queue_ttl = Duration::from_secs(30);
    request
}

pub(crate) fn is_granted(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Granted(_))
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
