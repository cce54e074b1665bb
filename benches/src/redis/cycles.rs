//! With nobody else at the lock.

use std::time::{Duration, Instant};

use futures::future::join_all;

/// One cycle after the other for that long: how long each took.
pub async fn timed(length: Duration, mut cycle: impl AsyncFnMut()) -> Vec<Duration> {
    let mut times = Vec::new();
    let from = Instant::now();
    while from.elapsed() < length {
        let at = Instant::now();
        cycle().await;
        times.push(at.elapsed());
    }
    times
}

/// All of them at once for that long, each one cycle after the other: cycles a second of all together.
pub async fn rate<C: AsyncFnMut()>(length: Duration, cycles: impl IntoIterator<Item = C>) -> f64 {
    let from = Instant::now();
    let done = join_all(cycles.into_iter().map(|mut cycle| async move {
        let mut n = 0_u64;
        while from.elapsed() < length {
            cycle().await;
            n += 1;
        }
        n
    }))
    .await;
    done.iter().sum::<u64>() as f64 / from.elapsed().as_secs_f64()
}
