//! The mode in which a name is held.

use std::fmt;
use std::num::NonZeroU32;

use crate::error::{Error, ErrorKind};

/// The mode in which a name is acquired or held.
///
/// One admission rule serves locks, read-write locks and semaphores. While a name is held or waited for in a
/// shared mode, that mode is its *class*: readers, or permits of n. Requests for shared modes of another
/// class, or of another n, fail with `InvalidInput` before they queue. `Exclusive` combines with every class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody else holds the name in any mode.
    Exclusive,
    /// Others of the same class may hold the name too.
    Shared {
        /// `None` for a reader, of which there may be any number. `Some(n)` for one of n permits.
        limit: Option<NonZeroU32>,
    },
}

impl Mode {
    /// One of any number of readers.
    pub const READER: Self = Self::Shared { limit: None };

    /// Returns the mode of one of `n` permits.
    pub const fn permit(n: NonZeroU32) -> Self {
        Self::Shared { limit: Some(n) }
    }

    /// Returns whether this is [`Mode::Exclusive`].
    pub const fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive)
    }

    /// For backends: creates the error of a request in the mode `asked` while the name is in use in this one.
    #[must_use]
    pub fn mismatch(self, asked: Self) -> Error {
        let show = |mode| match mode {
            Self::Exclusive => "one holder".to_owned(),
            Self::Shared { limit: None } => "readers".to_owned(),
            Self::Shared { limit: Some(n) } => format!("{n} permits"),
        };
        let (is, asked) = (show(self), show(asked));
        let text = format!("the lock is in use with {is}, not with {asked}: all users of a name must agree");
        Error::new(ErrorKind::InvalidInput, text)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared { limit: None } => f.write_str("shared"),
            Self::Shared { limit: Some(n) } => write!(f, "one of {n} permits"),
        }
    }
}

/// Marks the [`Lock`](crate::Lock)s and [`Guard`](crate::Guard)s of readers and writers, which can be
/// converted.
#[derive(Clone, Copy, Debug)]
pub enum ReadWrite {}

/// Marks the handles and guards of semaphores, which cannot be converted.
#[derive(Clone, Copy, Debug)]
pub enum Permits {}
