//! A server's clock, which somebody can set.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::future::BoxFuture;

use crate::hooks::WallClock;

/// A runtime with a clock that can be set; only its clock is.
#[derive(Debug)]
pub(super) struct SetClock {
    pub(super) inner: Arc<dyn Runtime>,
    pub(super) wall: Arc<WallClock>,
}

impl Runtime for SetClock {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn now(&self) -> Timestamp {
        self.wall.now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.inner.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        "server"
    }
}
