//! The adaptor for smol.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Runtime, random};
use crate::error::Result;

/// Runs on smol's global executor and timers, which start on first use, from any thread.
///
/// Timers are async-io's, on a monotonic clock that may stand still while the machine is suspended: after a
/// resume they fire late. A lease does not rely on them: its validity is computed from
/// [`Timestamp`](crate::Timestamp), which counts suspension.
#[derive(Debug)]
pub struct Smol(());

impl Smol {
    /// Smol's global executor.
    ///
    /// # Errors
    /// `Unavailable` if the operating system provides no random bytes.
    pub fn global() -> Result<Arc<dyn Runtime>> {
        random::check()?;
        Ok(Arc::new(Self(())))
    }
}

impl Runtime for Smol {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        smol::spawn(task).detach();
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        smol::Timer::after(duration).map(drop).boxed()
    }

    fn name(&self) -> &'static str {
        "smol"
    }
}
