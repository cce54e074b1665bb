//! Members of two kinds. Redis counts its tokens in microseconds since 1970, SQLite from one: what makes them
//! one order is that the largest is written back to the majority.

use std::sync::Arc;
use std::time::Duration;

use dlock::spi::Lock;
use dlock::{Capability, Guard, Strength, runtime};
use dlock::{redis, sqlite};

use crate::site::{LONG, NAME, Resource, client_of};
use dlock_testkit::{Persistence, RedisOptions, RedisServer};

/// Two Redis servers and a file. Each of them is away in turn, so that each majority grants.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_every_majority_of_redis_and_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let kept = RedisOptions::new().persistence(Persistence::Always);
    let redis = [(); 2].map(|()| RedisServer::with(kept.clone()).unwrap());
    let here = runtime::detect().unwrap();
    let mut members: Vec<Arc<dyn Lock>> = Vec::new();
    for server in &redis {
        let config = redis::Config::from_url(&server.url()).unwrap();
        let config = config.timeout(Duration::from_secs(1)).lazily();
        members.push(Arc::new(config.connect(here.clone()).await.unwrap()));
    }
    let file = sqlite::Config::new(directory.path().join("locks.sqlite"))
        .connect(here)
        .await
        .unwrap();
    members.push(Arc::new(file));
    let (client, other) = (client_of(members.clone(), LONG), client_of(members, LONG));
    assert!(client.capabilities().has(Capability::Fencing));
    assert_eq!(client.capabilities().strength, Some(Strength::AcrossRestart));

    let resource = Resource::new();
    let mut tokens = Vec::new();
    let mut held = async |what: &str| -> Guard {
        let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
        let busy = other.lock(NAME).unwrap().try_acquire().await.unwrap();
        assert!(busy.is_none(), "granted twice with {what}");
        assert!(
            guard.token() > tokens.last().copied().flatten(),
            "{:?} after {tokens:?} with {what}",
            guard.token()
        );
        tokens.push(guard.token());
        guard
    };
    held("all").await.release().await.unwrap();
    for (away, what) in [
        (0, "the second server and the file"),
        (1, "the first server and the file"),
    ] {
        redis[away].crash().unwrap();
        held(what).await.release().await.unwrap();
        redis[away].start_again().unwrap();
    }
    held("all again").await.release().await.unwrap();
    let last = tokens.pop().unwrap();
    assert!(resource.takes(last).await);
    for old in tokens {
        assert!(!resource.takes(old).await, "{old:?}");
    }
}
