//! What it costs to keep locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlock_benches::figures::Shows;
use dlock_benches::redis::{Counted, Goals, Server, backend, micros};
use dlock_core::LockName;
use dlock_core::RequestId;
use dlock_core::spi::{Acquire, LeaseKey, Lock as _, Release, RenewItem, RenewOutcome};

/// How many are held, of which the table shows one.
const HELD: [u64; 4] = [100, 1_000, SHOWN, 100_000];
const SHOWN: u64 = 10_000;

fn key(n: u64) -> LeaseKey {
    // Twenty-one bytes.
    let name = LockName::new(format!("a-lock-{n:014}")).expect("a good name");
    LeaseKey::new(name, RequestId::new(9, n))
}

/// Seconds of the server's CPU so far.
fn cpu(server: &Server) -> f64 {
    let part = |name: &str| -> f64 { server.info(name).parse().expect("a number") };
    part("used_cpu_user") + part("used_cpu_sys")
}

/// What it took to renew all that are held at once, at best of five times.
struct Renewed {
    commands: u64,
    took: Duration,
    /// Seconds of the server's CPU.
    spent: f64,
    /// The slowest PING of a bystander, of all five.
    worst: Duration,
}

/// Leases, renewed at once.
pub(crate) async fn renewal(server: &Server, table: &mut Goals) {
    for held in HELD {
        let renewed = renew_all(server, held).await;
        let each = renewed.spent * 1e6 / held as f64;
        let plot = "Redis: the server's CPU for a renewal, µs, by locks held";
        table.points.add(Shows::Held, plot, "dlock", held, each);
        if held == SHOWN {
            rows(&renewed, table);
        }
    }
}

async fn renew_all(server: &Server, held: u64) -> Renewed {
    let lock = backend(server).await;
    for n in 0..held {
        let request = Acquire::new(key(n), Duration::from_secs(60));
        lock.attempt(&request).await.expect("it is free");
    }
    let items: Vec<_> = (0..held)
        .map(|n| RenewItem::lease(key(n), Duration::from_secs(60)))
        .collect();
    let mut worst = Duration::ZERO;
    let (mut spent, mut requests, mut took) = (f64::MAX, 0, Duration::MAX);
    for _ in 0..5 {
        let stop = Arc::new(AtomicBool::new(false));
        let (before, cpu_before) = (Counted::now(server), cpu(server));
        let bystander = {
            let mut connection = server.wire();
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut worst = Duration::ZERO;
                while !stop.load(Ordering::Acquire) {
                    let at = Instant::now();
                    connection.ask(&["PING"]);
                    worst = worst.max(at.elapsed());
                    std::thread::sleep(Duration::from_micros(200));
                }
                worst
            })
        };
        let at = Instant::now();
        let outcomes = lock.renew().expect("it renews").renew(&items).await;
        took = took.min(at.elapsed());
        stop.store(true, Ordering::Release);
        let renewed = outcomes
            .iter()
            .filter(|o| matches!(o, RenewOutcome::Renewed(_)))
            .count();
        assert_eq!(renewed as u64, held);
        worst = worst.max(bystander.join().expect("no panic"));
        spent = spent.min(cpu(server) - cpu_before);
        requests = Counted::now(server).since(&before).scripts();
    }
    for n in 0..held {
        lock.release(&key(n), Release::Now).await.expect("it was held");
    }
    Renewed {
        commands: requests,
        took,
        spent,
        worst,
    }
}

fn rows(renewed: &Renewed, table: &mut Goals) {
    table.row(
        "10,000 leases renewed: commands",
        renewed.commands.to_string(),
        format!("{:.1} ms", renewed.took.as_secs_f64() * 1e3),
        String::new(),
        "≤ 100",
    );
    table.row(
        "the same: the server's CPU for each",
        format!("{:.2} µs", renewed.spent * 1e6 / SHOWN as f64),
        "with a bystander that asks all the time".to_owned(),
        String::new(),
        "≤ 2 µs",
    );
    table.row(
        "the same: a bystander's slowest PING",
        format!("{:.0} µs", micros(renewed.worst)),
        "of five renewals, on the same core".to_owned(),
        String::new(),
        "< 1,000 µs",
    );
}

/// What the server needs for a lock that is held.
pub(crate) async fn memory(server: &Server, table: &mut Goals) {
    for held in HELD {
        let (each, keys) = hold_all(server, held).await;
        let plot = "Redis: bytes of a lock, by locks held";
        table.points.add(Shows::Held, plot, "dlock", held, each);
        if held == SHOWN {
            table.row(
                "memory of a held lock, name of 21 bytes",
                format!("{each:.0} bytes"),
                "its share of the table of keys included".to_owned(),
                String::new(),
                "≤ 200",
            );
            table.row(
                "left after release of 10,000",
                format!("{keys} keys"),
                "the counters of the buckets".to_owned(),
                String::new(),
                "≤ 256",
            );
        }
    }
}

/// How much memory each takes, and the keys that are left when they have been released.
async fn hold_all(server: &Server, held: u64) -> (f64, String) {
    server.ask(&["FLUSHALL"]);
    let lock = backend(server).await;
    let used = || -> f64 { server.info("used_memory").parse().expect("a number") };
    // The counters of the buckets, which stay.
    for n in 0..held {
        lock.attempt(&Acquire::new(key(n), Duration::from_secs(60)))
            .await
            .expect("it is free");
        lock.release(&key(n), Release::Now).await.expect("it was held");
    }
    let before = used();
    for n in 0..held {
        lock.attempt(&Acquire::new(key(n), Duration::from_secs(60)))
            .await
            .expect("it is free");
    }
    let each = (used() - before) / held as f64;
    for n in 0..held {
        lock.release(&key(n), Release::Now).await.expect("it was held");
    }
    (each, server.ask(&["DBSIZE"]))
}
