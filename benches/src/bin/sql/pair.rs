//! With nobody else at the lock.

use std::future::Future;
use std::time::{Duration, Instant};

use dlock_benches::figures::Shows;
use dlock_benches::redis::{Effort, Goals, Meter as _, quantile, timed};
use dlock_benches::sql::{Kind, Maria, Postgres, Server, Strategy, backend, client, syncs};
use dlock_benches::{RawPair, api_pair};
use futures::FutureExt as _;
use futures::future::join_all;

const NAME: &[u8] = b"a-name-of-twenty-one-r";

pub(crate) async fn time(what: impl Future<Output = ()>) -> Duration {
    let from = Instant::now();
    what.await;
    from.elapsed()
}

/// The times of one kind. All take turns, so that other changes affect all equally. The first round is for
/// warming up.
pub(crate) async fn turns<const N: usize>(
    effort: Effort,
    mut each: impl AsyncFnMut() -> [Duration; N],
) -> [Vec<Duration>; N] {
    let mut times = [const { Vec::<Duration>::new() }; N];
    for round in 0..=effort.rounds {
        let ends = Instant::now() + effort.times(1) * N as u32;
        while Instant::now() < ends {
            let these = each().await;
            if round > 0 {
                times.iter_mut().zip(these).for_each(|(all, one)| all.push(one));
            }
        }
    }
    times
}

/// Leases in rows.
pub(crate) async fn rows(server: &Server, effort: Effort, table: &mut Goals) {
    let (spi, client) = (
        backend(server, Strategy::Lease).await,
        client(server, Strategy::Lease).await,
    );
    let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
    let mut bare = RawPair::new("a-name-of-twenty-one-a");
    let mut times = match server.kind() {
        Kind::Postgres => {
            let mut raw = Postgres::new(server).await;
            let each = async || {
                [
                    time(raw.row_pair(NAME)).await,
                    time(bare.run(&*spi)).await,
                    time(api_pair(&lock)).await,
                ]
            };
            turns(effort, each).await
        }
        Kind::Maria => {
            let mut raw = Maria::new(server).await;
            let each = async || {
                [
                    time(raw.row_pair(NAME)).await,
                    time(bare.run(&*spi)).await,
                    time(api_pair(&lock)).await,
                ]
            };
            turns(effort, each).await
        }
    };
    let what = server.name();
    let series = ["raw: a row taken and freed", "backend alone", "dlock"];
    let [raw, alone, api] = table
        .points
        .spreads(&format!("{what}, leases"), series, &mut times);
    table.row(
        &format!("{what}, lease: acquire + release, p50"),
        format!("{api:.1} µs"),
        format!(
            "a row taken with a token and freed by the bare driver {raw:.1} µs; backend alone {alone:.1} µs"
        ),
        format!("{:.2}", api / raw),
        "≤ 1.05",
    );
    let counted = statements(server, effort, &lock).await;
    table.row(
        "the same: statements",
        format!("{counted:.3}"),
        "fencing token included".to_owned(),
        String::new(),
        "2",
    );
}

/// Locks of a session.
pub(crate) async fn sessions(server: &Server, effort: Effort, table: &mut Goals) {
    let strategy = Strategy::Session;
    let (spi, client) = (backend(server, strategy).await, client(server, strategy).await);
    let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
    let mut bare = RawPair::new("a-name-of-twenty-one-a");
    let what = server.name();
    let plot = &format!("{what}, sessions");
    let what = &format!("{what}, session: acquire + release, p50");
    match server.kind() {
        Kind::Postgres => {
            let mut raw = Postgres::new(server).await;
            let pool = Postgres::new(server).await;
            let each = async || {
                [
                    time(raw.advisory_pair(1)).await,
                    time(pool.pool_pair(2)).await,
                    time(pool.driver_pair()).await,
                    time(bare.run(&*spi)).await,
                    time(api_pair(&lock)).await,
                ]
            };
            let mut times = turns(effort, each).await;
            let series = [
                "raw: advisory lock, connection kept",
                "advisory lock by a pool",
                "sqlx's PgAdvisoryLock",
                "backend alone",
                "dlock",
            ];
            let [raw, pool, driver, alone, api] = table.points.spreads(plot, series, &mut times);
            table.row(
                what,
                format!("{api:.1} µs"),
                format!(
                    "pg_advisory_lock and unlock on a connection that is kept {raw:.1} µs, by a pool \
                        {pool:.1} µs; sqlx's PgAdvisoryLock {driver:.1} µs; \
                     backend alone {alone:.1} µs"
                ),
                format!(
                    "{:.2} of kept, {:.2} of pool, {:.2} of sqlx's",
                    api / raw,
                    api / pool,
                    api / driver
                ),
                "≤ 1.10 of pool, ≤ 1.3 of kept",
            );
        }
        Kind::Maria => {
            let mut raw = Maria::new(server).await;
            let pool = Maria::new(server).await;
            let each = async || {
                [
                    time(raw.named_pair("raw")).await,
                    time(pool.pool_pair("pool")).await,
                    time(bare.run(&*spi)).await,
                    time(api_pair(&lock)).await,
                ]
            };
            let mut times = turns(effort, each).await;
            let series = [
                "raw: GET_LOCK, connection kept",
                "GET_LOCK by a pool",
                "backend alone",
                "dlock",
            ];
            let [raw, pool, alone, api] = table.points.spreads(plot, series, &mut times);
            table.row(
                what,
                format!("{api:.1} µs"),
                format!(
                    "GET_LOCK and RELEASE_LOCK on a connection that is kept {raw:.1} µs, by a pool \
                        {pool:.1} µs; backend alone {alone:.1} µs"
                ),
                format!("{:.2} of kept, {:.2} of pool", api / raw, api / pool),
                "≤ 1.15 of pool",
            );
        }
    }
    let counted = statements(server, effort, &lock).await;
    table.row(
        "the same: statements",
        format!("{counted:.3}"),
        "fencing token included".to_owned(),
        String::new(),
        "2",
    );
}

/// Of each cycle.
async fn statements(server: &Server, effort: Effort, lock: &dlock_core::Lock) -> f64 {
    let before = server.counted();
    let cycles = timed(effort.times(2), async || api_pair(lock).await).await.len() as f64;
    server.counted().since(&before).of("statement") as f64 / cycles
}

/// How often a lease that survives a power cut waits for the disk.
pub(crate) async fn durable(server: &Server, table: &mut Goals) {
    let waits = |cycles| {
        syncs(server.pid(), async move || {
            // Its connections are made while it is counted, since a process for each may come with them; then
            // the difference is that of the cycles alone.
            let client = client(server, Strategy::Lease).await;
            let lock = client.lock("a-name-of-twenty-one-b").expect("a good name");
            for _ in 0..cycles {
                api_pair(&lock).await;
            }
            client.close().await.expect("it answers");
        })
    };
    // The tables are made before.
    client(server, Strategy::Lease).await;
    let (few, many) = (waits(FEW).await, waits(MANY).await);
    tell_waits(
        &format!(
            "{}, lease, commits that wait for the disk: fdatasync of a pair",
            server.name()
        ),
        few,
        many,
        "2",
        table,
    );
}

const TASKS: usize = 64;
const OF_EACH: usize = 8;

/// Leases that survive a power cut, of many tasks with a lock of its own each.
pub(crate) async fn many(server: &Server, effort: Effort, table: &mut Goals) {
    let client = client(server, Strategy::Lease).await;
    let lock = |n| client.lock(format!("of-task-{n}")).expect("a good name");
    let locks: Vec<_> = (0..TASKS).map(lock).collect();
    let mut raw = Vec::new();
    // One after the other: each sees to the table.
    for _ in 0..CONNECTIONS {
        raw.push(Postgres::new(server).await);
    }
    let each = async || {
        let bare = raw.iter_mut().enumerate().map(async |(n, connection)| {
            for of in 0..TASKS / CONNECTIONS * OF_EACH {
                connection
                    .row_pair(format!("raw-{n}-{}", of / OF_EACH).as_bytes())
                    .await;
            }
        });
        let api = locks.iter().map(async |lock| {
            for _ in 0..OF_EACH {
                api_pair(lock).await;
            }
        });
        [
            time(join_all(bare).map(drop)).await,
            time(join_all(api).map(drop)).await,
        ]
    };
    let [raw, api] = turns(effort, each).await.map(|mut times| {
        let middle = quantile(&mut times, 0.5);
        (TASKS * OF_EACH) as f64 / middle.as_secs_f64()
    });
    let plot = "PostgreSQL, 64 tasks on 64 leases, commits on disk";
    for (series, rate) in [("raw: a row taken and freed", raw), ("dlock", api)] {
        table.points.add(Shows::Throughput, plot, series, "", rate);
    }
    table.row(
        "PostgreSQL, lease, commits that wait for the disk: pairs of 64 tasks on 64 locks",
        format!("{api:.0} /s"),
        format!("row upsert and update on {CONNECTIONS} connections {raw:.0} /s"),
        format!("{:.2}", api / raw),
        "≥ 4",
    );
}

/// As many as a client has.
const CONNECTIONS: usize = 4;

/// Cycles, so that what is there once is seen.
pub(crate) const FEW: u64 = 20;
pub(crate) const MANY: u64 = 220;

/// The difference between the two.
pub(crate) fn tell_waits(what: &str, few: Option<u64>, many: Option<u64>, goal: &str, table: &mut Goals) {
    let figure = match few.zip(many) {
        Some((few, many)) => format!("{:.2}", many.saturating_sub(few) as f64 / (MANY - FEW) as f64),
        None => "not counted: strace is not installed, or may not look".to_owned(),
    };
    let beside = format!("{} pairs, counted by strace", MANY - FEW);
    table.row(what, figure, beside, String::new(), goal);
}
