//! What a job sees of the database: all that is loaded, and the time at which it is judged.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, Tombstones};
use dlock_core::{LockName, Result, Timestamp};

use super::watchers::Watchers;
use crate::admit::{NameState, Tokens};

pub(in crate::sqlite) struct View {
    /// Read after the write lock was taken.
    pub(in crate::sqlite) now: Timestamp,
    /// The number of the job that runs. Not of the transaction: what a later job of the same transaction
    /// changes is news to this one.
    pub(in crate::sqlite) turn: u64,
    /// What other connections had stored when the transaction began; `None` if nothing loaded is trusted.
    pub(in crate::sqlite) version: Option<i64>,
    /// Of a name with rows that cannot be read, why: it alone is out of order.
    pub(in crate::sqlite) names: HashMap<LockName, Result<NameState>>,
    /// The names that the transaction may have changed, and which job was the last to do so.
    pub(super) touched: HashMap<LockName, u64>,
    pub(super) tokens: Option<Tokens>,
    pub(in crate::sqlite) ended: Ended,
    pub(in crate::sqlite) watchers: Watchers,
}

impl Default for View {
    fn default() -> Self {
        Self {
            now: Timestamp::ZERO,
            turn: 0,
            version: None,
            names: HashMap::new(),
            touched: HashMap::new(),
            tokens: None,
            ended: Ended::default(),
            watchers: Watchers::default(),
        }
    }
}

impl View {
    /// Nothing loaded is trusted any more.
    pub(super) fn forget(&mut self) {
        self.names.clear();
        self.ended.running.clear();
        self.touched.clear();
        self.tokens = None;
        self.version = None;
    }

    /// Takes in what was loaded; those who watch are told what somebody else has changed.
    pub(super) fn take_in(&mut self, loaded: HashMap<LockName, Result<NameState>>) {
        let now = Timestamp::now();
        for (name, state) in &loaded {
            if let Ok(state) = state {
                self.watchers.compare(name, state, now);
            }
        }
        self.names.extend(loaded);
    }

    /// The state of a name, settled, to be changed.
    ///
    /// # Errors
    /// `BackendData` if its rows cannot be read.
    pub(in crate::sqlite) fn change(
        &mut self,
        name: &LockName,
    ) -> Result<(&mut NameState, Timestamp, &mut Tokens)> {
        let state = self
            .names
            .entry(name.clone())
            .or_insert_with(|| Ok(NameState::default()));
        let state = state.as_mut().map_err(|e| e.clone())?;
        match self.touched.get_mut(name) {
            Some(turn) => *turn = self.turn,
            None => drop(self.touched.insert(name.clone(), self.turn)),
        }
        let tokens = self.tokens.get_or_insert_default();
        state.settle(self.now, tokens);
        Ok((state, self.now, tokens))
    }

    /// The state of a name as it is stored, to be looked at.
    ///
    /// # Errors
    /// `BackendData` if its rows cannot be read.
    pub(in crate::sqlite) fn look(&mut self, name: &LockName) -> Result<(&NameState, &mut Watchers)> {
        let state = self
            .names
            .entry(name.clone())
            .or_insert_with(|| Ok(NameState::default()));
        Ok((state.as_ref().map_err(|e| e.clone())?, &mut self.watchers))
    }
}

/// The keys that were abandoned, and those that were released. In memory: whatever could still arrive under a
/// key comes through the channel of this very task, and dies with it. What is forgotten of the latter costs
/// an exact answer to a very late retry, and no safety.
pub(in crate::sqlite) struct Ended {
    pub(in crate::sqlite) abandoned: Tombstones<LeaseKey>,
    released: Tombstones<LeaseKey>,
    /// Released in the transaction that is running: a release whose commit fails has not happened, and its
    /// lease is there to be asked for and released again.
    pub(in crate::sqlite) running: Vec<LeaseKey>,
}

impl Default for Ended {
    fn default() -> Self {
        Self {
            // A request can be late only inside this process, where it overtakes nothing: a minute is ample.
            abandoned: Tombstones::new(Duration::from_secs(60), 100_000),
            released: Tombstones::new(Duration::from_secs(60 * 60), 1024),
            running: Vec::new(),
        }
    }
}

impl Ended {
    pub(in crate::sqlite) fn was_released(&self, key: &LeaseKey) -> bool {
        self.released.has(key) || self.running.contains(key)
    }

    /// The running transaction has committed.
    pub(super) fn committed(&mut self, now: Timestamp) {
        for key in self.running.drain(..) {
            self.released.bury(key, now);
        }
    }
}
