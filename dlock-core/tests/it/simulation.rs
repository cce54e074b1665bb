//! The engine under the simulator: `DLOCK_SIM_SEEDS=10000` runs more seeds, `DLOCK_SIM_SEED=0x2a` replays one
//! with its trace.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::sim::quorum;
use dlock_core::sim::scenario::{self, Report, Trace};

type Run = fn(u64, Trace) -> Report;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

fn replay(seed: u64) -> String {
    format!("DLOCK_SIM_SEED={seed:#x} cargo test -p dlock-core --features sim --test it simulation")
}

/// The report, or how the run broke down.
fn judged(run: Run, seed: u64, trace: Trace) -> Result<Report, String> {
    let report = catch_unwind(AssertUnwindSafe(|| run(seed, trace))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.unwrap_or_else(|| "a task panicked".to_owned())
    })?;
    match &report.violation {
        Some(violation) if trace == Trace::Keep => Err(format!("{violation}\n{}", report.trace.join("\n"))),
        Some(violation) => Err(violation.clone()),
        None => Ok(report),
    }
}

#[test]
fn no_seed_violates_an_invariant() {
    no_seed_violates(scenario::run, 1_000);
}

#[test]
fn no_seed_violates_an_invariant_of_a_quorum() {
    no_seed_violates(quorum::run, 400);
}

fn no_seed_violates(run: Run, seeds: u64) {
    if let Some(seed) = setting("DLOCK_SIM_SEED") {
        if let Err(why) = judged(run, seed, Trace::Keep) {
            panic!("seed {seed:#x}: {why}");
        }
        return;
    }
    let seeds = setting("DLOCK_SIM_SEEDS").unwrap_or(seeds);
    let (next, grants) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let mut failures: Vec<(u64, String)> = std::thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                // After a handful of failures more of them say nothing new.
                if seed >= seeds || failures.len() >= 10 {
                    return failures;
                }
                match judged(run, seed, Trace::None) {
                    Err(why) => failures.push((seed, why)),
                    Ok(report) => {
                        grants.fetch_add(report.grants, Ordering::Relaxed);
                        // A sample is run twice: a run must be a function of its seed.
                        if seed % 16 == 0 && judged(run, seed, Trace::None) != Ok(report) {
                            failures.push((seed, "is not deterministic".to_owned()));
                        }
                    }
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    failures.sort();
    let lines: Vec<_> = failures
        .iter()
        .map(|(seed, why)| format!("seed {seed:#x}: {why}\n    replay: {}", replay(*seed)))
        .collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    // Non-vacuity: runs in which nobody gets a lock prove nothing.
    let grants = grants.into_inner();
    assert!(grants > 10 * seeds, "only {grants} grants in {seeds} seeds");
}
