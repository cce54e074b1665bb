//! With nobody else at the lock.

use dlock_benches::etcd::{Api, Raw, Server, backend, client};
use dlock_benches::figures::Shows;
use dlock_benches::redis::{Effort, Goals, Meter as _, in_turn, middle, rate, timed};
use dlock_benches::{RawPair, api_pair};

/// One acquire and release after the other.
pub(crate) async fn pair(server: &Server, effort: Effort, table: &mut Goals) {
    let mut raw = Raw::new(server).await;
    let mut theirs = Api::new(server, "their-name-of-21-bytes").await;
    let (spi, client) = (backend(server).await, client(server).await);
    let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
    let mut bare = RawPair::new("a-name-of-twenty-one-a");
    let length = effort.times(4) * effort.rounds as u32;
    let mut times = in_turn(length, async |kind| match kind {
        0 => raw.pair("raw/12345678901234567890123456789012/1234567890").await,
        1 => theirs.pair().await,
        2 => bare.run(&spi).await,
        _ => api_pair(&lock).await,
    })
    .await;
    let before = server.counted();
    let cycles = timed(effort.times(1), async || api_pair(&lock).await).await.len() as f64;
    let counted = server.counted().since(&before);
    let series = [
        "raw: transaction, delete",
        "etcd's lock API",
        "backend alone",
        "dlock",
    ];
    let [raw, theirs, bare, api] = table.points.spreads("etcd", series, &mut times);
    table.row(
        "acquire + release, p50",
        format!("{api:.0} µs"),
        format!("a transaction and a delete {raw:.0} µs; backend alone {bare:.0} µs"),
        format!("{:.2}", api / raw),
        "≤ 1.05",
    );
    table.row(
        "the same beside etcd's lock API",
        format!("{api:.0} µs"),
        format!("{theirs:.0} µs"),
        format!("{:.2}", api / theirs),
        "≤ 1.0",
    );
    table.row(
        "proposals of it",
        format!("{:.3}", counted.of("proposals") as f64 / cycles),
        "fencing token included".to_owned(),
        String::new(),
        "2",
    );
}

/// Each of many tasks has a lock of its own, over one connection.
pub(crate) async fn inflight(server: &Server, effort: Effort, table: &mut Goals) {
    const TASKS: usize = 64;
    let (raw, client) = (Raw::new(server).await, client(server).await);
    let keys: Vec<_> = (0..TASKS).map(|n| format!("raw/inflight-{n:012}/1")).collect();
    let lock = |n| client.lock(format!("inflight-{n:012}")).expect("a good name");
    let locks: Vec<_> = (0..TASKS).map(lock).collect();
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let length = effort.times(2);
        let pairs = keys.iter().map(|key| (raw.clone(), key));
        let of_raw = pairs.map(|(mut raw, key)| async move || raw.pair(key).await);
        theirs.push(rate(length, of_raw).await);
        let of_ours = locks.iter().map(|lock| async move || api_pair(lock).await);
        ours.push(rate(length, of_ours).await);
    }
    let (raw, dlock) = (middle(&mut theirs), middle(&mut ours));
    for (series, rate) in [("raw: transaction, delete", raw), ("dlock", dlock)] {
        let plot = "etcd, 64 tasks on 64 locks";
        table.points.add(Shows::Throughput, plot, series, "", rate);
    }
    table.row(
        "64 tasks on 64 locks",
        format!("{dlock:.0} pairs/s"),
        format!("a transaction and a delete each {raw:.0} pairs/s"),
        format!("{:.2}", dlock / raw),
        "≥ 0.9",
    );
}
