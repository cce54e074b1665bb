//! Delayed restart: a server that was just started is kept out, by every client, at each connection; and what
//! that goes by.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::{Client, Error, ErrorKind, LockOptions};
use dlock_redis::{Config, RedisLock};

use crate::{config, here, until};
use dlock_testkit::{RedisOptions, RedisServer};

/// Of these tests. Two seconds are the shortest that shows both sides: the start of a server is known to one.
const AFTER: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_millis(1_500);

fn delayed(url: &str) -> Config {
    config(url).rejoin_after(AFTER)
}

fn client(lock: RedisLock) -> Client {
    let client = Client::builder(Arc::new(lock), here()).defaults(LockOptions::new().ttl(TTL));
    client.op_timeout(Duration::from_secs(1)).build().unwrap()
}

async fn refusal(server: &RedisServer, after: Duration) -> Error {
    config(&server.url())
        .rejoin_after(after)
        .connect(here())
        .await
        .unwrap_err()
}

fn says_that_it_was_started_lately(e: &Error, server: &RedisServer) {
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    let text = e.to_string();
    for says in [
        server.address().to_string().as_str(),
        "started lately",
        "`rejoin_after`",
        "2s",
        "more",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[tokio::test]
async fn a_just_started_server_is_refused_until_it_is_up_long_enough() {
    let began = Instant::now();
    let server = RedisServer::start().unwrap();
    says_that_it_was_started_lately(&refusal(&server, AFTER).await, &server);
    // Clients without `rejoin_after` are not kept out.
    config(&server.url()).connect(here()).await.unwrap();
    let opens = async || delayed(&server.url()).connect(here()).await.is_ok();
    until("the server is let in", AFTER * 3, opens).await;
    let after = began.elapsed();
    assert!(
        after >= AFTER,
        "let in {after:?} after it was started at the earliest"
    );
    // What it says is never more than it was up, and a second less at the most.
    let late = AFTER + Duration::from_secs(1) + Duration::from_millis(700);
    assert!(after < late, "let in {after:?} after it was started");
}

/// Those who were connected before are sent away like the others, at once each time, and come back by
/// themselves.
#[tokio::test]
async fn a_reconnect_notices_the_restart() {
    let server = RedisServer::start().unwrap();
    let lock = delayed(&server.url()).lazily().connect(here()).await.unwrap();
    let up = async || lock.ready().await.is_ok();
    until("the server is let in", AFTER * 3, up).await;
    let (first, client) = (lock.server_run_id().unwrap(), client(lock.clone()));
    client
        .lock("x")
        .unwrap()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    server.crash().unwrap();
    let began = Instant::now();
    server.start_again().unwrap();
    let mut refused = 0;
    while let Err(e) = lock.ready().await {
        assert!(began.elapsed() < AFTER * 3, "{e}");
        // Any other is that of the connection that broke.
        if e.to_string().contains("started lately") {
            says_that_it_was_started_lately(&e, &server);
            refused += 1;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(refused > 0);
    assert!(
        began.elapsed() >= AFTER,
        "let in {:?} after it was started again",
        began.elapsed()
    );
    assert_ne!(lock.server_run_id().unwrap(), first);
    let held = client.lock("x").unwrap().try_acquire().await;
    held.unwrap().unwrap().release().await.unwrap();
}

/// Not by a connection that is made each time: a member of a quorum that is kept out must not make the others
/// wait.
#[tokio::test]
async fn while_it_is_kept_out_it_is_not_connected_to() {
    let server = RedisServer::start().unwrap();
    let lock = config(&server.url())
        .rejoin_after(Duration::from_secs(600))
        .lazily()
        .connect(here())
        .await
        .unwrap();
    assert!(lock.ready().await.is_err());
    let made = || {
        server
            .info("total_connections_received")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let before = made();
    for _ in 0..100 {
        let e = lock.ready().await.unwrap_err();
        assert!(e.to_string().contains("`rejoin_after`"), "{e}");
    }
    // The one that looks, and at most one of a task that was at it.
    assert!(made() - before <= 2, "{} connections", made() - before);
}

/// Redis knows how long it has been up by its wall clock alone. So this is what the documentation excludes,
/// and why.
#[tokio::test]
async fn it_goes_by_the_servers_wall_clock() {
    let server = RedisServer::with(RedisOptions::new().own_clock()).unwrap();
    let minute = Duration::from_secs(60);
    let e = refusal(&server, minute).await;
    assert!(e.to_string().contains("for 60s"), "{e}");
    // Forward, as where the machine learns the time after the server was started: let in too early.
    server.clock().unwrap().set(3_600_000).unwrap();
    config(&server.url())
        .rejoin_after(minute)
        .connect(here())
        .await
        .unwrap();
    // Back: it stays out, and for no longer than one that was just started.
    server.clock().unwrap().set(-3_600_000).unwrap();
    let e = refusal(&server, minute).await;
    assert!(
        e.to_string().contains("0ns ago") && e.to_string().contains("60s more"),
        "{e}"
    );
}

#[tokio::test]
async fn a_user_without_info_is_refused_only_if_a_delay_needs_it() {
    let options = RedisOptions::new().user("default off");
    let server = RedisServer::with(options.user("app on >secret ~* &* +@all -info")).unwrap();
    let url = format!("redis://app:secret@{}", server.address());
    let e = delayed(&url).connect(here()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    let lock = config(&url).connect(here()).await.unwrap();
    assert_eq!(lock.server_run_id(), None);
}

/// Else it would come back before all that it may have forgotten has run out.
#[tokio::test]
async fn leases_that_are_too_long_for_it_are_refused() {
    let nowhere = "redis://127.0.0.1:1";
    let lock = config(nowhere).rejoin_after(Duration::from_secs(40)).lazily();
    let lock = lock.connect(here()).await.unwrap();
    let max = Client::builder(Arc::new(lock), here())
        .build()
        .unwrap()
        .capabilities()
        .max_ttl;
    assert!(
        max >= Duration::from_secs(30) && max < Duration::from_secs(40),
        "{max:?}"
    );
    let lock = config(nowhere).rejoin_after(Duration::from_secs(30)).lazily();
    let lock = lock.connect(here()).await.unwrap();
    let e = Client::builder(Arc::new(lock), here()).build().unwrap_err();
    assert_eq!(
        e.kind(),
        ErrorKind::InvalidInput,
        "the ttl of 30 s that is usual: {e}"
    );
}

/// Nothing of it is asked before it is needed.
#[tokio::test]
async fn what_is_opened_lazily_may_be_away() {
    let server = RedisServer::start().unwrap();
    server.crash().unwrap();
    let url = server.url();
    let lock = config(&url).lazily().connect(here()).await.unwrap();
    assert_eq!(lock.ready().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(lock.server_run_id(), None);
    let client = client(lock.clone());
    let e = client.lock("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    server.start_again().unwrap();
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    assert_eq!(*lock.server_run_id().unwrap(), *server.run_id().unwrap());
    held.release().await.unwrap();
    // And what is wrong with it is said then.
    server
        .ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "100000000"]).unwrap();
    let lock = config(&url).lazily().connect(here()).await.unwrap();
    let e = lock.ready().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
}
