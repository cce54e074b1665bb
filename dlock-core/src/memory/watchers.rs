//! The watchers of a name.

use std::collections::VecDeque;
use std::task::Waker;

use crate::inspection::Change;

/// How many changes are buffered for a slow consumer before a new snapshot replaces them.
const BUFFER: usize = 1024;

/// One watch stream, as the store knows it.
pub(super) struct Watcher {
    pub(super) id: u64,
    pub(super) connection: u64,
    pub(super) buffer: VecDeque<Change>,
    /// The buffer was full. Further changes are in the snapshot that the stream takes when it is next polled.
    pub(super) overflown: bool,
    pub(super) waker: Option<Waker>,
}

impl Watcher {
    pub(super) fn new(id: u64, connection: u64, snapshot: Change) -> Self {
        Self {
            id,
            connection,
            buffer: VecDeque::from([snapshot]),
            overflown: false,
            waker: None,
        }
    }

    pub(super) fn note(&mut self, change: Change) {
        if self.overflown {
            return;
        }
        if self.buffer.len() >= BUFFER {
            self.buffer = VecDeque::new();
            self.overflown = true;
            return;
        }
        self.buffer.push_back(change);
    }
}
