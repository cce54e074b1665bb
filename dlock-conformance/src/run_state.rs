//! What all attempts of one run share.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::claims::Claims;

/// The claims, as the harness made them when the run began, and whether anything has connected since.
#[derive(Debug)]
pub(crate) struct RunState {
    /// Read once, so that a harness cannot claim something else for each rule.
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

    /// Whether any client was connected in this run. From then on, a failed connect is no excuse.
    pub(crate) fn has_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}
