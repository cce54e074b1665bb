//! What it costs to keep locks.

use std::time::{Duration, Instant};

use dlock_benches::redis::{Goals, Meter as _, micros};
use dlock_benches::sql::{Server, Strategy, backend};
use dlock_core::LockName;
use dlock_core::RequestId;
use dlock_core::spi::{Acquire, LeaseKey, RenewItem};
use futures::future::join_all;

const HELD: u64 = 10_000;
const TTL: Duration = Duration::from_secs(600);

fn key(n: u64) -> LeaseKey {
    // Twenty-one bytes.
    let name = LockName::new(format!("a-lock-{n:014}")).expect("a good name");
    LeaseKey::new(name, RequestId::new(9, n))
}

/// Ten thousand leases, renewed at once.
pub(crate) async fn renewal(server: &Server, table: &mut Goals) {
    let lock = backend(server, Strategy::Lease).await;
    for first in (0..HELD).step_by(100) {
        let some = (first..first + 100).map(|n| {
            let lock = &lock;
            async move {
                let request = Acquire::new(key(n), TTL);
                lock.attempt(&request).await.expect("it is free");
            }
        });
        join_all(some).await;
    }
    let items: Vec<_> = (0..HELD).map(|n| RenewItem::lease(key(n), TTL)).collect();
    let (mut statements, mut took) = (0, Duration::MAX);
    for _ in 0..3 {
        let (before, at) = (server.counted(), Instant::now());
        let renewed = lock.renew().expect("it renews").renew(&items).await;
        took = took.min(at.elapsed());
        statements = server.counted().since(&before).of("statement");
        assert_eq!(renewed.len(), items.len());
    }
    table.row(
        &format!("{}: 10,000 leases renewed, statements", server.name()),
        statements.to_string(),
        format!("{:.1} ms", took.as_secs_f64() * 1e3),
        format!("{:.1} µs each", micros(took) / HELD as f64),
        "≤ 20, ≤ 5 µs",
    );
}
