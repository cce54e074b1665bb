//! The ZooKeeper backend against real servers, which these tests start and stop: what the conformance kit,
//! which takes any backend, cannot know of this one.

#![allow(missing_docs, clippy::unwrap_used)]

mod away;
mod bad_input;
mod bent;
mod beside;
mod clocks;
mod counts;
mod forced;
mod frames;
mod gate;
mod lost_answers;
mod many_waiters;
mod modes;
mod names;
mod numbers;
mod quorum;
mod readings;
mod refused;
mod sessions;
mod stale_leader;
mod too_old;
mod unfair;
mod unfair_nodes;
mod users;
mod watches;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::RequestId;
use dlock_core::spi::{Acquire, Attempt, Grant, LeaseKey, Lock as _, Push, Queueing, Wait, Wake};
use dlock_core::{Client, LockName, Mode, Runtime, runtime};
use dlock_zk::{Config, ZkLock};
use futures::StreamExt as _;

use dlock_testkit::{ZkOptions, ZkServer};

/// Of sessions that are to run out by themselves: long enough for a machine that is busy, short enough to
/// wait for.
pub(crate) const SESSION: Duration = Duration::from_secs(2);

/// Longer than a wait in these tests may be. Sessions of all other tests are as long: none is lost because
/// the machine was busy.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) fn here() -> Arc<dyn Runtime> {
    runtime::detect().unwrap()
}

pub(crate) fn config() -> Config {
    Config::new("localhost").session_timeout(LONG).timeout(LONG)
}

pub(crate) async fn open(server: &ZkServer) -> ZkLock {
    config()
        .servers(&server.address().to_string())
        .connect(here())
        .await
        .unwrap()
}

pub(crate) fn client_of(lock: ZkLock) -> Client {
    let client = Client::builder(Arc::new(lock), here());
    client.op_timeout(LONG / 2).build().unwrap()
}

pub(crate) async fn client(server: &ZkServer) -> Client {
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

pub(crate) async fn granted(lock: &ZkLock, request: &Acquire) -> Grant {
    match lock.attempt(request).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn waits(lock: &ZkLock, request: &Acquire) -> Wait {
    match lock.attempt(request).await.unwrap() {
        Attempt::Queued(wait) => wait,
        other => panic!("{other:?}"),
    }
}

/// What a waiter is told, within the limit.
pub(crate) async fn pushed(wait: &mut Wait, limit: Duration) -> Option<Push> {
    let Wake::Push(stream) = &mut wait.wake else {
        panic!("ZooKeeper pushes");
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

/// Blocking work on a server, beside a runtime that goes on.
pub(crate) async fn hands<T: Send + 'static>(
    server: &Arc<ZkServer>,
    work: impl FnOnce(&ZkServer) -> std::io::Result<T> + Send + 'static,
) -> T {
    let server = server.clone();
    tokio::task::spawn_blocking(move || work(&server))
        .await
        .unwrap()
        .unwrap()
}

/// Ends a session, as if it had run out. Its client may be quicker, and take it back before it is ended.
pub(crate) async fn expire(server: &Arc<ZkServer>, session: i64) {
    hands(server, move |s| {
        while s.expire(session).is_err() {
            let path = format!("/dlock/sessions/{session:016x}");
            if s.with_session(|s| s.stat(&path))?.is_none() {
                break;
            }
        }
        Ok(())
    })
    .await;
}

pub(crate) async fn start() -> Arc<ZkServer> {
    with(ZkOptions::new()).await
}

pub(crate) async fn with(options: ZkOptions) -> Arc<ZkServer> {
    tokio::task::spawn_blocking(|| Arc::new(ZkServer::with(options).unwrap()))
        .await
        .unwrap()
}

/// The nodes of that line.
pub(crate) async fn children(server: &Arc<ZkServer>, path: &str) -> Vec<String> {
    let path = path.to_owned();
    hands(server, move |s| s.with_session(|s| s.children(&path)))
        .await
        .unwrap_or_default()
}

/// The nodes whose data that client watches, by what the server says.
pub(crate) async fn watched_by(server: &Arc<ZkServer>, lock: &ZkLock) -> Vec<String> {
    let session = format!("0x{:x}", lock.session_id().unwrap());
    let text = hands(server, |s| s.four_letters("wchc")).await;
    // A line for each session, and behind it one for each of its nodes.
    let own = text.lines().skip_while(|line| *line != session).skip(1);
    own.map_while(|line| line.strip_prefix('\t').map(str::to_owned))
        .collect()
}

/// Waits until a new client has done its start-up work, whose last step is to listen.
pub(crate) async fn listens(server: &Arc<ZkServer>, lock: &ZkLock) {
    until("it listens", LONG, async || {
        watched_by(server, lock)
            .await
            .contains(&"/dlock/forced".to_owned())
    })
    .await;
}

/// A request that is given up before its answer comes.
pub(crate) async fn unanswered<T>(request: impl Future<Output = T>) {
    let given_up = tokio::time::timeout(Duration::from_millis(100), request).await;
    assert!(given_up.is_err(), "it was answered");
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
