//! Counts what cannot be timed: allocations of an uncontended cycle, bytes of a held lock.
#![allow(clippy::print_stdout)] // it is a program that prints

use std::sync::Arc;

use allocation_counter::measure;
use dlock_benches::{RawPair, api_pair, memory};
use dlock_core::Runtime;

const CYCLES: u64 = 10_000;
const HELD: usize = 10_000;

fn main() {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let runtime: Arc<dyn Runtime> = {
        let _entered = tokio.enter();
        dlock_core::runtime::detect().expect("tokio is current")
    };
    let (store, client) = memory(runtime);
    let lock = client.lock("bench").expect("a good name");
    tokio.block_on(async {
        for _ in 0..1_000 {
            api_pair(&lock).await;
        }
    });
    let api = measure(|| {
        tokio.block_on(async {
            for _ in 0..CYCLES {
                api_pair(&lock).await;
            }
        });
    });
    let (mut acquires, mut releases) = (0, 0);
    for _ in 0..100 {
        let mut guard = None;
        acquires += measure(|| guard = Some(tokio.block_on(lock.acquire()).expect("nobody else wants it")))
            .count_total;
        let guard = guard.expect("acquired");
        releases += measure(|| tokio.block_on(guard.release()).expect("it was held")).count_total;
    }
    let backend = store.connect();
    let mut pair = RawPair::new("raw");
    let raw = measure(|| {
        tokio.block_on(async {
            for _ in 0..CYCLES {
                pair.run(&*backend).await;
            }
        });
    });
    let per = |n: u64| n as f64 / CYCLES as f64;
    println!("acquire + release, uncontended, memory backend");
    println!("  user API      {:.2} allocations", per(api.count_total));
    println!(
        "    of these {:.2} in acquire, {:.2} in release",
        acquires as f64 / 100.0,
        releases as f64 / 100.0
    );
    println!("  bare backend  {:.2} allocations", per(raw.count_total));

    let names: Vec<_> = (0..HELD)
        .map(|i| client.lock(format!("held lock {i:08}")).expect("a good name"))
        .collect();
    let mut guards = Vec::with_capacity(HELD);
    let held = measure(|| {
        tokio.block_on(async {
            for lock in &names {
                guards.push(lock.acquire().await.expect("nobody else wants it"));
            }
        });
    });
    let bytes = held.bytes_current as f64 / HELD as f64;
    let raw_names: Vec<_> = (0..HELD)
        .map(|i| RawPair::new(&format!("raw lock {i:08}")))
        .collect();
    let bare = dlock_core::Memory::new(client.runtime().clone()).connect();
    let mut leases = Vec::with_capacity(HELD);
    let stored = measure(|| {
        tokio.block_on(async {
            for name in &raw_names {
                leases.push(name.hold(&*bare).await);
            }
        });
    });
    let stored = stored.bytes_current as f64 / HELD as f64;
    let engine = bytes - stored;
    println!(
        "{HELD} held locks, their names apart: {engine:.0} bytes each in the engine, {stored:.0} in the \
            memory store"
    );
    assert!(
        per(api.count_total) <= 3.0,
        "more than 3 allocations per acquire and release"
    );
    assert!(engine <= 200.0, "more than 200 bytes per held lock");
    drop((guards, leases));
}
