//! More watches than a driver can set again on its next connection.

use std::time::Duration;

use dlock_core::LockName;
use dlock_core::spi::Watch as _;

use crate::{LONG, client, client_of, config, here, start, until, watched_by};
use dlock_testkit::Proxy;

/// So long a name that each path has some 3 kB; the driver sets 128 KiB of them again.
const NAME: usize = 1000;
const WAITERS: usize = 60;

/// How many of them are watched at a time, since there is room for 96 KiB.
const WATCHED: usize = 96 * 1024 / (3 * NAME + 70);

#[tokio::test]
async fn a_session_with_more_watches_than_fit_outlives_a_cut() {
    let server = start().await;
    let proxy = Proxy::start(server.address()).unwrap();
    let name = LockName::new(vec![b'/'; NAME]).unwrap();
    let lock = config()
        .session_timeout(Duration::from_secs(30))
        .servers(&proxy.address().to_string())
        .connect(here())
        .await
        .unwrap();
    let session = lock.session_id();
    let (holder, waiting) = (client(&server).await, client_of(lock.clone()));
    let guard = holder.lock(&name).unwrap().acquire().await.unwrap();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let one = waiting.lock(&name).unwrap();
            tokio::spawn(async move {
                let guard = one.acquire().await.unwrap();
                guard.release().await.unwrap();
            })
        })
        .collect();
    let in_line = async || {
        let seen = lock.inspect(&name).await;
        seen.is_ok_and(|seen| seen.waiting as usize == WAITERS)
    };
    until("all wait", LONG, in_line).await;
    let watched = async || {
        let watched = watched_by(&server, &lock).await;
        watched
            .iter()
            .filter(|node| node.starts_with("/dlock/locks/"))
            .count()
    };
    until("as many watch as can", LONG, async || watched().await >= WATCHED).await;
    proxy.cut();
    until("it is connected again", LONG, async || {
        lock.inspect(&name).await.is_ok()
    })
    .await;
    assert_eq!(lock.session_id(), session, "the same session goes on");
    guard.release().await.unwrap();
    let served = async {
        for waiter in waiters {
            waiter.await.unwrap();
        }
    };
    tokio::time::timeout(LONG, served)
        .await
        .expect("each has its turn");
    assert_eq!(lock.session_id(), session);
}
