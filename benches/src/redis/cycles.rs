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

/// So many cycles one after the other; the first do not count.
const SPELL: usize = 25;
const SETTLE: usize = 5;

/// Cycles of N kinds for that long: how long each took, by its kind.
///
/// Each in turn, so that other changes affect all equally; and each for a while, since it is faster on a
/// session and code that it has just used. The order changes.
pub async fn in_turn<const N: usize>(
    length: Duration,
    mut cycle: impl AsyncFnMut(usize),
) -> [Vec<Duration>; N] {
    let mut times = [const { Vec::new() }; N];
    let from = Instant::now();
    let mut first = 0;
    while from.elapsed() < length {
        for kind in (first..first + N).map(|n| n % N) {
            for nth in 0..SPELL {
                let at = Instant::now();
                cycle(kind).await;
                if nth >= SETTLE {
                    times[kind].push(at.elapsed());
                }
            }
        }
        first += 1;
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
