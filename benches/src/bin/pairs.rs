//! `pairs api|bare N`: that many uncontended pairs and nothing else, for a profiler to count.

use std::sync::Arc;

use dlock_benches::{RawPair, api_pair, memory};
use dlock_core::Runtime;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, n] = &args[..] else {
        panic!("usage: pairs api|bare N")
    };
    let n: u64 = n.parse().expect("a number of pairs");
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let runtime: Arc<dyn Runtime> =
        dlock_core::runtime::Tokio::from_handle(tokio.handle().clone()).expect("it has timers");
    let (store, client) = memory(runtime);
    let (backend, lock) = (store.connect(), client.lock("bench").expect("a good name"));
    tokio.block_on(async {
        let mut pair = RawPair::new("raw");
        for _ in 0..n {
            match what.as_str() {
                "api" => api_pair(&lock).await,
                _ => pair.run(&*backend).await,
            }
        }
    });
}
