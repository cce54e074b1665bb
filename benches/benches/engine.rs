//! What the engine adds to a call of the backend, on one core.
#![allow(missing_docs)] // criterion's macros make functions

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use dlock_benches::{RawPair, api_pair, memory};
use dlock_core::Runtime;

fn engine(c: &mut Criterion) {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let runtime: Arc<dyn Runtime> = {
        let _entered = tokio.enter();
        dlock_core::runtime::detect().expect("tokio is current")
    };
    let (store, client) = memory(runtime);
    let backend = store.connect();
    let mut group = c.benchmark_group("engine");
    // Outside: its ids are used once.
    let mut pair = RawPair::new("raw");
    group.bench_function("memory/bare_backend_pair", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = std::time::Instant::now();
                for _ in 0..n {
                    pair.run(&*backend).await;
                }
                began.elapsed()
            })
        });
    });
    let lock = client.lock("bench").expect("a good name");
    group.bench_function("memory/user_api_pair", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = std::time::Instant::now();
                for _ in 0..n {
                    api_pair(&lock).await;
                }
                began.elapsed()
            })
        });
    });
    let guard = tokio
        .block_on(client.lock("held").expect("a good name").acquire())
        .expect("nobody else wants it");
    group.bench_function("guard/is_valid", |b| b.iter(|| black_box(guard.is_valid())));
    let mutex = tokio::sync::Mutex::new(());
    group.bench_function("for_scale/tokio_mutex_pair", |b| {
        b.iter_custom(|n| {
            tokio.block_on(async {
                let began = std::time::Instant::now();
                for _ in 0..n {
                    drop(black_box(mutex.lock().await));
                }
                began.elapsed()
            })
        });
    });
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
