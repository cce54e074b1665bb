//! PostgreSQL, MariaDB and SQLite, beside the bare driver and sqlx's `PgAdvisoryLock` on the same server: one
//! cycle, and a lock that goes to and fro.
//!
//! Needs PostgreSQL and MariaDB, which it starts by itself: `scripts/services` installs them. Counts of
//! statements and of waits for the disk, and what is judged, are in `cargo run --release -p dlock-benches
//! --bin sql`.
#![allow(missing_docs)] // criterion's macros make functions

use std::time::{Duration, Instant};

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use dlock_benches::sql::{
    BareFile, Disk, Kind, Maria, Place, Postgres, Server, Strategy, backend, client, file_client,
};
use dlock_benches::{RawPair, api_pair};
use dlock_core::Lock;
use futures::future::join_all;
use sqlx::sqlite::SqliteSynchronous;
use tokio::runtime::Runtime;

const ROW: &[u8] = b"pair-row-of-twenty-one";

fn sql(c: &mut Criterion) {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for start in [Server::postgres as fn(Disk) -> Server, Server::maria] {
        let server = start(Disk::Not);
        for strategy in [Strategy::Lease, Strategy::Session] {
            let what = match strategy {
                Strategy::Lease => "lease",
                Strategy::Session => "session",
            };
            let name = server.name().to_lowercase();
            pair(c, &format!("{name}/{what}/pair"), &server, strategy, &tokio);
            handoff(c, &format!("{name}/{what}/handoff"), &server, strategy, &tokio);
        }
    }
    file(c, &tokio);
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

fn pair(c: &mut Criterion, name: &str, server: &Server, strategy: Strategy, tokio: &Runtime) {
    let mut group = c.benchmark_group(name);
    match (server.kind(), strategy) {
        (Kind::Postgres, Strategy::Lease) => {
            let mut raw = tokio.block_on(Postgres::new(server));
            group.bench_function("raw_row", |b| {
                b.iter_custom(|n| cycles(tokio, n, async || raw.row_pair(ROW).await));
            });
        }
        (Kind::Postgres, Strategy::Session) => advisory(&mut group, server, tokio),
        (Kind::Maria, Strategy::Lease) => {
            let mut raw = tokio.block_on(Maria::new(server));
            group.bench_function("raw_row", |b| {
                b.iter_custom(|n| cycles(tokio, n, async || raw.row_pair(ROW).await));
            });
        }
        (Kind::Maria, Strategy::Session) => {
            let mut raw = tokio.block_on(Maria::new(server));
            group.bench_function("raw_get_lock_on_a_kept_connection", |b| {
                b.iter_custom(|n| cycles(tokio, n, async || raw.named_pair("raw").await));
            });
            group.bench_function("raw_get_lock_by_a_pool", |b| {
                b.iter_custom(|n| cycles(tokio, n, async || raw.pool_pair("pool").await));
            });
        }
    }
    let spi = tokio.block_on(backend(server, strategy));
    let mut bare = RawPair::new("pair-spi-of-twenty-one");
    group.bench_function("backend", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || bare.run(&*spi).await));
    });
    let client = tokio.block_on(client(server, strategy));
    let lock = client.lock("pair-api-of-twenty-one").expect("a good name");
    group.bench_function("user_api", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || api_pair(&lock).await));
    });
    group.finish();
}

fn advisory(group: &mut BenchmarkGroup<'_, WallTime>, server: &Server, tokio: &Runtime) {
    let mut raw = tokio.block_on(Postgres::new(server));
    group.bench_function("raw_advisory_on_a_kept_connection", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || raw.advisory_pair(1).await));
    });
    group.bench_function("raw_advisory_by_a_pool", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || raw.pool_pair(2).await));
    });
    group.bench_function("sqlx_pg_advisory_lock", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || raw.driver_pair().await));
    });
}

/// Both want it all the time: every grant but the first is handed over.
fn handoff(c: &mut Criterion, name: &str, server: &Server, strategy: Strategy, tokio: &Runtime) {
    let mut group = c.benchmark_group(name);
    group.sample_size(20);
    let locks: [Lock; 2] = [(); 2].map(|()| {
        let client = tokio.block_on(client(server, strategy));
        client.lock("to-and-fro").expect("a good name")
    });
    group.bench_function("user_api_of_two_clients", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                let rounds = n.div_ceil(2);
                join_all(locks.iter().map(|lock| async move {
                    for _ in 0..rounds {
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

fn file(c: &mut Criterion, tokio: &Runtime) {
    let mut group = c.benchmark_group("sqlite/pair");
    let place = Place::new();
    for (name, synchronous) in [
        ("raw_normal", SqliteSynchronous::Normal),
        ("raw_full", SqliteSynchronous::Full),
    ] {
        let mut raw = tokio.block_on(BareFile::new(&place.file(name), synchronous));
        group.bench_function(name, |b| {
            b.iter_custom(|n| cycles(tokio, n, async || raw.pair().await));
        });
    }
    let client = tokio.block_on(file_client(&place.file("locks")));
    let lock = client.lock("pair-api-of-twenty-one").expect("a good name");
    group.bench_function("user_api", |b| {
        b.iter_custom(|n| cycles(tokio, n, async || api_pair(&lock).await));
    });
    group.finish();
}

criterion_group!(benches, sql);
criterion_main!(benches);
