//! In which mode a name is held.

use std::fmt;
use std::num::NonZeroU32;

use crate::error::{Error, ErrorKind};

/// The mode in which a name is asked for or held.
///
/// One admission rule serves lock, read-write lock and semaphore. While anybody holds a name in a shared
/// mode, or waits for it, that mode is its *class* (readers, or permits of n); shared modes of another class,
/// or of another n, are refused as `InvalidInput` before they queue. `Exclusive` combines with every class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody else holds the name in any mode.
    Exclusive,
    /// Held together with other shared holders of the same class.
    Shared {
        /// `None`: a reader, any number at once. `Some(n)`: one of n permits.
        limit: Option<NonZeroU32>,
    },
}

impl Mode {
    /// One of any number of readers.
    pub const READER: Self = Self::Shared { limit: None };

    /// One of `n` permits.
    pub const fn permit(n: NonZeroU32) -> Self {
        Self::Shared { limit: Some(n) }
    }

    /// Whether this is [`Mode::Exclusive`].
    pub const fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive)
    }

    /// For a backend: the error of a request in a mode of another class, where this one is in use.
    #[must_use]
    pub fn mismatch(self, asked: Self) -> Error {
        let show = |mode| match mode {
            Self::Exclusive => "one holder".to_owned(),
            Self::Shared { limit: None } => "readers".to_owned(),
            Self::Shared { limit: Some(n) } => format!("{n} permits"),
        };
        let (is, asked) = (show(self), show(asked));
        let text = format!("the lock is in use with {is}, not with {asked}; all users of a name must agree");
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

/// The class of locks that readers and a writer hold: their guards can be converted.
#[derive(Clone, Copy, Debug)]
pub enum ReadWrite {}

/// The class of semaphores: a permit is a permit until it is released.
#[derive(Clone, Copy, Debug)]
pub enum Permits {}
