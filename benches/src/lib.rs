//! What the benchmarks share: the cycles that are measured.
//!
//! | program | what it tells |
//! |---|---|
//! | `cargo bench -p dlock-benches --bench engine` | what the engine adds to a call of the backend |
//! | `cargo bench -p dlock-benches --bench throughput` | the same workloads on each backend and on the bare store, with plots; starts every server |
//! | `cargo run --release -p dlock-benches --bin cost` | allocations and bytes, counted |
//! | `cargo run --release -p dlock-benches --bin held` | 10,000 held locks renewed for a minute: tasks, memory, CPU |
//! | `cargo run --release -p dlock-benches --bin redis` | Redis beside the bare driver: latency, commands, hand-overs, renewals, memory |
//! | `cargo run --release --manifest-path benches/peers/Cargo.toml` | Redis beside other lock libraries, in a workspace of its own |
//! | `cargo run --release -p dlock-benches --bin zookeeper` | ZooKeeper beside the bare driver, the driver's own recipe, and Apache Curator |
//! | `cargo run --release -p dlock-benches --bin etcd` | etcd beside the bare driver and etcd's own lock API |
//! | `cargo run --release -p dlock-benches --bin sql` | PostgreSQL, MariaDB and SQLite beside the bare driver, and sqlx's own lock: latency, statements, waits for the disk, hand-overs, renewals |
//! | `cargo run --release -p dlock-benches --bin scaling` | how cost grows with locks held and with waiters, on Redis and PostgreSQL: `docs/scaling.md` |
//! | `scripts/bench` | those that compare, one after the other, and a page of what they say (`--bin page`) |
//! | `benches/counts` | allocations, bytes and instructions of the engine, held to what is written down in it |

#[cfg(feature = "stores")]
pub mod etcd;
#[cfg(feature = "stores")]
pub mod figures;
#[cfg(feature = "stores")]
pub mod redis;
#[cfg(feature = "stores")]
pub mod sql;
#[cfg(feature = "stores")]
pub mod zookeeper;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{self, Acquire, Attempt, LeaseKey, Release};
use dlock_core::{Client, Lock, LockName, Memory, RequestId, Runtime};

/// A store in memory, and a client of it.
pub fn memory(runtime: Arc<dyn Runtime>) -> (Memory, Client) {
    let store = Memory::new(runtime.clone());
    let client = Client::builder(store.connect(), runtime)
        .build()
        .expect("the memory backend keeps its claims");
    (store, client)
}

/// One uncontended acquire and release through the whole user API.
pub async fn api_pair(lock: &Lock) {
    let guard = lock.acquire().await.expect("nobody else wants it");
    guard.release().await.expect("it was held");
}

/// As long as the sessions of ZooKeeper are here: a lease of it is no shorter.
const TTL: Duration = Duration::from_secs(60);

/// The same two calls made directly to the backend.
#[derive(Debug)]
pub struct RawPair {
    name: LockName,
    sequence: u64,
}

impl RawPair {
    /// Cycles on that name.
    pub fn new(name: &str) -> Self {
        Self {
            name: LockName::new(name).expect("not empty"),
            sequence: 0,
        }
    }

    /// Takes the lock and keeps it.
    pub async fn hold(&self, backend: &dyn spi::Lock) -> LeaseKey {
        let key = LeaseKey::new(self.name.clone(), RequestId::new(8, 1));
        let request = Acquire::new(key.clone(), TTL);
        assert!(
            matches!(backend.attempt(&request).await, Ok(Attempt::Granted(_))),
            "nobody else wants it"
        );
        key
    }

    /// One cycle, with a fresh id as the contract asks for.
    pub async fn run(&mut self, backend: &dyn spi::Lock) {
        self.sequence += 1;
        let key = LeaseKey::new(self.name.clone(), RequestId::new(7, self.sequence));
        let request = Acquire::new(key, TTL);
        let grant = match backend.attempt(&request).await {
            Ok(Attempt::Granted(grant)) => grant,
            other => panic!("nobody else wants it, but: {other:?}"),
        };
        backend
            .release(&grant.key, Release::Now)
            .await
            .expect("it was held");
    }
}
