//! Redis, beside the bare driver on the same server: one cycle, many at once, and a lock that goes to and
//! fro.
//!
//! Needs `redis-server`, which it starts by itself: `scripts/services` installs it. Counts of commands, and
//! what is judged, are in `cargo run --release -p dlock-benches --bin redis`.
#![allow(missing_docs)] // criterion's macros make functions

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dlock_benches::redis::{Raw, Server, backend, client};
use dlock_benches::{RawPair, api_pair};
use dlock_core::Lock;
use futures::future::join_all;

/// How many tasks there are where there are many.
const TASKS: usize = 64;

fn redis(c: &mut Criterion) {
    let server = Server::start();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    pair(c, &server, &tokio);
    inflight(c, &server, &tokio);
    handoff(c, &server, &tokio);
}

fn pair(c: &mut Criterion, server: &Server, tokio: &tokio::runtime::Runtime) {
    let mut group = c.benchmark_group("redis/pair");
    let (mut raw, _pushes) = tokio.block_on(Raw::new(server));
    group.bench_function("raw", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                for _ in 0..n {
                    raw.pair("pair-raw-of-twenty-one").await;
                }
                began.elapsed()
            })
        });
    });
    let spi = tokio.block_on(backend(server));
    let mut bare = RawPair::new("pair-spi-of-twenty-one");
    group.bench_function("backend", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                for _ in 0..n {
                    bare.run(&spi).await;
                }
                began.elapsed()
            })
        });
    });
    let client = tokio.block_on(client(server));
    let lock = client.lock("pair-api-of-twenty-one").expect("a good name");
    group.bench_function("user_api", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                for _ in 0..n {
                    api_pair(&lock).await;
                }
                began.elapsed()
            })
        });
    });
    group.finish();
}

/// Each of many tasks has a lock of its own, over one connection.
fn inflight(c: &mut Criterion, server: &Server, tokio: &tokio::runtime::Runtime) {
    let mut group = c.benchmark_group("redis/inflight_64");
    group.throughput(Throughput::Elements(TASKS as u64));
    let (raw, _pushes) = tokio.block_on(Raw::new(server));
    group.bench_function("raw", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                join_all((0..TASKS).map(|task| {
                    let mut raw = raw.clone();
                    async move {
                        let key = format!("inflight-raw-{task:08}");
                        for _ in 0..n {
                            raw.pair(&key).await;
                        }
                    }
                }))
                .await;
                began.elapsed()
            })
        });
    });
    let client = tokio.block_on(client(server));
    let lock = |task| client.lock(format!("inflight-{task:012}")).expect("a good name");
    let locks: Vec<_> = (0..TASKS).map(lock).collect();
    group.bench_function("user_api", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                join_all(locks.iter().map(|lock| async move {
                    for _ in 0..n {
                        api_pair(lock).await;
                    }
                }))
                .await;
                began.elapsed()
            })
        });
    });
    group.finish();
}

/// From holder to holder, and the least that it can take: a release that tells somebody, until that somebody
/// hears it.
fn handoff(c: &mut Criterion, server: &Server, tokio: &tokio::runtime::Runtime) {
    let mut group = c.benchmark_group("redis/handoff");
    group.measurement_time(Duration::from_secs(5));
    let (mut one, _) = tokio.block_on(Raw::new(server));
    let (mut two, mut pushes) = tokio.block_on(Raw::new(server));
    tokio
        .block_on(two.connection.subscribe("floor"))
        .expect("it answers");
    while pushes.try_recv().is_ok() {}
    group.bench_function("raw_release_publish_push", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                for _ in 0..n {
                    futures::join!(one.hand("floor", "floor"), pushes.recv());
                }
                began.elapsed()
            })
        });
    });
    let locks: Vec<Lock> = (0..2)
        .map(|_| {
            let client = tokio.block_on(client(server));
            client.lock("to-and-fro").expect("a good name")
        })
        .collect();
    // Both want it all the time: every grant but the first is handed over.
    group.bench_function("user_api_of_two_clients", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                join_all(locks.iter().map(|lock| async move {
                    for _ in 0..n.div_ceil(2) {
                        api_pair(lock).await;
                    }
                }))
                .await;
                began.elapsed()
            })
        });
    });
    group.finish();
}

criterion_group!(benches, redis);
criterion_main!(benches);
