//! ZooKeeper, beside the bare driver and its recipe on the same server: one cycle, and a lock that goes to
//! and fro.
//!
//! Needs ZooKeeper, which it starts by itself: `scripts/services` installs it. Curator, counts of requests,
//! and what is judged, are in `cargo run --release -p dlock-benches --bin zookeeper`.
#![allow(missing_docs)] // criterion's macros make functions

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use dlock_benches::redis::Contender;
use dlock_benches::zookeeper::{Raw, Recipe, Server, backend, client};
use dlock_benches::{RawPair, api_pair};
use dlock_core::Lock;
use futures::future::join_all;
use tokio::runtime::Runtime;

/// The server's compiler takes a while.
const WARM_UP: Duration = Duration::from_secs(6);

fn zookeeper(c: &mut Criterion) {
    let server = Server::start();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    pair(c, &server, &tokio);
    handoff(c, &server, &tokio);
}

/// So many cycles, timed as one.
fn cycles(tokio: &Runtime, n: u64, mut cycle: impl AsyncFnMut()) -> Duration {
    tokio.block_on(async {
        let began = Instant::now();
        for _ in 0..n {
            cycle().await;
        }
        began.elapsed()
    })
}

fn pair(c: &mut Criterion, server: &Server, tokio: &Runtime) {
    let mut group = c.benchmark_group("zookeeper/pair");
    group.warm_up_time(WARM_UP);
    let raw = tokio.block_on(Raw::new(server));
    for line in ["/raw", "/two"] {
        tokio.block_on(raw.line(line));
    }
    group.bench_function("raw_one_by_one", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || raw.triple("/raw").await));
    });
    group.bench_function("raw_in_two_round_trips", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || raw.in_two("/two").await));
    });
    let mut recipe = tokio.block_on(Recipe::new(server, "/recipe/pair"));
    group.bench_function("recipe_of_the_driver", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || recipe.pair().await));
    });
    let spi = tokio.block_on(backend(server));
    let mut bare = RawPair::new("pair-spi-of-twenty-one");
    group.bench_function("backend", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || bare.run(&spi).await));
    });
    let client = tokio.block_on(client(server));
    let lock = client.lock("pair-api-of-twenty-one").expect("a good name");
    group.bench_function("user_api", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || api_pair(&lock).await));
    });
    group.finish();
}

/// All of them want it all the time: every grant but the first is handed over.
fn to_and_fro<C: Contender + Clone>(tokio: &Runtime, n: u64, who: &[C]) -> Duration {
    tokio.block_on(async {
        let began = Instant::now();
        let rounds = n.div_ceil(who.len() as u64);
        join_all(who.iter().cloned().map(|mut lock| async move {
            for _ in 0..rounds {
                let held = lock.acquire().await;
                lock.release(held).await;
            }
        }))
        .await;
        began.elapsed()
    })
}

fn handoff(c: &mut Criterion, server: &Server, tokio: &Runtime) {
    let mut group = c.benchmark_group("zookeeper/handoff");
    group.warm_up_time(WARM_UP);
    let recipes = [(); 2].map(|()| tokio.block_on(Recipe::new(server, "/recipe/to-and-fro")));
    group.bench_function("recipe_of_the_driver", |b| {
        b.iter_custom(|n| to_and_fro(tokio, n, &recipes));
    });
    let locks: [Lock; 2] = [(); 2].map(|()| {
        let client = tokio.block_on(client(server));
        client.lock("to-and-fro").expect("a good name")
    });
    group.bench_function("user_api_of_two_clients", |b| {
        b.iter_custom(|n| to_and_fro(tokio, n, &locks));
    });
    group.finish();
}

criterion_group!(benches, zookeeper);
criterion_main!(benches);
