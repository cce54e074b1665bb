//! The adaptor for smol.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Runtime, random};
use crate::error::Result;
use crate::timestamp::Timestamp;

/// Runs on smol's global executor and timers, which start by themselves when first used, from any thread.
///
/// Timers are async-io's, on a monotonic clock that may stand still while the machine is suspended: after a
/// resume they fire late. A lease does not rely on them: its validity is computed from [`Timestamp`], which
/// counts suspension.
#[derive(Debug)]
pub struct Smol(());

impl Smol {
    /// Smol's global executor.
    ///
    /// # Errors
    /// `Unavailable` if the operating system gives no random bytes.
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

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        random::fill(buffer);
    }

    fn name(&self) -> &'static str {
        "smol"
    }
}
