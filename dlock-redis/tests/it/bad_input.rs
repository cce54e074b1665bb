//! What goes wrong is said: of what kind it is, where, and what to do, within the operation's time, and
//! without a password.

use std::time::{Duration, Instant};

use dlock_core::spi::{Acquire, Lock as _, Release};
use dlock_core::{Error, ErrorKind, Mode};
use dlock_redis::Config;

use crate::{client, client_of, config, here, is_granted, key, open, queued};
use dlock_testkit::{RedisOptions, RedisServer, Value};

async fn refusal(url: &str) -> Error {
    let from = Instant::now();
    let opened = match Config::from_url(url) {
        Ok(config) => config.timeout(Duration::from_secs(1)).connect(here()).await,
        Err(e) => Err(e),
    };
    let e = opened.expect_err(url);
    assert!(
        from.elapsed() < Duration::from_secs(4),
        "{:?}: {e}",
        from.elapsed()
    );
    assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    e
}

#[tokio::test]
async fn a_wrong_password_is_told_from_a_missing_one() {
    let server = RedisServer::with(RedisOptions::new().password("right")).unwrap();
    let at = server.address();
    for url in [
        format!("redis://{at}"),
        format!("redis://:hunter2@{at}"),
        format!("redis://nobody:hunter2@{at}"),
    ] {
        let e = refusal(&url).await;
        assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e:?}");
        assert!(e.to_string().contains(&at.to_string()), "{e}");
    }
    config(&server.url()).connect(here()).await.unwrap();
}

#[tokio::test]
async fn nobody_there() {
    let server = RedisServer::start().unwrap();
    let at = server.address();
    drop(server);
    let e = refusal(&format!("redis://:hunter2@{at}")).await;
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
}

#[tokio::test]
async fn a_server_that_is_stopped_is_not_waited_for() {
    let server = RedisServer::start().unwrap();
    server.pause().unwrap();
    let e = refusal(&server.url()).await;
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    server.go_on().unwrap();
}

#[tokio::test]
async fn a_replica_takes_no_locks() {
    let master = RedisServer::start().unwrap();
    let replica = RedisServer::with(RedisOptions::new().replica_of(master.address())).unwrap();
    replica.wait_until_in_sync(Duration::from_secs(20)).unwrap();
    let e = refusal(&replica.url()).await;
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("replica"), "{e}");
}

/// A master that becomes a replica while it is used.
#[tokio::test]
async fn a_demoted_master_takes_none_either() {
    let (one, two) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let client = client(&one).await;
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    one.follow(Some(two.address())).unwrap();
    let e = client.lock("y").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    drop(held);
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_unless_it_is_allowed() {
    let options = RedisOptions::new().memory(100_000_000, "volatile-lru");
    let server = RedisServer::with(options).unwrap();
    let e = refusal(&server.url()).await;
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("volatile-lru"), "{e}");
    let lock = config(&server.url())
        .allow_eviction()
        .connect(here())
        .await
        .unwrap();
    client_of(lock).lock("x").unwrap().acquire().await.unwrap();
    // One that takes nothing more instead, and one whose memory has no limit, are as good as any.
    for options in [
        RedisOptions::new().memory(100_000_000, "noeviction"),
        RedisOptions::new().memory(0, "volatile-lru"),
    ] {
        open(&RedisServer::with(options).unwrap()).await;
    }
}

#[tokio::test]
async fn memory_that_is_full_is_said() {
    let server = RedisServer::with(RedisOptions::new().memory(0, "noeviction")).unwrap();
    let client = client(&server).await;
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let e = client.lock("y").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}");
    assert!(e.to_string().contains("maxmemory"), "{e}");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    client.lock("y").unwrap().try_acquire().await.unwrap().unwrap();
    held.release().await.unwrap();
}

/// What somebody else keeps under a key of a lock is not taken for a lock, and not overwritten.
#[tokio::test]
async fn foreign_data_is_said_and_kept() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    // Which key is the holder's is seen by holding it.
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    let keys = server.ask(&["KEYS", "dlock{*}:1:x"]).unwrap().list().unwrap();
    let key = keys.first().unwrap().text();
    held.release().await.unwrap();
    for write in [["SET", key.as_str(), "mine"], ["SADD", key.as_str(), "mine"]] {
        server.ask(&["DEL", &key]).unwrap();
        server.ask(&write).unwrap();
        for e in [
            client.lock("x").unwrap().try_acquire().await.unwrap_err(),
            client.lock("x").unwrap().acquire().await.unwrap_err(),
        ] {
            assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
            assert!(e.to_string().contains("prefix"), "{e}");
        }
        assert_eq!(server.ask(&["EXISTS", &key]).unwrap().number().unwrap(), 1);
    }
    // Of a later release of dlock, by what all layouts begin with.
    server.ask(&["DEL", &key]).unwrap();
    server.ask(&["SET", &key, "2hwhatever-comes-then"]).unwrap();
    let e = client.lock("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("newer"), "{e}");
    // As this one would begin it.
    server.ask(&["SET", &key, "1hmine"]).unwrap();
    let e = client.lock("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
}

/// Somebody deleted an entry, and left its id in the queue, or among the sharers.
#[tokio::test]
async fn an_id_without_its_entry_is_in_nobodys_way() {
    let server = RedisServer::start().unwrap();
    let (lock, other) = (open(&server).await, client(&server).await);
    let spoil_first_of = |members: &str| {
        let entries = server.ask(&["KEYS", "dlock{*}:1:x:e"]).unwrap().list().unwrap();
        let entries = entries[0].text();
        let members = entries.replace(":x:e", members);
        let first = server
            .ask(&["ZRANGE", &members, "0", "0"])
            .unwrap()
            .list()
            .unwrap();
        let Value::Bytes(id) = &first[0] else {
            panic!("{first:?}")
        };
        let gone = server.ask(&[b"HDEL", entries.as_bytes(), id]).unwrap();
        assert_eq!(gone.number().unwrap(), 1);
    };
    let [held, waits, read] = [1, 2, 3].map(|n| queued(&key("x", n, 1)));
    assert!(is_granted(&lock.attempt(&held).await.unwrap()));
    let _unheard = lock.attempt(&waits).await.unwrap();
    spoil_first_of(":x:q");
    lock.release(&held.key, Release::Now).await.unwrap();
    let guard = other.lock("x").unwrap().try_acquire().await.unwrap();
    guard.unwrap().release().await.unwrap();

    let brief = Acquire::new(key("x", 4, 1), Duration::from_millis(300));
    for reads in [&brief, &read] {
        let reads = reads.clone().with_mode(Mode::READER);
        assert!(is_granted(&lock.attempt(&reads).await.unwrap()));
    }
    spoil_first_of(":x:s");
    tokio::time::sleep(brief.ttl).await;
    lock.release(&read.key, Release::Now).await.unwrap();
    let written = other.rwlock("x").unwrap().write().try_acquire().await;
    assert!(written.unwrap().is_some());
}

#[tokio::test]
async fn options_that_cannot_be_are_refused_before_anything_is_opened() {
    let nowhere = "redis://127.0.0.1:1";
    let long = "x".repeat(65);
    let nobody = || Config::from_url(nowhere).unwrap();
    for config in [
        nobody().prefix(""),
        nobody().prefix("a b"),
        nobody().prefix("{a}"),
        nobody().prefix(&long),
        nobody().claim_window(Duration::from_millis(49)),
        nobody().claim_window(Duration::from_secs(61)),
        nobody().timeout(Duration::ZERO),
        nobody().timeout(Duration::from_secs(3601)),
        nobody().timeout(Duration::MAX),
        nobody().rejoin_after(Duration::from_millis(50)),
    ] {
        let e = config.connect(here()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }
    #[cfg(feature = "sentinel")]
    {
        let config = Config::from_url("redis+sentinel://h/mymaster").unwrap();
        let config = config.rejoin_after(Duration::from_secs(40));
        let e = config.check().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }
    // A cluster is given twice that to be connected to.
    #[cfg(feature = "cluster")]
    {
        let config = Config::from_url("redis+cluster://127.0.0.1:1").unwrap();
        let e = config.timeout(Duration::MAX).connect(here()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }
    let plain = nobody().timeout(Duration::MAX);
    let e = plain.connect_plain(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("3600s at most"), "{e}");
    #[cfg(feature = "cluster")]
    for config in [
        Config::from_url("redis+cluster://h")
            .unwrap()
            .rejoin_after(Duration::from_secs(40)),
        Config::from_url("redis+cluster://h").unwrap().lazily(),
    ] {
        let e = config.check().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    }
}

/// Scripts are forgotten by a server that is told to, or that is started anew.
#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    server.ask(&["SCRIPT", "FLUSH"]).unwrap();
    held.release().await.unwrap();
    server.ask(&["SCRIPT", "FLUSH"]).unwrap();
    client.lock("x").unwrap().acquire().await.unwrap();
}
