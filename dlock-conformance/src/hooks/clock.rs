//! A clock that can be set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};

use super::Step;
use crate::nanos::nanos;

/// How far it is ahead at first, so that it can also be set back.
const AHEAD: Duration = Duration::from_secs(3600);

/// The clock of a runtime, and how far it was set forward: an hour at first.
#[derive(Debug)]
pub struct WallClock {
    runtime: Arc<dyn Runtime>,
    ahead: AtomicU64,
}

impl WallClock {
    /// One that runs as that of the runtime does.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self {
            runtime,
            ahead: AtomicU64::new(nanos(AHEAD)),
        }
    }

    /// What it shows.
    pub fn now(&self) -> Timestamp {
        self.runtime.now() + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    /// Sets it: that far ahead of the runtime's.
    pub fn set_ahead(&self, by: Duration) {
        self.ahead.store(nanos(by), Ordering::Relaxed);
    }

    /// Sets it forward or back; back no further than to what the runtime's shows.
    pub fn step(&self, step: Step) {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let ahead = match step {
            Step::Forward(by) => ahead.saturating_add(nanos(by)),
            Step::Back(by) => ahead.saturating_sub(nanos(by)),
        };
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}
