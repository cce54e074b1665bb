//! What the calls of a quorum share.

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

/// What all calls of a quorum share.
pub(super) struct Shared {
    pub(super) members: Vec<Member>,
    pub(super) majority: usize,
    /// Whether grants carry tokens.
    pub(super) fenced: bool,
    pub(super) capabilities: Capabilities,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) patience: Duration,
    /// The random part of the keys that the members know.
    pub(super) client: u128,
    pub(super) sequence: AtomicU64,
    pub(super) rounds: Mutex<Rounds>,
    /// How many calls are heard out in the background.
    pub(super) lingering: AtomicUsize,
    pub(super) closed: AtomicBool,
    /// Nobody uses it any more; tasks in the background may.
    pub(super) dropped: AtomicBool,
}

/// One of the independent stores.
pub(super) struct Member {
    pub(super) backend: Arc<dyn Lock>,
    /// It has not answered within the patience, and not since.
    pub(super) silent: AtomicBool,
    pub(super) debts: Debts,
}

impl Shared {
    pub(super) fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key that no member has seen.
    pub(super) fn fresh_key(&self, name: &LockName) -> LeaseKey {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        LeaseKey::new(name.clone(), RequestId::new(self.client, sequence))
    }

    /// How long members are waited for when it is about a lease of that ttl.
    pub(super) fn patience_of(&self, ttl: Duration) -> Duration {
        self.patience.min(ttl / 4)
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "the quorum is closed")),
            false => Ok(()),
        }
    }

    /// No majority can have it any more: undoes what is left of it, in the background.
    pub(super) fn give_back(self: &Arc<Self>, key: &LeaseKey, round: &Arc<Round>) {
        if self.rounds().give_back(key, round) {
            for member in (0..self.members.len()).filter(|member| round.may_be_at(*member)) {
                self.owe(member, round);
            }
        }
    }
}

/// How many did it, and how many it takes.
pub(super) fn only_some(what: &str, how_many: usize, shared: &Shared) -> String {
    let (of, needed) = (shared.members.len(), shared.majority);
    format!("{how_many} of {of} members {what}, and it takes {needed}")
}
