//! A waiter keeps waiting while the server rejects writes, and gets its turn afterwards.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{Acquire, Lock as _};
use dlock_core::{Client, Error, Token};
use tokio::task::JoinHandle;

use crate::{here, is_granted, key, open, until};
use dlock_testkit::{RedisOptions, RedisServer};

const SOON: Duration = Duration::from_secs(10);

/// One that holds the name for two seconds, and another one that waits for it.
async fn one_that_waits(server: &RedisServer) -> JoinHandle<Result<Option<Token>, Error>> {
    let request = Acquire::new(key("x", 1, 1), Duration::from_secs(2));
    let holder = open(server).await;
    assert!(is_granted(&holder.attempt(&request).await.unwrap()));
    // Only that one's errors end it, and not that they last.
    let client = Client::builder(Arc::new(open(server).await), here());
    let client = client.op_timeout(Duration::from_secs(60)).build().unwrap();
    let waiting = tokio::spawn(async move {
        let guard = client.lock("x")?.acquire().await?;
        let token = guard.token();
        guard.release().await.map(|()| token)
    });
    until("it is in line", SOON, async || queues(server) == 1).await;
    waiting
}

fn queues(server: &RedisServer) -> usize {
    let queues = server.ask(&["KEYS", "dlock{*}:1:x:q"]).unwrap();
    queues.list().unwrap().len()
}

/// The holder's time is over by then, and the one that waits has asked whether it is its turn.
async fn it_still_waits(waiting: &JoinHandle<Result<Option<Token>, Error>>) {
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
}

async fn it_has_its_turn(waiting: JoinHandle<Result<Option<Token>, Error>>) {
    let granted = tokio::time::timeout(SOON, waiting).await.expect("its turn");
    assert!(granted.unwrap().unwrap().is_some());
}

/// What it needs it has already: its place becomes the hold.
#[tokio::test]
async fn full_memory_stops_no_hand_off() {
    let server = RedisServer::with(RedisOptions::new().memory(0, "noeviction")).unwrap();
    let waiting = one_that_waits(&server).await;
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    it_has_its_turn(waiting).await;
}

#[tokio::test]
async fn a_disk_that_is_full_for_a_while_ends_no_wait() {
    let server = RedisServer::start().unwrap();
    let waiting = one_that_waits(&server).await;
    // A snapshot cannot be put where a folder is.
    let said = server.ask(&["CONFIG", "GET", "dir"]).unwrap().list().unwrap();
    let in_the_way = PathBuf::from(said[1].text()).join("dump.rdb");
    let _ = fs::remove_file(&in_the_way);
    fs::create_dir(&in_the_way).unwrap();
    server.ask(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    server.ask(&["BGSAVE"]).unwrap();
    until("the snapshot failed", SOON, async || {
        server.info("rdb_last_bgsave_status").unwrap() == "err"
    })
    .await;
    let refused = server.ask(&["SET", "a", "b"]).unwrap_err();
    assert!(refused.to_string().contains("MISCONF"), "{refused}");
    it_still_waits(&waiting).await;
    server.ask(&["CONFIG", "SET", "save", ""]).unwrap();
    it_has_its_turn(waiting).await;
}

/// The master is made a replica, without an end of its connections, and has all that it had. Nothing but the
/// wait asks there.
#[tokio::test]
async fn a_client_that_only_waits_leaves_a_master_that_was_demoted() {
    let one = RedisServer::start().unwrap();
    let two = RedisServer::with(RedisOptions::new().replica_of(one.address())).unwrap();
    two.wait_until_in_sync(Duration::from_secs(20)).unwrap();
    let waiting = one_that_waits(&one).await;
    let listens = || {
        let clients = one.ask(&["CLIENT", "LIST"]).unwrap().text();
        clients.contains(" sub=1 ")
    };
    assert!(listens());
    until("the other one knows of it", SOON, async || queues(&two) == 1).await;
    two.follow(None).unwrap();
    one.follow(Some(two.address())).unwrap();
    one.wait_until_in_sync(Duration::from_secs(20)).unwrap();
    assert!(queues(&one) == 1, "it is still in line there");
    until("it has left", SOON, async || !listens()).await;
    assert!(!waiting.is_finished());
    one.follow(None).unwrap();
    it_has_its_turn(waiting).await;
}
