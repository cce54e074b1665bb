//! Work on several threads.

use std::iter::from_fn;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs all of them, a given number at once, and returns their results in any order.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    threads: usize,
    all: &[T],
    each: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || -> Vec<R> {
        let mine = from_fn(|| all.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.map(&each).collect()
    };
    std::thread::scope(|scope| {
        let threads = 0..threads.clamp(1, all.len().max(1));
        let threads: Vec<_> = threads.map(|_| scope.spawn(work)).collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.flat_map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}
