//! The same workload on each backend, in one run: ratios, not absolute figures, are what to read.
//!
//! | in each group | what |
//! |---|---|
//! | `pair` | one task, one lock: acquire and release |
//! | `64_tasks_64_locks` | pairs of 64 tasks, each with a lock of its own |
//! | `8_tasks_1_lock` | pairs of 8 tasks that want the same lock: every acquisition is a hand-off |
//! | `bare_store_pair` | the least that the store itself can do for a pair: here, an insert and a delete in two transactions |
#![allow(missing_docs)] // criterion's macros make functions

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use dlock_benches::{api_pair, memory};
use dlock_core::{Client, Lock, Runtime};
use dlock_sql::sqlite::Config;
use futures::future::join_all;
use sqlx::Connection;

fn throughput(c: &mut Criterion) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let runtime = dlock_core::runtime::Tokio::from_handle(tokio.handle().clone()).expect("it has timers");
    let directory = tempfile::tempdir().expect("a directory can be made");
    for backend in ["memory", "sqlite"] {
        let mut group = c.benchmark_group(format!("throughput/{backend}"));
        group.sample_size(20).measurement_time(Duration::from_secs(4));
        let client = connect(backend, &tokio, &runtime, directory.path());
        workload(&mut group, &tokio, &client);
        if backend == "sqlite" {
            bare_sqlite(&mut group, &tokio, &directory.path().join("bare.sqlite"));
        }
        group.finish();
    }
}

fn connect(
    backend: &str,
    tokio: &tokio::runtime::Runtime,
    runtime: &Arc<dyn Runtime>,
    directory: &std::path::Path,
) -> Client {
    if backend == "memory" {
        return memory(runtime.clone()).1;
    }
    let file = directory.join("locks.sqlite");
    let opened = tokio
        .block_on(Config::new(file).connect(runtime.clone()))
        .expect("a new file can be opened");
    Client::builder(Arc::new(opened), runtime.clone())
        .build()
        .expect("it keeps its claims")
}

fn workload(group: &mut BenchmarkGroup<'_, WallTime>, tokio: &tokio::runtime::Runtime, client: &Client) {
    let own = |i: usize| client.lock(format!("lock {i}")).expect("a good name");
    group.throughput(Throughput::Elements(1));
    for (name, locks) in [
        ("pair", vec![own(0)]),
        ("64_tasks_64_locks", (0..64).map(own).collect::<Vec<_>>()),
        ("8_tasks_1_lock", vec![own(0); 8]),
    ] {
        group.bench_function(name, |b| b.iter_custom(|n| tokio.block_on(spread(&locks, n))));
    }
}

/// That many pairs, divided among a task for each lock.
async fn spread(locks: &[Lock], pairs: u64) -> Duration {
    let tasks = locks.len() as u64;
    let began = Instant::now();
    let all = locks.iter().enumerate().map(|(i, lock)| {
        let (lock, share) = (
            lock.clone(),
            pairs / tasks + u64::from((i as u64) < pairs % tasks),
        );
        tokio::spawn(async move {
            for _ in 0..share {
                api_pair(&lock).await;
            }
        })
    });
    for done in join_all(all).await {
        done.expect("no pair failed");
    }
    began.elapsed()
}

/// What the bare driver does for the same durability: a row in, a row out, each in a transaction of its own.
fn bare_sqlite(
    group: &mut BenchmarkGroup<'_, WallTime>,
    tokio: &tokio::runtime::Runtime,
    file: &std::path::Path,
) {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .synchronous(sqlx::sqlite::SqliteSynchronous::Normal);
    let mut conn = tokio
        .block_on(sqlx::SqliteConnection::connect_with(&options))
        .expect("a new file can be opened");
    tokio
        .block_on(
            sqlx::query("create table held (name blob primary key, id text) without rowid")
                .execute(&mut conn),
        )
        .expect("a table can be made");
    group.bench_function("bare_store_pair", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = Instant::now();
                for _ in 0..n {
                    let insert = sqlx::query("insert into held values (?, ?)")
                        .bind(&b"lock"[..])
                        .bind("id");
                    insert.execute(&mut conn).await.expect("it is free");
                    let delete = sqlx::query("delete from held where name = ? and id = ?")
                        .bind(&b"lock"[..])
                        .bind("id");
                    delete.execute(&mut conn).await.expect("it is ours");
                }
                began.elapsed()
            })
        });
    });
}

criterion_group!(benches, throughput);
criterion_main!(benches);
