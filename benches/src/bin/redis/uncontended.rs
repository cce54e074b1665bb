//! With nobody else at the lock.

use std::time::Duration;

use dlock_benches::figures::Shows;
use futures::future::join_all;

use dlock_benches::redis::{Counted, Effort, Goals, Raw, Server, backend, client, middle, rate, timed};
use dlock_benches::{RawPair, api_pair};

/// One acquire and release after the other.
pub(crate) async fn pair(server: &Server, effort: Effort, table: &mut Goals) {
    let (mut raw, _pushes) = Raw::new(server).await;
    let (spi, client) = (backend(server).await, client(server).await);
    let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
    let mut bare = RawPair::new("a-name-of-twenty-one-a");
    let [mut raws, mut bares, mut apis] = [const { Vec::<Duration>::new() }; 3];
    let mut counted = Counted::default();
    let length = effort.times(1);
    for round in 0..=effort.rounds {
        let of_raw = timed(length, async || raw.pair("a-name-of-twenty-one-r").await).await;
        let of_bare = timed(length, async || bare.run(&spi).await).await;
        let before = Counted::now(server);
        let of_api = timed(length, async || api_pair(&lock).await).await;
        // The first round is for warming up.
        if round > 0 {
            counted.add(&Counted::now(server).since(&before));
            raws.extend(of_raw);
            bares.extend(of_bare);
            apis.extend(of_api);
        }
    }
    let pairs = apis.len() as f64;
    let series = ["raw: EVALSHA", "backend alone", "dlock"];
    let mut times = [raws, bares, apis];
    let [raw, bare, api] = table.points.spreads("Redis", series, &mut times);
    table.row(
        "acquire + release, p50",
        format!("{api:.1} µs"),
        format!("raw EVALSHA pair {raw:.1} µs, backend alone {bare:.1} µs"),
        format!("{:.2}", api / raw),
        "≤ 1.05",
    );
    table.row(
        "commands of it",
        format!("{:.3}", counted.scripts() as f64 / pairs),
        "fencing token included".to_owned(),
        String::new(),
        "2",
    );
}

/// Sixty-four tasks, each with a lock of its own, over one connection.
pub(crate) async fn inflight(server: &Server, effort: Effort, table: &mut Goals) {
    const TASKS: usize = 64;
    let (raw, _pushes) = Raw::new(server).await;
    let client = client(server).await;
    let locks: Vec<_> = (0..TASKS)
        .map(|n| client.lock(format!("inflight-{n:012}")).expect("a good name"))
        .collect();
    let length = effort.times(1);
    let (mut raws, mut apis, mut counted, mut pairs) = (Vec::new(), Vec::new(), Counted::default(), 0.0);
    for round in 0..=effort.rounds {
        let of_raw = rate(
            length,
            (0..TASKS).map(|n| {
                let (mut raw, key) = (raw.clone(), format!("inflight-raw-{n:08}"));
                async move || raw.pair(&key).await
            }),
        )
        .await;
        let before = Counted::now(server);
        let of_api = rate(
            length,
            locks.iter().map(|lock| async move || api_pair(lock).await),
        )
        .await;
        if round > 0 {
            counted.add(&Counted::now(server).since(&before));
            pairs += of_api * length.as_secs_f64();
            raws.push(of_raw);
            apis.push(of_api);
        }
    }
    let (raw, api) = (middle(&mut raws), middle(&mut apis));
    for (series, rate) in [("raw: EVALSHA", raw), ("dlock", api)] {
        table
            .points
            .add(Shows::Throughput, "Redis, 64 tasks on 64 locks", series, "", rate);
    }
    table.row(
        "64 tasks on 64 locks",
        format!("{api:.0} pairs/s"),
        format!("raw {raw:.0} pairs/s"),
        format!("{:.2}", api / raw),
        "≥ 1.0",
    );
    table.row(
        "scripts of each of these pairs",
        format!("{:.2}", counted.scripts() as f64 / pairs),
        String::new(),
        String::new(),
        "",
    );
}

/// That many pairs of one kind, and nothing else; `many` runs 64 tasks.
pub(crate) async fn count(server: &Server, kind: &str, pairs: u64) {
    let (mut raw, _pushes) = Raw::new(server).await;
    let (spi, client) = (backend(server).await, client(server).await);
    let lock = |n| {
        client
            .lock(format!("a-name-of-twenty-on-{n:02}"))
            .expect("a good name")
    };
    let mut bare = RawPair::new("a-name-of-twenty-one-a");
    match kind {
        "raw" => each(pairs, async || raw.pair("a-name-of-twenty-one-r").await).await,
        "backend" => each(pairs, async || bare.run(&spi).await).await,
        "raw-many" => {
            let many = (0..64).map(async |n| {
                let (mut raw, key) = (raw.clone(), format!("a-name-of-twenty-on-{n:02}"));
                each(pairs / 64, async || raw.pair(&key).await).await;
            });
            join_all(many).await;
        }
        "api-many" => {
            let many = (0..64)
                .map(lock)
                .map(async |lock| each(pairs / 64, async || api_pair(&lock).await).await);
            join_all(many).await;
        }
        _ => {
            let lock = lock(0);
            each(pairs, async || api_pair(&lock).await).await;
        }
    }
}

async fn each(times: u64, mut pair: impl AsyncFnMut()) {
    for _ in 0..times {
        pair().await;
    }
}
