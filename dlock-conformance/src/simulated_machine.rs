//! The machine that a simulated process is.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::lock::lock;
use dlock_core::sim::SimRuntime;
use dlock_core::{Runtime as _, Timestamp};

/// The initial wall clock of a process when the simulation begins: a day in 2026.
const BEGAN: Duration = Duration::from_secs(1_780_000_000);

/// The machine of a process: its clocks, and how long it was stopped.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) number: u32,
    pub(crate) node: SimRuntime,
    /// Seconds by which its wall clock is off.
    pub(crate) ahead: AtomicI64,
    stops: Mutex<Vec<Stop>>,
}

/// From when until when it was stopped, if that is over.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(dlock_saboteur), allow(dead_code))] // only planted bugs count time in another way
pub(crate) struct Stop {
    pub(crate) from: Timestamp,
    pub(crate) until: Option<Timestamp>,
}

impl Machine {
    pub(crate) fn new(number: u32, node: SimRuntime) -> Self {
        Self {
            number,
            node,
            ahead: AtomicI64::new(0),
            stops: Mutex::default(),
        }
    }

    pub(crate) fn change_stops<R>(&self, change: impl FnOnce(&mut Vec<Stop>) -> R) -> R {
        change(&mut lock(&self.stops))
    }

    /// What its wall clock shows, since 1970.
    pub(crate) fn wall_clock(&self) -> Duration {
        let right = BEGAN + self.node.now().since(Timestamp::ZERO);
        let ahead = self.ahead.load(Ordering::Relaxed);
        match u64::try_from(ahead) {
            Ok(ahead) => right + Duration::from_secs(ahead),
            Err(_) => right.saturating_sub(Duration::from_secs(ahead.unsigned_abs())),
        }
    }

    /// Each time that it was stopped.
    #[cfg(dlock_saboteur)]
    pub(crate) fn stops(&self) -> Vec<Stop> {
        self.change_stops(|stops| stops.clone())
    }
}
