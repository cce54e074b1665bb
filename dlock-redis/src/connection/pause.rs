//! A pause in an endless loop.

use dlock_core::runtime::yield_now;

/// Sleeps in a loop without an end, and lets others run. The timers of a runtime that shuts down complete at
/// once: a loop of such pauses, and of requests that fail at once then, would keep its thread to itself, and
/// the runtime from its end.
pub(crate) async fn pause(sleep: impl Future<Output = ()>) {
    sleep.await;
    yield_now().await;
}
