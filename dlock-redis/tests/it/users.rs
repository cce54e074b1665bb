//! The minimum rights of a user. docs/redis.md has the same line.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_core::spi::Watch as _;
use dlock_core::{Access, Admission, Client, FenceGate as _, LockName, LockOptions, Token, Upgrade};
use dlock_redis::RedisLock;
use futures::future::join_all;
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{client_of, config, here, until};
#[cfg(feature = "cluster")]
use dlock_testkit::RedisCluster;
#[cfg(feature = "sentinel")]
use dlock_testkit::{Connection, RedisSentinel};
use dlock_testkit::{RedisOptions, RedisServer};

/// All that the scripts and the connection need.
pub(crate) const LEAST: &str = "app on >secret ~dlock{* &dlock* -@all +hello +auth +ping +info +select \
    +evalsha +script|load +script|exists +subscribe +unsubscribe +publish +time \
    +get +set +mget +mset +del +exists +pttl +pexpire +incr \
    +hget +hset +hdel +hmget +hincrby +hexists \
    +zadd +zrem +zcard +zcount +zrange +zrangebyscore +zrank +zscore";

fn server(line: &str) -> RedisServer {
    RedisServer::with(RedisOptions::new().user("default off").user(line)).unwrap()
}

fn url(server: &RedisServer) -> String {
    format!("redis://app:secret@{}", server.address())
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let text = include_str!("../../../docs/redis.md");
    let words = |t: &str| {
        t.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(
        words(text).contains(&words(LEAST)),
        "docs/redis.md has another line"
    );
    let server = server(LEAST);
    let [lock, other] = [opened(&url(&server)).await, opened(&url(&server)).await];
    everything(&lock, other).await;
    nothing_was_refused(&[&server]);
}

async fn opened(url: &str) -> RedisLock {
    config(url).connect(here()).await.unwrap()
}

/// Everything that a user does, once each, with a waiter and a watcher.
async fn everything(lock: &RedisLock, other: RedisLock) {
    let other = client_of(other);
    let name = LockName::new("x").unwrap();
    let mut changes = lock.watch(&name).await.unwrap();
    changes.next().await.unwrap().unwrap();
    let client = client_of(lock.clone());
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = other.lock("x").unwrap();
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    waiting.await.unwrap();
    let rw = client.rwlock("rw").unwrap();
    let read = rw.read().acquire().await.unwrap();
    assert_eq!(read.try_upgrade().await.unwrap(), Upgrade::Done);
    read.release().await.unwrap();
    client
        .semaphore("p", 2)
        .unwrap()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let written = lock.write(&name, Token::new(1).unwrap(), b"value").await;
    assert_eq!(written.unwrap(), Admission::Admitted);
    let admitted = lock.admit(&name, Token::new(2).unwrap(), Access::Shared).await;
    assert_eq!(admitted.unwrap(), Admission::Admitted);
    lock.read(&name).await.unwrap().unwrap();
    lock.inspect(&name).await.unwrap();
    lock.force_release(&name).await.unwrap();
    // Enough that they are sent together.
    let many = join_all((0..20).map(|n| {
        let lock = client.lock(format!("many-{n}")).unwrap();
        async move { lock.acquire().await.unwrap().release().await }
    }));
    many.await.into_iter().for_each(Result::unwrap);
}

fn nothing_was_refused(servers: &[&RedisServer]) {
    for server in servers {
        let refused = server.ask(&["ACL", "LOG"]).unwrap().list().unwrap();
        assert!(refused.is_empty(), "{refused:?}");
    }
}

fn documented(words: &str) {
    let text = include_str!("../../../docs/redis.md");
    assert!(text.contains(words), "docs/redis.md does not say {words}");
}

/// Listing shows the keys of others: that is a right of its own.
#[tokio::test]
async fn listing_takes_one_right_more() {
    documented("For listing also `+scan`");
    let server = server(LEAST);
    let client = client_of(opened(&url(&server)).await);
    let held = client.lock("listed").unwrap().acquire().await.unwrap();
    let list = || async { client.list("").unwrap().try_collect::<Vec<_>>().await };
    let e = list().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(e.to_string().contains("docs/redis.md"), "{e}");
    server.ask(&["ACL", "SETUSER", "app", "+scan"]).unwrap();
    assert_eq!(list().await.unwrap(), [held.name().clone()]);
}

/// On a cluster there is something more, and that is enough for slots that move, too.
#[cfg(feature = "cluster")]
#[tokio::test]
async fn the_documented_rights_are_enough_on_a_cluster() {
    const MORE: &str = "+ssubscribe +sunsubscribe +spublish +cluster|slots";
    documented(MORE);
    let options = RedisOptions::new()
        .user("default off")
        .user(&format!("{LEAST} {MORE}"));
    let cluster = tokio::task::spawn_blocking(move || RedisCluster::with(options, false).unwrap());
    let cluster = cluster.await.unwrap();
    let nodes: Vec<_> = cluster.addresses().iter().map(ToString::to_string).collect();
    let url = format!("redis+cluster://app:secret@{}", nodes.join(","));
    let lock = opened(&url).await;
    everything(&lock, opened(&url).await).await;
    nothing_was_refused(&cluster.nodes().iter().collect::<Vec<_>>());
    // Without them it is said what is missing, and nothing is waited for.
    for node in cluster.nodes() {
        node.ask(&["ACL", "SETUSER", "app", "-ssubscribe"]).unwrap();
    }
    let client = client_of(opened(&url).await);
    let e = client.lock("x").unwrap().acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(e.to_string().contains("docs/redis.md"), "{e}");
}

/// At the sentinels a user of their own, who may ask who the master is; at the servers one more right.
#[cfg(feature = "sentinel")]
#[tokio::test]
async fn the_documented_rights_are_enough_at_sentinels() {
    const THERE: &str = "-@all +hello +auth +role +sentinel|masters";
    documented(THERE);
    documented("`+role` at the servers");
    let options = RedisOptions::new()
        .user("default off")
        .user(&format!("{LEAST} +role"))
        .sentinel_line(&format!("user app on >hush {THERE}"))
        // The servers follow one another as the tests' own user.
        .line("masteruser keeper")
        .line("masterauth of-the-tests");
    let all = tokio::task::spawn_blocking(move || RedisSentinel::with(options).unwrap());
    let all = all.await.unwrap();
    let sentinels: Vec<_> = all.sentinels().iter().map(ToString::to_string).collect();
    let url = format!(
        "redis+sentinel://app:secret@{}/{}",
        sentinels.join(","),
        all.name()
    );
    let known = config(&url).sentinel_login(Some("app"), "hush");
    let lock = known.clone().connect(here()).await.unwrap();
    everything(&lock, known.connect(here()).await.unwrap()).await;
    nothing_was_refused(&all.servers().iter().collect::<Vec<_>>());
    for sentinel in all.sentinels() {
        let refused = Connection::open(sentinel).unwrap().ask(&["ACL", "LOG"]).unwrap();
        assert!(refused.clone().list().unwrap().is_empty(), "{refused:?}");
    }
    // A wrong password there is told from one at the servers.
    let stranger = config(&url).sentinel_login(Some("app"), "hunter2");
    let e = stranger.connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
}

/// With replicas, one more right.
#[tokio::test]
async fn the_right_to_wait_is_enough_for_replicas() {
    let master = server(&format!("{LEAST} +wait"));
    // A user with all rights, for the replica.
    let options = RedisOptions::new()
        .line("masteruser keeper")
        .line("masterauth of-the-tests");
    let replica = RedisServer::with(options.replica_of(master.address())).unwrap();
    replica.wait_until_in_sync(Duration::from_secs(20)).unwrap();
    let config = config(&url(&master)).timeout(Duration::from_secs(4)).replicas(1);
    until("it has its replica", Duration::from_secs(20), async || {
        config.clone().connect(here()).await.is_ok()
    })
    .await;
    let lock = config.connect(here()).await.unwrap();
    client_of(lock).lock("x").unwrap().acquire().await.unwrap();
    let refused = master.ask(&["ACL", "LOG"]).unwrap().list().unwrap();
    assert!(refused.is_empty(), "{refused:?}");
}

/// A plain lock needs less, on the keys that it shares; and those of its tombstones.
#[tokio::test]
async fn the_documented_rights_of_plain_locks_are_enough() {
    const PLAIN: &str = "app on >secret ~stock/* ~{stock/* -@all +hello +auth +ping +info +select \
        +evalsha +script|load +script|exists +get +set +del +exists +pttl +pexpire";
    let text = include_str!("../../../docs/redis.md");
    let words = |t: &str| {
        t.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(
        words(text).contains(&words(PLAIN)),
        "docs/redis.md has another line"
    );
    let server = server(PLAIN);
    let open = async || {
        let lock = config(&url(&server)).connect_plain(here()).await.unwrap();
        Client::builder(Arc::new(lock), here()).build().unwrap()
    };
    let (one, two) = (open().await, open().await);
    let held = one.lock("stock/42").unwrap().acquire().await.unwrap();
    let waits = two.lock("stock/42").unwrap();
    let limited = LockOptions::new().wait_limit(Duration::from_millis(50));
    waits
        .clone()
        .options(limited)
        .unwrap()
        .acquire()
        .await
        .unwrap_err();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    waits.acquire().await.unwrap().release().await.unwrap();
    let refused = server.ask(&["ACL", "LOG"]).unwrap().list().unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    let e = one.lock("others").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
}

#[tokio::test]
async fn what_is_missing_is_said() {
    let server = server(&LEAST.replace("+publish ", "").replace("+zadd ", ""));
    let client = client_of(config(&url(&server)).connect(here()).await.unwrap());
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    let e = client.lock("x").unwrap().acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(e.to_string().contains("docs/redis.md"), "{e}");
    held.release().await.unwrap();
}

/// Another application's names are out of reach.
#[tokio::test]
async fn another_prefix_is_refused() {
    let server = server(LEAST);
    let lock = config(&url(&server))
        .prefix("other")
        .connect(here())
        .await
        .unwrap();
    let e = client_of(lock).lock("x").unwrap().acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
}
