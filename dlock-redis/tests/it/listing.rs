//! Lists of more keys than SCAN goes through at once.

use std::collections::BTreeSet;
use std::time::Duration;

use dlock_core::{Client, LockName, LockOptions};
use dlock_testkit::{Persistence, RedisOptions, RedisServer};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{client, until};

const LONG: Duration = Duration::from_secs(60);

async fn hold(client: &Client, names: impl Iterator<Item = String>) -> Vec<dlock_core::Guard> {
    let lock = |name| {
        let lock = client.lock(name).unwrap();
        lock.options(LockOptions::new().ttl(LONG)).unwrap()
    };
    let acquiring = names.map(|name| {
        let lock = lock(name);
        async move { lock.acquire().await }
    });
    try_join_all(acquiring).await.unwrap()
}

/// Its keys are in another order then, and the cursor is of the old one.
#[tokio::test]
async fn a_server_that_is_started_again_between_two_pages_tells_all() {
    let server = RedisServer::with(RedisOptions::new().persistence(Persistence::Always)).unwrap();
    let client = client(&server).await;
    let mut held = Vec::new();
    for hundred in 0..30 {
        held.extend(hold(&client, (0..100).map(|n| format!("many/{hundred}/{n}"))).await);
    }
    let held: BTreeSet<LockName> = held.iter().map(|guard| guard.name().clone()).collect();
    let mut list = client.list("many/").unwrap();
    let mut seen = BTreeSet::from([list.next().await.unwrap().unwrap()]);
    server.crash().unwrap();
    server.start_again().unwrap();
    until("it is back", Duration::from_secs(20), async || {
        client.inspect("many/0/0").await.is_ok()
    })
    .await;
    while let Some(name) = list.next().await {
        assert!(seen.insert(name.unwrap()), "twice");
    }
    assert_eq!(held.difference(&seen).count(), 0, "of {}", held.len());
}

#[tokio::test]
async fn what_is_spoilt_keeps_nothing_from_the_list() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    let _held = hold(&client, ["a", "b", "c"].into_iter().map(str::to_owned)).await;
    let key = |name| {
        let keys = server.ask(&["KEYS", &format!("dlock{{*}}:1:{name}")]).unwrap();
        keys.list().unwrap().first().unwrap().text()
    };
    server.ask(&["SET", &key("a"), "mine"]).unwrap();
    // Of a later release of dlock.
    server.ask(&["SET", &key("b"), "2hwhatever-comes-then"]).unwrap();
    let mut listed: Vec<_> = client.list("").unwrap().try_collect().await.unwrap();
    listed.sort();
    assert_eq!(listed, ["a", "b", "c"].map(|name| LockName::new(name).unwrap()));
}
