//! What an operator, or a test in the place of one, does to a store from outside.

use std::sync::Arc;

use super::store::{Memory, Survives};
use crate::name::LockName;

impl Memory {
    /// How often the store was started: 1, and one more for each [crash](Self::crash) or
    /// [fail-over](Self::fail_over).
    pub fn starts(&self) -> u64 {
        self.shared.lock().epoch + 1
    }

    /// Another server takes over, with the whole state: a store of which each answer waits for the replica.
    /// To clients it is a [crash](Self::crash) that the memory survives.
    pub fn fail_over(&self) {
        self.shared.lock().term += 1;
        self.crash(Survives::Memory);
    }

    /// Which server it is: 0, and one more for each [fail-over](Self::fail_over).
    pub fn term(&self) -> u64 {
        self.shared.lock().term
    }

    /// The last token that was granted; 0 before the first.
    pub fn last_token(&self) -> u64 {
        self.shared.lock().table.last_token()
    }

    /// From now on tokens are larger than that, as if as many had been granted. Up to 2^63 - 1; never lower
    /// than before.
    pub fn skip_tokens(&self, to: u64) {
        self.shared.lock().table.skip_tokens(to);
    }

    /// Puts something at that name that is no lock, as another program would that uses the same store. Until
    /// it is [mended](Self::mend), whoever asks for the name is told `BackendData`; whoever held it has lost
    /// it.
    pub fn spoil(&self, name: &LockName, with: &str) {
        self.shared.run(None, |state, effects| {
            state.table.spoil(name, with, effects);
        });
    }

    /// What was put there by [`spoil`](Self::spoil), if it still stands there.
    pub fn spoiled(&self, name: &LockName) -> Option<Arc<str>> {
        self.shared.lock().table.spoiled(name)
    }

    /// Removes whatever stands at that name.
    pub fn mend(&self, name: &LockName) {
        self.shared.run(None, |state, effects| {
            state.table.force_release(name, effects);
        });
    }
}
