//! The handle that the users of an engine share; when the last one is dropped, the engine ends.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, Phase, Settings};
use super::keeper;
use crate::error::Result;
use crate::observe;

/// The handle that the users of an engine share. While there is one (a client, a guard, a waiting future),
/// the keeper works. When the last one is dropped, the keeper meets its obligations and ends.
#[derive(Debug)]
pub(crate) struct Engine(Arc<Core>);

impl Deref for Engine {
    type Target = Arc<Core>;
    fn deref(&self) -> &Arc<Core> {
        &self.0
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // No I/O and no mutex: this runs wherever the last guard is dropped (I2).
        self.0.retired.store(true, Ordering::Release);
        self.0.wake_keeper();
    }
}

impl Engine {
    /// Starts an engine and its keeper.
    pub(crate) fn start(settings: Settings) -> Arc<Self> {
        let core = Arc::new(Core::new(settings));
        observe::register_metrics(&core.caps);
        core.runtime.spawn(keeper::start(core.clone()));
        Arc::new(Self(core))
    }

    /// Ends every hold and every wait, releases what is held, and ends the keeper.
    pub(crate) async fn close(&self) -> Result<()> {
        loop {
            let done = self.closed.listen();
            match self.phase() {
                Phase::Closed => return Ok(()),
                Phase::Open => self.begin_closing(),
                Phase::Closing => {}
            }
            done.await;
        }
    }
}
