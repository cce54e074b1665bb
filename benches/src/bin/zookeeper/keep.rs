//! What it costs to keep locks.

use std::time::Duration;

use dlock_benches::redis::{Goals, Meter as _};
use dlock_benches::zookeeper::{Raw, Server, client};
use dlock_core::{Client, Guard};
use futures::future::join_all;

const HELD: usize = 10_000;
/// At a time, so that no request waits too long.
const AT_A_TIME: usize = 250;
const SETTLED: Duration = Duration::from_secs(2);
const WATCHED: Duration = Duration::from_secs(60);

async fn hold(client: &Client, count: usize) -> Vec<Guard> {
    let mut held = Vec::with_capacity(count);
    for first in (0..count).step_by(AT_A_TIME) {
        let some = (first..count.min(first + AT_A_TIME)).map(|n| async move {
            // Twenty-one bytes.
            let lock = client.lock(format!("a-lock-{n:014}")).expect("a good name");
            lock.acquire().await.expect("it is free")
        });
        held.extend(join_all(some).await);
    }
    held
}

async fn release(mut held: Vec<Guard>) {
    while !held.is_empty() {
        let rest = held.split_off(held.len().min(AT_A_TIME));
        let released = join_all(held.into_iter().map(Guard::release)).await;
        held = rest;
        released.into_iter().for_each(|r| r.expect("it was held"));
    }
}

/// Locks that are held for a minute.
pub(crate) async fn upkeep(server: &Server, table: &mut Goals) {
    let mut packets = Vec::new();
    for count in [1, HELD] {
        let client = client(server).await;
        let held = hold(&client, count).await;
        // What belongs to the acquisitions is not counted.
        tokio::time::sleep(SETTLED).await;
        let before = server.counted();
        tokio::time::sleep(WATCHED).await;
        packets.push(server.counted().since(&before).of("received"));
        assert!(held.iter().all(Guard::is_valid));
        release(held).await;
        client.close().await.expect("it answers");
    }
    table.row(
        "10,000 locks held for a minute: packets of their session",
        packets[1].to_string(),
        format!("of one lock {}; sessions of 60 s", packets[0]),
        String::new(),
        "the same",
    );
}

/// What the server needs for such a lock, whichever client creates it.
async fn least(server: &Server) -> f64 {
    let raw = Raw::new(server).await;
    raw.line("/dlock-least").await;
    let before = server.memory();
    for first in (0..HELD).step_by(AT_A_TIME) {
        let lines: Vec<_> = (first..first + AT_A_TIME)
            .map(|n| format!("/dlock-least/a-lock-{n:014}"))
            .collect();
        join_all(lines.iter().map(|line| raw.keep(line))).await;
    }
    server.memory().saturating_sub(before) as f64 / HELD as f64
}

/// What the server needs for a lock that is held, and what is left.
pub(crate) async fn memory(server: &Server, table: &mut Goals) {
    let least = least(server).await;
    let client = client(server).await;
    // Whatever is made once.
    release(hold(&client, 100).await).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (nodes, before) = (server.nodes("/dlock"), server.memory());
    let held = hold(&client, HELD).await;
    let each = server.memory().saturating_sub(before) as f64 / HELD as f64;
    release(held).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let left = server.nodes("/dlock").saturating_sub(nodes);
    table.row(
        "memory of a held lock, name of 21 bytes",
        format!("{each:.0} bytes"),
        format!(
            "a container and a node named as Curator does, without data: {least:.0} bytes; live \
            objects, by jmap"
        ),
        format!("{:.2}", each / least),
        "≤ 850",
    );
    table.row(
        "left after release of 10,000 and the sweep of containers",
        format!("{left} nodes"),
        String::new(),
        String::new(),
        "0",
    );
}
