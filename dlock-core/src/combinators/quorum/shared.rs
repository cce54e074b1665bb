//! The state that the calls of a quorum share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::debts::Debts;
use super::rounds::{Round, Rounds};
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::runtime::Runtime;
use crate::spi::{LeaseKey, Lock};

/// The state that all calls of a quorum share.
pub(super) struct Shared {
    pub(super) members: Vec<Member>,
    pub(super) majority: usize,
    /// Whether grants carry tokens.
    pub(super) fenced: bool,
    pub(super) capabilities: Capabilities,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) patience: Duration,
    /// The random part of the members' keys.
    pub(super) client: u128,
    pub(super) sequence: AtomicU64,
    pub(super) rounds: Mutex<Rounds>,
    /// The number of background tasks that receive answers.
    pub(super) lingering: AtomicUsize,
    pub(super) closed: AtomicBool,
    /// The last handle was dropped; background tasks may still use it.
    pub(super) dropped: AtomicBool,
}

/// One of the independent stores.
pub(super) struct Member {
    pub(super) backend: Arc<dyn Lock>,
    /// It did not answer within the patience, and has not answered since.
    pub(super) silent: AtomicBool,
    pub(super) debts: Debts,
}

impl Shared {
    pub(super) fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a key that no member has seen.
    pub(super) fn fresh_key(&self, name: &LockName) -> LeaseKey {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        LeaseKey::new(name.clone(), RequestId::new(self.client, sequence))
    }

    /// How long members are waited for, for a lease of this ttl.
    pub(super) fn patience_of(&self, ttl: Duration) -> Duration {
        self.patience.min(ttl / 4)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "the quorum is closed")),
            false => Ok(()),
        }
    }

    /// Gives up a round that cannot have a majority any more: undoes the rest of it, in the background.
    pub(super) fn give_back(self: &Arc<Self>, key: &LeaseKey, round: &Arc<Round>) {
        if self.rounds().give_back(key, round) {
            for member in (0..self.members.len()).filter(|member| round.may_be_at(*member)) {
                self.owe(member, round);
            }
        }
    }
}

/// The message that only some members did it, and how many are needed.
pub(super) fn only_some(what: &str, how_many: usize, shared: &Shared) -> String {
    let (of, needed) = (shared.members.len(), shared.majority);
    format!("only {how_many} of {of} members {what}, and a majority is {needed}")
}
