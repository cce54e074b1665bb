//! The result of a rule's body.

use std::fmt;

use dlock_core::{Error, ErrorKind};

/// `Ok` if the rule held as far as the body could see.
pub type Verdict<T = ()> = Result<T, Failure>;

/// Why a rule did not simply hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The rule is broken; the text is what was seen.
    Broken(String),
    /// The body could not tell; the text is why.
    Inconclusive(String),
    /// The body could not run here; the text is why.
    NotRun(String),
    /// The kit itself is wrong, or the harness is.
    Kit(String),
}

impl Failure {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            Self::Broken(t) | Self::Inconclusive(t) | Self::NotRun(t) | Self::Kit(t) => t,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// An unexpected error breaks the rule. `Unknown` makes it inconclusive, since a store that is too slow is
/// not wrong. Describe the situation with [`Seen::seen`].
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = format!("{error:?}");
        match error.kind() {
            ErrorKind::Unknown => Self::Inconclusive(text),
            _ => Self::Broken(text),
        }
    }
}

/// Describes the situation in which an operation failed.
pub trait Seen<T> {
    /// Prefixes an error with the situation: "while `doing`: ...".
    ///
    /// # Errors
    /// What the error is as a [`Failure`].
    fn seen(self, doing: impl fmt::Display) -> Verdict<T>;
}

impl<T> Seen<T> for Result<T, Error> {
    fn seen(self, doing: impl fmt::Display) -> Verdict<T> {
        self.map_err(Failure::from).seen(doing)
    }
}

impl<T> Seen<T> for Verdict<T> {
    fn seen(self, doing: impl fmt::Display) -> Verdict<T> {
        self.map_err(|f| match f {
            Failure::Broken(t) => Failure::Broken(format!("{doing}: {t}")),
            Failure::Inconclusive(t) => Failure::Inconclusive(format!("{doing}: {t}")),
            other => other,
        })
    }
}

/// Ends the rule as broken, with what was seen.
#[macro_export]
macro_rules! fail {
    ($($seen:tt)+) => {
        return ::core::result::Result::Err($crate::Failure::Broken(::std::format!($($seen)+)))
    };
}

/// Ends the rule as broken, with what was seen, unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            $crate::fail!($($seen)+);
        }
    };
}

/// Ends the rule as inconclusive, with the reason.
#[macro_export]
macro_rules! inconclusive {
    ($($why:tt)+) => {
        return ::core::result::Result::Err($crate::Failure::Inconclusive(::std::format!($($why)+)))
    };
}
