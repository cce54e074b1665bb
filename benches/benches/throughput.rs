//! The same workloads on each backend, each beside what the bare store can do: ratios, not absolute figures,
//! are what to read.
//!
//! | in each group | what |
//! |---|---|
//! | `pair`, `raw_pair` | one task, one lock: acquire and release |
//! | `64_tasks_64_locks`, `raw_64_tasks` | pairs of 64 tasks over one client, each with a lock of its own; of the bare store, on as many connections as help it |
//! | `8_tasks_1_lock` | pairs of 8 tasks of one client that want the same lock |
//! | `2_clients_1_lock` | the same of two clients |
//!
//! A bare pair is the minimum that the store does: two scripts on Redis; create, list and delete on
//! ZooKeeper; two statements on a row, or the server's own lock; a row in and out of a file; a tokio `Mutex`.
//! For a contended lock, pairs one after the other are the limit.
//!
//! Starts each server (`scripts/services` installs them). Requests and latency are counted by the programs
//! that `scripts/bench` runs.
#![allow(missing_docs)] // criterion's macros make functions

use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use dlock_benches::sql::{BareFile, Disk, Maria, Place, Postgres, Server, Strategy, file_client};
use dlock_benches::{api_pair, memory, redis, sql, zookeeper};
use dlock_core::{Client, Lock, runtime};
use futures::future::join_all;
use sqlx::sqlite::SqliteSynchronous;
use tokio::runtime::{Builder, Runtime};

/// As many connections as the bare databases are given.
const CONNECTIONS: usize = 8;

fn throughput(c: &mut Criterion) {
    let tokio = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tokio = tokio.expect("a runtime");
    let _current = tokio.enter();
    in_memory(c, &tokio);
    in_a_file(c, &tokio);
    on_redis(c, &tokio);
    for start in [Server::postgres, Server::maria] {
        let server = start(Disk::Not);
        for strategy in [Strategy::Lease, Strategy::Session] {
            in_a_database(c, &tokio, &server, strategy);
        }
    }
    on_zookeeper(c, &tokio);
}

/// Who makes pairs.
enum Worker {
    Lock(Lock),
    Mutex(tokio::sync::Mutex<()>),
    File(BareFile),
    Redis(redis::Raw, String),
    Postgres(Postgres, Strategy, i64),
    Maria(Maria, Strategy, i64),
    ZooKeeper(zookeeper::Raw, String),
}

impl Worker {
    async fn pair(&mut self) {
        match self {
            Self::Lock(lock) => api_pair(lock).await,
            Self::Mutex(mutex) => drop(mutex.lock().await),
            Self::File(file) => file.pair().await,
            Self::Redis(raw, key) => raw.pair(key).await,
            Self::Postgres(raw, Strategy::Lease, n) => raw.row_pair(&n.to_be_bytes()).await,
            Self::Postgres(raw, Strategy::Session, n) => raw.advisory_pair(*n).await,
            Self::Maria(raw, Strategy::Lease, n) => raw.row_pair(&n.to_be_bytes()).await,
            Self::Maria(raw, Strategy::Session, n) => raw.named_pair(&n.to_string()).await,
            Self::ZooKeeper(raw, line) => raw.in_two(line).await,
        }
    }
}

fn in_memory(c: &mut Criterion, tokio: &Runtime) {
    let (store, first) = memory(runtime::detect().expect("tokio is current"));
    let again = || {
        let here = runtime::detect().expect("tokio is current");
        let client = Client::builder(store.connect(), here);
        client.build().expect("it keeps its claims")
    };
    let raw = (0..64).map(|_| Worker::Mutex(tokio::sync::Mutex::new(())));
    compare(c, tokio, "memory", [first, again()], raw.collect());
}

fn in_a_file(c: &mut Criterion, tokio: &Runtime) {
    let place = Place::new();
    let file = place.file("locks");
    // One connection writes at a time.
    let raw = tokio.block_on(BareFile::new(&place.file("raw"), SqliteSynchronous::Normal));
    let raw = vec![Worker::File(raw)];
    let clients = [(); 2].map(|()| tokio.block_on(file_client(&file)));
    compare(c, tokio, "sqlite", clients, raw);
}

fn on_redis(c: &mut Criterion, tokio: &Runtime) {
    let server = redis::Server::start();
    let (raw, _pushes) = tokio.block_on(redis::Raw::new(&server));
    let raw = (0..64).map(|n| Worker::Redis(raw.clone(), format!("raw-of-twenty-one-{n:02}")));
    let raw = raw.collect();
    let clients = [(); 2].map(|()| tokio.block_on(redis::client(&server)));
    compare(c, tokio, "redis", clients, raw);
}

fn in_a_database(c: &mut Criterion, tokio: &Runtime, server: &Server, strategy: Strategy) {
    let raw = (1..).take(CONNECTIONS).map(|n| match server.kind() {
        sql::Kind::Postgres => Worker::Postgres(tokio.block_on(Postgres::new(server)), strategy, n),
        sql::Kind::Maria => Worker::Maria(tokio.block_on(Maria::new(server)), strategy, n),
    });
    let raw = raw.collect();
    let clients = [(); 2].map(|()| tokio.block_on(sql::client(server, strategy)));
    let name = format!("{}_{strategy:?}", server.name()).to_lowercase();
    compare(c, tokio, &name, clients, raw);
}

fn on_zookeeper(c: &mut Criterion, tokio: &Runtime) {
    let server = zookeeper::Server::start();
    let raw = tokio.block_on(zookeeper::Raw::new(&server));
    let raw = (0..64).map(|n| {
        let line = format!("/raw-{n}");
        tokio.block_on(raw.line(&line));
        Worker::ZooKeeper(raw.clone(), line)
    });
    let raw = raw.collect();
    let clients = [(); 2].map(|()| tokio.block_on(zookeeper::client(&server)));
    compare(c, tokio, "zookeeper", clients, raw);
}

fn compare(c: &mut Criterion, tokio: &Runtime, name: &str, clients: [Client; 2], mut raw: Vec<Worker>) {
    let mut group = c.benchmark_group(format!("throughput/{name}"));
    // As many pairs in each sample: few would not reach every task.
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1));
    group
        .measurement_time(Duration::from_secs(3))
        .throughput(Throughput::Elements(1));
    let lock = |client: &Client, name: &str| Worker::Lock(client.lock(name).expect("a good name"));
    let own = (0..64).map(|n| lock(&clients[0], &format!("lock-of-twenty-one-{n:02}")));
    let alone = raw.pop().expect("there is one");
    let mut first = vec![alone];
    for (what, mut workers) in [
        ("pair", vec![lock(&clients[0], "lock-of-twenty-one-00")]),
        ("64_tasks_64_locks", own.collect()),
        (
            "8_tasks_1_lock",
            (0..8).map(|_| lock(&clients[0], "wanted")).collect(),
        ),
        (
            "2_clients_1_lock",
            clients.iter().map(|client| lock(client, "to and fro")).collect(),
        ),
    ] {
        group.bench_function(what, |b| {
            b.iter_custom(|n| tokio.block_on(spread(&mut workers, n)))
        });
    }
    group.bench_function("raw_pair", |b| {
        b.iter_custom(|n| tokio.block_on(spread(&mut first, n)))
    });
    raw.append(&mut first);
    group.bench_function("raw_64_tasks", |b| {
        b.iter_custom(|n| tokio.block_on(spread(&mut raw, n)))
    });
    group.finish();
}

/// That many pairs, divided among a task for each worker.
async fn spread(workers: &mut Vec<Worker>, pairs: u64) -> Duration {
    let tasks = workers.len() as u64;
    let began = Instant::now();
    let all = workers.drain(..).zip(0_u64..).map(|(mut worker, i)| {
        let share = pairs / tasks + u64::from(i < pairs % tasks);
        tokio::spawn(async move {
            for _ in 0..share {
                worker.pair().await;
            }
            worker
        })
    });
    let done = join_all(all).await;
    let took = began.elapsed();
    workers.extend(done.into_iter().map(|done| done.expect("no pair failed")));
    took
}

criterion_group!(benches, throughput);
criterion_main!(benches);
