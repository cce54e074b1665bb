//! What an owner has, and what others see of it.

use std::time::Duration;

use dlock_core::{Drift, LockName, Timestamp, Token};

/// Who holds a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// What the owner is called.
    pub label: String,
    /// How often it has entered and not left.
    pub holds: u32,
    /// The token that it has since it entered first.
    pub token: Token,
    /// For how long it lasts at most, unless it is renewed.
    pub remaining: Duration,
}

/// What came of entering.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Entered {
    /// It is ours, perhaps once more.
    Held(Hold),
    /// Another owner has it.
    Busy(Holder),
}

/// One of the times that an owner holds a name. Give it back to [`Owner::leave`](super::Owner::leave);
/// dropped, it is held until its time is over.
#[derive(Debug)]
#[must_use]
pub struct Hold {
    pub(super) name: LockName,
    pub(super) token: Token,
    pub(super) holds: u32,
    pub(super) deadline: Timestamp,
}

impl Hold {
    /// What is held.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// For the [gate](crate::direct::gate). The same for all holds of one owner that lie in one another.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How often the owner held it when it had entered, this time included: 1 for the outermost.
    pub fn holds(&self) -> u32 {
        self.holds
    }

    /// Whether its time is not over yet, on this machine's clock that counts suspension, less a margin for
    /// its drift. What a renewal has added to *another* hold of the same name is not known here.
    pub fn is_valid(&self) -> bool {
        Timestamp::now() < self.deadline
    }

    /// How long that is so.
    pub fn remaining(&self) -> Duration {
        Timestamp::now().until(self.deadline)
    }
}

/// Until when a client may believe in what it asked for at that time.
pub(super) fn deadline(asked: Timestamp, ttl: Duration) -> Timestamp {
    let believed = ttl.saturating_sub(Drift::DEFAULT.margin(ttl));
    asked + believed
}
