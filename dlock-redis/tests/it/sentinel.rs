//! Under sentinels: the master is found, and found again when it is another one.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Client, ErrorKind};

use crate::{client_of, config, here, until};
use dlock_testkit::RedisSentinel;

const LIMIT: Duration = Duration::from_secs(30);

fn url(all: &RedisSentinel) -> String {
    let sentinels: Vec<_> = all.sentinels().iter().map(ToString::to_string).collect();
    format!("redis+sentinel://{}/{}", sentinels.join(","), all.name())
}

async fn client(all: &RedisSentinel) -> Client {
    client_of(config(&url(all)).connect(here()).await.unwrap())
}

/// Blocking work, off the runtime.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test]
async fn a_client_follows_the_master() {
    let all = Arc::new(apart(|| RedisSentinel::start().unwrap()).await);
    let client = client(&all).await;
    let before = client.lock("x").unwrap().acquire().await.unwrap();
    let first = before.token().unwrap();
    before.release().await.unwrap();
    let over = all.clone();
    apart(move || over.fail_over().unwrap()).await;
    let lock = client.lock("x").unwrap();
    until("it is locked at the new master", LIMIT, async || {
        lock.try_acquire().await.is_ok_and(|g| g.is_some())
    })
    .await;
    let held = lock.acquire().await.unwrap();
    assert!(held.token().unwrap() > first);
    held.release().await.unwrap();
    // And when the master dies without a word, having given out what the replica never heard of.
    let (over, writer) = (all.clone(), client.lock("x").unwrap());
    let here = tokio::runtime::Handle::current();
    let unheard = apart(move || {
        over.crash_over_to_stale(|| {
            here.block_on(async {
                let held = writer.acquire().await.unwrap();
                let token = held.token().unwrap();
                held.release().await.unwrap();
                token
            })
        })
        .unwrap()
    })
    .await;
    until("it is locked at the third master", LIMIT, async || {
        lock.try_acquire()
            .await
            .is_ok_and(|g| g.is_some_and(|g| g.token().unwrap() > unheard))
    })
    .await;
}

/// What a replica acknowledged, it knows when it is the master.
#[tokio::test]
async fn a_grant_that_counts_outlives_the_master() {
    let all = Arc::new(apart(|| RedisSentinel::start().unwrap()).await);
    let config = config(&url(&all)).timeout(Duration::from_secs(4)).replicas(1);
    let client = client_of(config.connect(here()).await.unwrap());
    let lock = client.lock("x").unwrap();
    let held = Arc::new(std::sync::Mutex::new(None));
    until("it is granted", LIMIT, async || match lock.try_acquire().await {
        Ok(Some(guard)) => {
            *held.lock().unwrap() = Some(guard);
            true
        }
        _ => false,
    })
    .await;
    let over = all.clone();
    apart(move || over.fail_over().unwrap()).await;
    let other = self::client(&all).await.lock("x").unwrap();
    until("the new master answers", LIMIT, async || {
        other.try_acquire().await.map(|g| assert!(g.is_none())).is_ok()
    })
    .await;
    let held = held.lock().unwrap().take().unwrap();
    assert!(held.is_valid());
}

#[tokio::test]
async fn a_master_that_they_do_not_know_is_said() {
    let all = apart(|| RedisSentinel::start().unwrap()).await;
    let url = url(&all).replace(all.name(), "nobody");
    let e = config(&url).connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("no master of that name"), "{e}");
    // A sentinel is not a server.
    let e = config(&format!("redis://{}", all.sentinels()[0]))
        .connect(here())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("redis+sentinel"), "{e}");
}

/// Such as one behind a firewall, or whose machine was switched off: the others are not kept waiting for it.
#[tokio::test]
async fn a_first_sentinel_that_says_nothing_hides_no_master() {
    let all = apart(|| RedisSentinel::start().unwrap()).await;
    // Connections come as far as to the kernel.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = url(&all).replace("//", &format!("//{},", silent.local_addr().unwrap()));
    // Less than the driver gives each of them.
    let config = config(&url).timeout(Duration::from_millis(800));
    until("the master is found", Duration::from_secs(10), async || {
        config.clone().connect(here()).await.is_ok()
    })
    .await;
}
