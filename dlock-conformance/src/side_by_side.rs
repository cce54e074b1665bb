//! Work on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::{lock, unlocked};

/// Runs all of them, a given number at once, and returns their results in the order of completion.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    threads: usize,
    all: &[T],
    each: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, all.len().max(1)) {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = each(one);
                    lock(&done).push(result);
                }
            });
        }
    });
    unlocked(done)
}
