//! Failures of this program and their exit codes.

use std::error::Error as _;
use std::fmt;

use dlock::ErrorKind;

/// The exit codes of `dlock` itself, which commands rarely use. They follow `timeout` and `env` where those
/// have one.
pub(crate) mod code {
    /// The lock was lost while the command ran, and the command was ended.
    pub(crate) const LOST: u8 = 120;
    /// The store cannot be reached, or the outcome of a request is not known.
    pub(crate) const STORE: u8 = 121;
    /// The store refused: it lacks the capability, the user lacks a right, a limit is reached, or it has
    /// foreign data.
    pub(crate) const REFUSED: u8 = 122;
    /// `dlock doctor` found a problem.
    pub(crate) const UNFIT: u8 = 123;
    /// Somebody else holds the lock, or it was not free within the wait limit.
    pub(crate) const NOT_ACQUIRED: u8 = 124;
    /// The command line, the configuration or a name is wrong.
    pub(crate) const USAGE: u8 = 125;
    /// The command was found but cannot be started.
    pub(crate) const NOT_STARTED: u8 = 126;
    /// The command was not found.
    pub(crate) const NOT_FOUND: u8 = 127;
}

/// A failure that ends this program, with a message that contains no secret.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(code::USAGE, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<dlock::Error> for Failure {
    fn from(e: dlock::Error) -> Self {
        let code = match e.kind() {
            ErrorKind::Timeout => code::NOT_ACQUIRED,
            ErrorKind::Lost => code::LOST,
            ErrorKind::InvalidInput => code::USAGE,
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed => code::STORE,
            _ => code::REFUSED,
        };
        let mut message = e.to_string();
        let mut cause = e.source();
        while let Some(e) = cause {
            let said = e.to_string();
            // Some drivers repeat their cause.
            if !message.contains(&said) {
                message += &format!(": {said}");
            }
            cause = e.source();
        }
        Self { code, message }
    }
}
