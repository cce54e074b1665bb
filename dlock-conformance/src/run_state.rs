//! What all attempts of one run share.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::claims::Claims;

/// The claims, as the harness made them when the run began, and whether anything has connected since.
#[derive(Debug)]
pub(crate) struct RunState {
    /// Read once: a harness that claims something else for each rule would be judged by what suits it.
    pub(crate) claims: Claims,
    connected: AtomicBool,
}

impl RunState {
    pub(crate) fn new(claims: Claims) -> Self {
        Self {
            claims,
            connected: AtomicBool::new(false),
        }
    }

    /// A client was connected.
    pub(crate) fn connects(&self) {
        self.connected.store(true, Ordering::Relaxed);
    }

    /// Whether any client was connected in this run: from then on, one that cannot be is no excuse.
    pub(crate) fn has_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}
