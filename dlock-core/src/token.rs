//! Fencing tokens.

use std::fmt;
use std::num::NonZeroU64;

/// A fencing token: a number that grows from grant to grant of one name. A resource that remembers the
/// largest token it has seen can refuse a holder that does not know yet that its lease has ended.
///
/// Tokens of exclusive grants strictly increase. The token of a shared grant is not below that of the last
/// exclusive grant, and is below that of the next. The backend's [`Strength`] says what this order survives.
/// A token is never zero. [`Gate`](crate::Gate) is a resource that checks tokens.
///
/// *"How to do distributed locking", M. Kleppmann, 2016; the sequencers of Chubby, M. Burrows, OSDI 2006.*
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let lock = client.lock("report")?;
/// let first = lock.acquire().await?;
/// let older = first.token().expect("this backend fences");
/// first.release().await?;
/// let newer = lock.acquire().await?.token().expect("this backend fences");
/// assert!(older < newer);
/// let sql = format!("UPDATE report SET fence = {newer} WHERE fence <= {newer}");
/// # let _ = sql;
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The smallest token.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// Creates the token of this value. `None` for zero, which is no token.
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// Returns the number, for storing it beside the data that it guards. Store it in a 64-bit integer: a
    /// double loses the last bits beyond 2^53.
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

/// What the order of a backend's tokens survives. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Strength {
    /// Tokens increase while the store keeps its state: across release, expiry and the deletion of a name's
    /// record.
    WhileStateSurvives,
    /// They also increase across a restart of the store.
    AcrossRestart,
    /// They also increase across a loss of the store's data, by a flush or by the promotion of an unsynced
    /// replica, if the new clock is behind the last token's clock by no more than `clock_skew`.
    AcrossDataLoss {
        /// How far the clock of the node that takes over may be behind.
        clock_skew: std::time::Duration,
    },
}
