//! Where an entry is in the keeper's timers.

use std::sync::atomic::{AtomicU32, Ordering};

/// Where an entry is in the heap. Only read and written under the lock of the engine's state.
#[derive(Debug)]
pub(crate) struct Place(AtomicU32);

const NOWHERE: u32 = u32::MAX;

impl Place {
    pub(crate) const fn nowhere() -> Self {
        Self(AtomicU32::new(NOWHERE))
    }

    pub(super) fn get(&self) -> Option<usize> {
        match self.0.load(Ordering::Relaxed) {
            NOWHERE => None,
            i => Some(i as usize),
        }
    }

    pub(super) fn set(&self, place: Option<usize>) {
        // Four billion entries do not fit into memory.
        self.0
            .store(place.map_or(NOWHERE, |i| i as u32), Ordering::Relaxed);
    }
}
