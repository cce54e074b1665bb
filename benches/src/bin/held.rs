//! Holds 10,000 locks of a ttl of 10 s for a minute with one client, and says what that took.
#![allow(clippy::print_stdout)] // it is a program that prints

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_benches::memory;
use dlock_core::{Guard, GuardEvent, LockOptions, Runtime};
use futures::StreamExt;

const HELD: usize = 10_000;

fn main() {
    let seconds = match std::env::args().nth(1).as_deref() {
        None => 60,
        Some("--help" | "-h") => {
            println!(
                "held [SECONDS]: holds {HELD} locks of ttl 10 s for that long (60) and prints what it took"
            );
            return;
        }
        Some(n) => n.parse().expect("a number of seconds"),
    };
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let runtime: Arc<dyn Runtime> = {
        let _entered = tokio.enter();
        dlock_core::runtime::detect().expect("tokio is current")
    };
    let rss_before = resident_kib();
    let (_store, client) = memory(runtime);
    tokio.block_on(async {
        // The client's keeper is spawned by now; the runtime adaptor may keep a task of its own.
        let tasks_before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let options = LockOptions::new().ttl(Duration::from_secs(10));
        let mut guards = Vec::with_capacity(HELD);
        for i in 0..HELD {
            let lock = client.lock(format!("held lock {i:08}")).expect("a good name");
            guards.push(
                lock.options(options.clone())
                    .expect("good options")
                    .acquire()
                    .await
                    .expect("nobody else wants it"),
            );
        }
        let rss = resident_kib() - rss_before;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        println!(
            "{HELD} locks held by one client: {} tasks more than with none, {:.0} bytes of resident \
            memory each",
            tasks - tasks_before,
            rss as f64 * 1024.0 / HELD as f64
        );
        let mut events = guards[0].events();
        let (cpu, began) = (cpu_time(), Instant::now());
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let (cpu, wall) = (cpu_time() - cpu, began.elapsed());
        let valid = guards.iter().filter(|g| Guard::is_valid(g)).count();
        drop(guards);
        let mut renewals = 0;
        while let Some(GuardEvent::Renewed) = events.next().await {
            renewals += 1;
        }
        println!(
            "after {:.0} s: {valid} valid, each renewed {renewals} times; CPU {:.0} ms = {:.2} % of one \
                core, {:.2} µs per renewal",
            wall.as_secs_f64(),
            cpu.as_secs_f64() * 1e3,
            100.0 * cpu.as_secs_f64() / wall.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / (HELD as f64 * f64::from(renewals.max(1))),
        );
        assert_eq!(valid, HELD, "every lock is still held");
        assert_eq!(tasks, tasks_before, "a held lock has no task of its own");
    });
}

/// CPU time of this process, user and system.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Resident memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}
