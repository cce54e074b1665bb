//! How cost grows with the locks that a client holds, and with those who wait for one.
//!
//! `cargo run --release -p dlock-benches --bin scaling [quick] [redis] [postgres]`; it starts servers of its
//! own. Prints a row per size: memory of the client and of the store, processor time of both, how late
//! renewals are; and for one name, what waiters cost and how quickly it goes from one to the next. What came
//! of it, and what to make of it, is in `docs/scaling.md`.
#![allow(clippy::print_stdout)] // it is a program that prints

use std::process::Command;
use std::time::{Duration, Instant};

use dlock_benches::redis::{Effort, Meter, cores};
use dlock_benches::sql::{Disk, Strategy};
use dlock_benches::{redis, sql};
use dlock_core::{Client, Guard, Lock, LockOptions};
use futures::{StreamExt as _, stream};

const TTL: Duration = Duration::from_secs(30);
/// How long it is watched: each lease is renewed twice.
const WATCHED: Duration = Duration::from_secs(20);
/// At most this many are asked how long they have left.
const LOOKED_AT: usize = 10_000;
const CLIENTS: usize = 8;

const HELD: &str = "| held | acquired /s | client, bytes each | store, bytes each | client, % of a core \
    | store, % of a core | requests /s | shortest life, s | lost |";
const WAITING: &str = "| waiting | client, bytes each | client, % of a core | store, % of a core \
    | requests /s | hand-off, µs | requests each |";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // One row, with a store and a process of its own: what others left is not in it.
    if let [store, part, many] = &words[..] {
        return row(store, part, many.parse().expect("a number"));
    }
    let (effort, stores) = Effort::of(words, &["redis", "postgres"]).unwrap_or_else(|unknown| {
        println!("{unknown}");
        std::process::exit(2)
    });
    let most = if effort.rounds > 3 { 6 } else { 3 };
    for store in stores {
        // A million of this ttl are more than one core of PostgreSQL renews.
        let held = if store == "postgres" { most.min(5) } else { most };
        for (part, heads, sizes) in [("held", HELD, 2..=held), ("waiting", WAITING, 1..=most.min(4))] {
            println!(
                "\n{store}, {part}\n\n{heads}\n|{}",
                "---|".repeat(heads.matches(" | ").count() + 1)
            );
            for size in sizes {
                let program = std::env::current_exe().expect("it runs from a file");
                let many = 10_usize.pow(size).to_string();
                let done = Command::new(program).args([store.as_str(), part, &many]).status();
                assert!(
                    done.expect("it can be started").success(),
                    "{store}, {part}, {many}"
                );
            }
        }
    }
}

fn row(store: &str, part: &str, many: usize) {
    let _: &str = cores();
    let store = match store {
        "redis" => Store::Redis(redis::Server::start()),
        _ => Store::Postgres(sql::Server::postgres(Disk::Not)),
    };
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let row = tokio.expect("a runtime").block_on(async {
        match part {
            "held" => held(&store, many).await,
            _ => waiting(&store, many).await,
        }
    });
    println!("| {many} | {} |", row.join(" | "));
}

enum Store {
    Redis(redis::Server),
    Postgres(sql::Server),
}

impl Store {
    async fn client(&self) -> Client {
        match self {
            Self::Redis(server) => redis::client(server).await,
            Self::Postgres(server) => sql::client(server, Strategy::Lease).await,
        }
    }

    fn bytes(&self) -> f64 {
        match self {
            Self::Redis(server) => server.info("used_memory").parse().expect("a number"),
            Self::Postgres(server) => server.bytes() as f64,
        }
    }

    /// Scripts or statements.
    fn requests(&self) -> f64 {
        let requests = match self {
            Self::Redis(server) => server.counted().scripts(),
            Self::Postgres(server) => server.counted().of("statement"),
        };
        requests as f64
    }

    /// Seconds of a processor: of the client, which is this process, and of the server with its processes.
    fn spent(&self) -> [f64; 2] {
        let server = match self {
            Self::Redis(server) => server.info("process_id").parse().expect("a number"),
            Self::Postgres(server) => server.pid(),
        };
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        [own.tv_sec as f64 + own.tv_nsec as f64 / 1e9, spent_by(server)]
    }
}

/// Seconds of a processor that a process and its children have taken, those that have ended included.
fn spent_by(parent: u32) -> f64 {
    let mut ticks = 0.0;
    for entry in std::fs::read_dir("/proc").expect("Linux").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        // It may have ended meanwhile.
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |n: usize| fields[n].parse::<f64>().unwrap_or(0.0);
        if pid == parent {
            ticks += number(11) + number(12) + number(13) + number(14);
        } else if fields[1].parse() == Ok(parent) {
            ticks += number(11) + number(12);
        }
    }
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Resident memory of this process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    pages.expect("a number") * rustix::param::page_size() as f64
}

/// What goes on meanwhile, for a second.
struct Rates {
    client: f64,
    store: f64,
    requests: f64,
}

async fn rates(store: &Store, watching: impl Future<Output = ()>) -> Rates {
    let (began, spent, requests) = (Instant::now(), store.spent(), store.requests());
    watching.await;
    let (took, now) = (began.elapsed().as_secs_f64(), store.spent());
    Rates {
        client: (now[0] - spent[0]) / took,
        store: (now[1] - spent[1]) / took,
        requests: (store.requests() - requests) / took,
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

async fn held(store: &Store, many: usize) -> Vec<String> {
    let client = store.client().await;
    let options = LockOptions::new().ttl(TTL);
    let locks = (0..many).map(|n| {
        let lock = client.lock(format!("a-lock-{n:014}")).expect("a good name");
        lock.options(options.clone()).expect("good options")
    });
    let (memory, bytes, began) = (resident(), store.bytes(), Instant::now());
    let mut guards: Vec<Guard> = Vec::with_capacity(many);
    let mut acquiring = stream::iter(locks)
        .map(async |lock: Lock| lock.acquire().await)
        .buffer_unordered(64);
    while let Some(guard) = acquiring.next().await {
        guards.push(guard.expect("nobody else wants it"));
    }
    drop(acquiring);
    let took = began.elapsed().as_secs_f64();
    let (memory, bytes) = (resident() - memory, store.bytes() - bytes);
    let mut shortest = TTL;
    let watched = rates(store, async {
        let until = Instant::now() + WATCHED;
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let some = guards.iter().step_by(many.div_ceil(LOOKED_AT));
            shortest = some.map(Guard::remaining).fold(shortest, Duration::min);
        }
    });
    let watched = watched.await;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    let row = vec![
        format!("{:.0}", many as f64 / took),
        format!("{:.0}", memory / many as f64),
        format!("{:.0}", bytes / many as f64),
        percent(watched.client),
        percent(watched.store),
        format!("{:.1}", watched.requests),
        format!("{:.2}", shortest.as_secs_f64()),
        lost.to_string(),
    ];
    client.abort();
    row
}

async fn waiting(store: &Store, many: usize) -> Vec<String> {
    let holder = store.client().await;
    let guard = holder.lock("wanted").expect("a good name").acquire().await;
    let guard = guard.expect("nobody else wants it");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(store.client().await);
    }
    let memory = resident();
    let mut waiters = Vec::new();
    while waiters.len() < many {
        // A few hundred at a time: they are to wait, and not for their first answer.
        for n in (waiters.len()..many).take(500) {
            let lock = clients[n % CLIENTS].lock("wanted").expect("a good name");
            waiters.push(tokio::spawn(async move {
                let guard = lock.acquire().await.expect("it is waited for");
                guard.release().await.expect("it was held");
            }));
        }
        while (holder.inspect("wanted").await.expect("it answers").waiting as usize) < waiters.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let memory = resident() - memory;
    let idle = rates(store, tokio::time::sleep(WATCHED)).await;
    let (requests, began) = (store.requests(), Instant::now());
    guard.release().await.expect("it was held");
    for waiter in waiters {
        waiter.await.expect("it was served");
    }
    let took = began.elapsed();
    vec![
        format!("{:.0}", memory / many as f64),
        percent(idle.client),
        percent(idle.store),
        format!("{:.1}", idle.requests),
        format!("{:.0}", took.as_secs_f64() * 1e6 / many as f64),
        format!("{:.2}", (store.requests() - requests) / many as f64),
    ]
}
