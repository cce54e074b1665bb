//! The adaptor for async-std.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Runtime, random};
use crate::error::Result;

/// Runs on async-std's global executor and timers, which start on first use, from any thread.
///
/// async-std is no longer developed and points to smol; this adaptor serves programs that still run on it.
///
/// Timers are async-io's, on a monotonic clock that may stand still while the machine is suspended: after a
/// resume they fire late. A lease does not rely on them: its validity is computed from
/// [`Timestamp`](crate::Timestamp), which counts suspension.
#[derive(Debug)]
pub struct AsyncStd(());

impl AsyncStd {
    /// async-std's global executor.
    ///
    /// # Errors
    /// `Unavailable` if the operating system provides no random bytes.
    pub fn global() -> Result<Arc<dyn Runtime>> {
        random::check()?;
        Ok(Arc::new(Self(())))
    }
}

impl Runtime for AsyncStd {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // Dropping the handle detaches the task.
        drop(async_std::task::spawn(task));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        async_std::task::sleep(duration).boxed()
    }

    fn name(&self) -> &'static str {
        "async-std"
    }
}
