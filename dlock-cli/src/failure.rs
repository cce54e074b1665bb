//! How this program fails, and by which exit code.

use std::error::Error as _;
use std::fmt;

use dlock::ErrorKind;

/// The exit codes of `dlock` itself, apart from those that commands have. They follow `timeout` and `env`
/// where those have one.
pub(crate) mod code {
    /// The lock was lost while the command ran, and the command was ended.
    pub(crate) const LOST: u8 = 120;
    /// The store cannot be reached, or what became of a request is not known.
    pub(crate) const STORE: u8 = 121;
    /// The store refuses: it lacks the capability, the user lacks a right, a limit is reached, or it holds
    /// what dlock did not write.
    pub(crate) const REFUSED: u8 = 122;
    /// `dlock doctor` has found a problem.
    pub(crate) const UNFIT: u8 = 123;
    /// Somebody else has the lock, and had it for as long as was waited.
    pub(crate) const NOT_ACQUIRED: u8 = 124;
    /// The command line, the configuration or a name is wrong.
    pub(crate) const USAGE: u8 = 125;
    /// The command was found and cannot be started.
    pub(crate) const NOT_STARTED: u8 = 126;
    /// The command was not found.
    pub(crate) const NOT_FOUND: u8 = 127;
}

/// Why this program ends, in a sentence without a secret.
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
            // Drivers repeat what is behind them.
            if !message.contains(&said) {
                message += &format!(": {said}");
            }
            cause = e.source();
        }
        Self { code, message }
    }
}
