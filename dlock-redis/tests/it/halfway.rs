//! Scripts that are stopped in their middle. Redis rolls nothing back: what was written before stands, and
//! nobody may take it for nothing.

use std::time::Duration;

use dlock_core::{ErrorKind, Mode};

use crate::{client_of, config, here, until};
use dlock_testkit::{RedisOptions, RedisServer};

const SOON: Duration = Duration::from_secs(5);

/// Its user may do what a lock needs, but not this.
fn server_without(right: &str) -> RedisServer {
    let line = crate::users::LEAST.replace(right, "");
    RedisServer::with(RedisOptions::new().user("default off").user(&line)).unwrap()
}

async fn client(server: &RedisServer) -> dlock_core::Client {
    let url = format!("redis://app:secret@{}", server.address());
    client_of(config(&url).connect(here()).await.unwrap())
}

fn keys(server: &RedisServer, pattern: &str) -> usize {
    server.ask(&["KEYS", pattern]).unwrap().list().unwrap().len()
}

/// Refused before it let go of the exclusive hold: that is there, and keeps others out.
#[tokio::test]
async fn a_downgrade_that_is_refused_halfway_lets_no_writer_in() {
    let server = server_without("+zadd ");
    let (one, two) = (client(&server).await, client(&server).await);
    let held = one.rwlock("x").unwrap().write().acquire().await.unwrap();
    let e = held.downgrade().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
    assert!(e.to_string().contains("halfway"), "{e}");
    assert!(held.is_valid());
    assert_eq!(held.mode(), Mode::READER);
    assert_eq!(keys(&server, "dlock{*}:1:x"), 1);
    let lock = two.lock("x").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

/// Refused after it was done, as it told the next one: that one may come in at any time, so the guard does
/// not count as exclusive.
#[tokio::test]
async fn a_downgrade_that_is_refused_at_its_end_is_not_taken_for_none() {
    let server = server_without("+publish ");
    let (one, two) = (client(&server).await, client(&server).await);
    let held = one.rwlock("x").unwrap().write().acquire().await.unwrap();
    let reads = two.rwlock("x").unwrap();
    let waiting = tokio::spawn(async move { reads.read().acquire().await });
    until("it is in line", SOON, async || {
        keys(&server, "dlock{*}:1:x:q") == 1
    })
    .await;
    let e = held.downgrade().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
    assert_eq!(keys(&server, "dlock{*}:1:x"), 0, "it is done");
    assert_eq!(held.mode(), Mode::READER);
    waiting.abort();
}
