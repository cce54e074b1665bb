//! What an operator, or a test in its place, does to a store from outside.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use super::store::Memory;
use super::table::Table;
use crate::name::LockName;
use crate::spi::Signal;
use crate::token::Strength;

impl Memory {
    /// Stops the store and restarts it at once. Every push stream ends, every watch stream ends with an
    /// error, and every connection gets the signals of a doubt and of the return. Without its memory the
    /// store forgets leases and queues and, unless its tokens [survive a restart](super::Config::strength),
    /// also tokens and gates.
    pub fn crash(&self, memory: Survives) {
        let (waiters, watchers, signals) = {
            let mut state = self.shared.lock();
            state.epoch += 1;
            if memory == Survives::Nothing {
                let last_token = state.table.last_token();
                state.table = Table::new(self.shared.settings);
                if self.shared.strength >= Strength::AcrossRestart {
                    state.table.skip_tokens(last_token);
                } else {
                    self.shared.gates().clear();
                }
            }
            (
                std::mem::take(&mut state.waiters),
                std::mem::take(&mut state.watchers),
                state.signals.clone(),
            )
        };
        // Outside the mutex: a waker may run code that calls the store. In the order of the names: a
        // simulated run must not depend on the order of a hash map.
        drop(BTreeMap::from_iter(waiters));
        BTreeMap::from_iter(watchers)
            .into_values()
            .flatten()
            .filter_map(|w| w.waker)
            .for_each(Waker::wake);
        for signal in signals {
            // One that listens no more has nothing to be told.
            let _ = signal.unbounded_send(Signal::Doubt);
            let _ = signal.unbounded_send(Signal::Back);
        }
    }

    /// Returns what the store keeps now. After everything was released there are no names, no waiters and no
    /// watchers. The tombstones of abandoned requests are removed by abandons that come two minutes later.
    pub fn sizes(&self) -> Sizes {
        let state = self.shared.lock();
        let (names, queued, tombstones) = state.table.sizes();
        Sizes {
            names,
            queued,
            tombstones,
            listeners: state.waiters.len(),
            watchers: state.watchers.values().map(Vec::len).sum(),
        }
    }

    /// Returns how many times the store was started: 1, plus one for each [crash](Self::crash) and
    /// [fail-over](Self::fail_over).
    pub fn starts(&self) -> u64 {
        self.shared.lock().epoch + 1
    }

    /// Lets another server take over with the whole state, as in a store that waits for its replica before it
    /// answers. For clients it is a [crash](Self::crash) that the memory survives.
    pub fn fail_over(&self) {
        self.shared.lock().term += 1;
        self.crash(Survives::Memory);
    }

    /// Returns the number of the present server: 0, plus one for each [fail-over](Self::fail_over).
    pub fn term(&self) -> u64 {
        self.shared.lock().term
    }

    /// Returns the last token that was granted; 0 before the first.
    pub fn last_token(&self) -> u64 {
        self.shared.lock().table.last_token()
    }

    /// Makes all later tokens larger than `to`, as if that many had been granted. At most 2^63 - 1. It never
    /// lowers the counter.
    pub fn skip_tokens(&self, to: u64) {
        self.shared.lock().table.skip_tokens(to);
    }

    /// Overwrites the record of `name` with something that is no lock, as another program on the same store
    /// might. Its holder has lost it, and requests for it fail with `BackendData`, until it is
    /// [mended](Self::mend).
    pub fn spoil(&self, name: &LockName, with: &str) {
        self.shared.run(None, |state, effects| {
            state.table.spoil(name, with, effects);
        });
    }

    /// Returns what [`spoil`](Self::spoil) wrote, if it is still there.
    pub fn spoiled(&self, name: &LockName) -> Option<Arc<str>> {
        self.shared.lock().table.spoiled(name)
    }

    /// Removes whatever is stored for `name`.
    pub fn mend(&self, name: &LockName) {
        self.shared.run(None, |state, effects| {
            state.table.force_release(name, effects);
        });
    }
}

/// What survives a [crash](Memory::crash).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survives {
    /// Only connections break.
    Memory,
    /// What is on a disk, if anything: see [`super::Config::strength`]. Otherwise the store starts empty, its
    /// tokens from the beginning.
    Nothing,
}

/// What a store keeps, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// Names that are held or waited for.
    pub names: usize,
    /// Queued requests.
    pub queued: usize,
    /// Tombstones of abandoned requests.
    pub tombstones: usize,
    /// Queued requests that receive pushes.
    pub listeners: usize,
    /// Watch streams.
    pub watchers: usize,
}
