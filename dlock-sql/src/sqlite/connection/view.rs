//! What a job sees of the database.

use std::collections::HashMap;

use dlock_core::{Error, LockName, Result, Timestamp};

use crate::admit::{Glance, NameState, Tokens};
use crate::sqlite::ended::Ended;
use crate::sqlite::gate::GateAnswer;
use crate::sqlite::watch::Watchers;

/// What a job sees: the loaded state, and the time at which it is judged.
pub(in crate::sqlite) struct View<'a> {
    /// Read after the write lock was taken.
    pub(in crate::sqlite) now: Timestamp,
    /// The number of the job that runs. Not of the transaction: what a later job of the same transaction
    /// changes is news to this one.
    pub(in crate::sqlite) turn: u64,
    /// What other connections had stored when it began.
    pub(in crate::sqlite) version: i64,
    pub(super) names: &'a mut HashMap<LockName, NameState>,
    pub(super) spoiled: &'a HashMap<LockName, Error>,
    pub(super) glances: &'a HashMap<LockName, Result<Glance>>,
    pub(super) touched: &'a mut HashMap<LockName, u64>,
    pub(super) tokens: &'a mut Tokens,
    /// What the fence gate has answered to the job that runs.
    pub(in crate::sqlite) gate: Option<Result<GateAnswer>>,
    pub(in crate::sqlite) ended: &'a mut Ended,
    pub(in crate::sqlite) watchers: &'a mut Watchers,
}

impl View<'_> {
    /// The state of a name, settled, to be changed.
    ///
    /// # Errors
    /// `BackendData` if its rows cannot be read.
    pub(in crate::sqlite) fn change(
        &mut self,
        name: &LockName,
    ) -> Result<(&mut NameState, Timestamp, &mut Tokens)> {
        self.refuse_spoiled(name)?;
        match self.touched.get_mut(name) {
            Some(turn) => *turn = self.turn,
            None => drop(self.touched.insert(name.clone(), self.turn)),
        }
        let state = self.names.entry(name.clone()).or_default();
        state.settle(self.now, self.tokens);
        Ok((state, self.now, self.tokens))
    }

    /// The state of a name as it is stored, to be looked at.
    ///
    /// # Errors
    /// `BackendData` if its rows cannot be read.
    pub(in crate::sqlite) fn look(&mut self, name: &LockName) -> Result<(&NameState, &mut Watchers)> {
        self.refuse_spoiled(name)?;
        Ok((self.names.entry(name.clone()).or_default(), self.watchers))
    }

    /// Who holds a name.
    ///
    /// # Errors
    /// `BackendData` if that cannot be read.
    pub(in crate::sqlite) fn glance(&self, name: &LockName) -> Result<Glance> {
        match (self.names.get(name), self.glances.get(name)) {
            (Some(state), _) => Ok(state.glance()),
            (None, Some(glance)) => glance.clone(),
            (None, None) => self.refuse_spoiled(name).map(|()| Glance::default()),
        }
    }

    fn refuse_spoiled(&self, name: &LockName) -> Result<()> {
        self.spoiled.get(name).map_or(Ok(()), |e| Err(e.clone()))
    }
}
