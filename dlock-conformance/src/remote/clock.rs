//! A server's clock, which somebody can set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::future::BoxFuture;

/// A runtime with the clock set forward by that many nanoseconds; only its clock is.
#[derive(Debug)]
pub(super) struct SetClock {
    pub(super) inner: Arc<dyn Runtime>,
    pub(super) ahead: AtomicU64,
}

impl Runtime for SetClock {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn now(&self) -> Timestamp {
        self.inner.now() + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.inner.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        "server"
    }
}
