//! Fencing tokens.

use std::fmt;
use std::num::NonZeroU64;

/// A fencing token: a number that grows from grant to grant of one name, so that a resource can refuse a
/// holder that does not know yet that its lease has ended.
///
/// Strictly increasing over exclusive grants; a shared grant's token is not below that of the last exclusive
/// grant and is below that of the next. How much it survives is the backend's declared [`Strength`]. Never
/// zero.
///
/// The idea: "How to do distributed locking", M. Kleppmann, 2016; Chubby's sequencers, M. Burrows, OSDI 2006.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The smallest token.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// The token of that value; `None` for zero, which is never a token.
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// The number itself, to be stored beside the data that it guards. Keep it in 64-bit integers: a double
    /// loses its last bits beyond 2^53.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

/// What a backend's tokens survive. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Strength {
    /// Increasing for as long as the store keeps its state: through release, expiry and the deletion of a
    /// name's record.
    WhileStateSurvives,
    /// ... and through a restart of the store.
    AcrossRestart,
    /// ... and through the loss of the store's data (a flush, the promotion of an unsynced replica), as
    /// far as the serving clock is behind the last token's clock by no more than `clock_skew`.
    AcrossDataLoss {
        /// How far the clock of the node that takes over may be behind.
        clock_skew: std::time::Duration,
    },
}
