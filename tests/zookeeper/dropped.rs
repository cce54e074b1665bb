//! Waits that are given up, at any point: before anything is sent, while the node is being made, in line, or
//! when the lock was just granted.

use std::io;
use std::time::Duration;

use crate::site::{LONG, acquired, alone, blocking, client_for};
use dlock_testkit::until;

const WAITS: u64 = 1000;
/// Longer than a request takes, so that some are granted and none gets bored.
const LONGEST: u64 = 4000;
/// A server that has just started has its code to load first, and may keep the holder's writes waiting behind
/// those of all others for seconds.
const SESSION: Duration = Duration::from_secs(10);

/// Numbers from a seed (splitmix64).
fn random(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waits_given_up_at_any_point_leave_no_node() {
    let server = alone().await;
    let holder = client_for(&[server.address()], SESSION).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(client_for(&[server.address()], SESSION).await);
    }
    // Of two locks one is held the whole time.
    let held = acquired(&holder).await;
    let mut waits = Vec::new();
    for n in 0..WAITS {
        let lock = clients[n as usize % 4].lock(if n % 3 == 0 { "free" } else { "stock-42" });
        let lock = lock.unwrap();
        waits.push(tokio::spawn(async move {
            // A guard, if it comes to that, is dropped as well.
            let limit = Duration::from_micros(random(n) % LONGEST);
            let _ = tokio::time::timeout(limit, lock.acquire()).await;
        }));
        if n % 20 == 19 {
            for wait in waits.drain(..) {
                wait.await.unwrap();
            }
        }
    }
    for wait in waits {
        wait.await.unwrap();
    }
    let seen = server.clone();
    blocking(move || {
        until("only the holder's node is left", LONG, || {
            let locks = seen.with_session(|s| s.all("/dlock/locks"))?;
            let nodes = locks.iter().filter(|p| p.matches('/').count() == 4).count();
            match nodes == 1 && !locks.iter().any(|p| p.starts_with("/dlock/locks/free")) {
                true => Ok(true),
                false => Err(io::Error::other(format!("there is {locks:?}"))),
            }
        })
        .unwrap();
    })
    .await;
    assert!(held.is_valid());
    held.release().await.unwrap();
    // Not by the end of their sessions: the clients are all there.
    let seen = server.clone();
    blocking(move || {
        until("no lock has left anything", LONG, || {
            let left = seen.with_session(|s| s.children("/dlock/locks"))?;
            Ok(left.unwrap_or_default().is_empty())
        })
        .unwrap();
    })
    .await;
    for client in clients.iter().chain([&holder]) {
        client.close().await.unwrap();
    }
    let left = server.with_session(|s| s.all("/dlock")).unwrap();
    // The directories are all there is, however many clients and locks there were.
    assert!(left.iter().all(|p| p.matches('/').count() <= 2), "{left:?}");
}
