//! What a failed statement means for a lock: the same few kinds for all three databases.

use std::borrow::Cow;
use std::fmt;

use dlock_core::ErrorKind;

use crate::failure::meaning;

/// Why a statement or a transaction failed.
///
/// After any failure **roll back the transaction and begin again**. PostgreSQL rejects all later statements;
/// MySQL does not: a deadlock has ended the transaction already, and later statements would be committed one
/// by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// Two transactions waited for each other, and the server ended this one. Repeat it at once.
    Deadlock,
    /// Another transaction has changed what this one had read (PostgreSQL from `REPEATABLE READ` on, MariaDB
    /// with `innodb_snapshot_isolation`, SQLite in one that read before it wrote); at the commit, too. Repeat
    /// it at once.
    Serialization,
    /// The wait for a lock exceeded its limit (`lock_timeout`, `innodb_lock_wait_timeout`, `busy_timeout`, or
    /// none with `NOWAIT`). Repeat it later.
    LockTimeout,
    /// The server or this transaction is read-only: a replica, perhaps after a failover.
    ReadOnly,
    /// An earlier statement of the transaction failed, and the transaction was not rolled back.
    Aborted,
    /// The connection broke, was ended by an operator, or was idle for too long. Uncommitted changes are
    /// rolled back. **A commit, or a statement outside of a transaction, may or may not have taken effect.**
    ConnectionLost,
    /// There was no connection: the pool is exhausted or closed, or the server accepts none.
    NoConnection,
    /// The statement was cancelled, or exceeded the server's time limit.
    Cancelled,
    /// The disk is full.
    DiskFull,
    /// The user lacks a right.
    Denied,
    /// A table or column is missing, or differs from what was expected.
    Schema,
    /// A row would have violated a constraint of its table, or what is to be created is there already.
    Constraint,
    /// Any other failure; see the cause.
    Other,
}

impl Failure {
    /// Classifies an error of the driver. For your own statements in a transaction that locks, and for its
    /// commit.
    pub fn of(error: &sqlx::Error) -> Self {
        meaning(error).failure
    }

    /// Whether the whole transaction may succeed if it is repeated unchanged. False for
    /// [`ConnectionLost`](Self::ConnectionLost): a commit may have taken effect already.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Deadlock | Self::Serialization | Self::LockTimeout | Self::NoConnection
        )
    }

    /// The kind of error in the rest of the library, for a statement whose transaction was not committed.
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::LockTimeout => ErrorKind::Timeout,
            Self::ReadOnly | Self::Denied => ErrorKind::PermissionDenied,
            Self::Aborted | Self::Constraint => ErrorKind::InvalidInput,
            Self::Schema => ErrorKind::BackendData,
            _ => ErrorKind::Unavailable,
        }
    }
}

/// A clause that goes on from "the database".
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadlock => "ended the transaction to resolve a deadlock; begin it again",
            Self::Serialization => "found a conflict with another transaction; begin this one again",
            Self::LockTimeout => "did not get the lock within its time limit; roll back, and try later",
            Self::ReadOnly => "is read-only; is it a replica?",
            Self::Aborted => "rejects all statements after a failed one; roll back the transaction",
            Self::ConnectionLost => "closed the connection; uncommitted changes are rolled back",
            Self::NoConnection => "has no free connection; is the server up, and the pool large enough?",
            Self::Cancelled => "cancelled the statement, on request or at its time limit",
            Self::DiskFull => "has no space left; free some",
            Self::Denied => "denies this user; check its rights",
            Self::Schema => "does not have that table or column; was it created, and is its name right?",
            Self::Constraint => "rejects what violates a constraint, or is there already",
            Self::Other => "refused a statement",
        })
    }
}

/// The result of direct locking.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, with a sentence and its cause.
#[derive(Clone, Debug)]
pub struct Error {
    failure: Failure,
    error: dlock_core::Error,
}

impl Error {
    /// Of a commit, or of a write that commits by itself: when the connection is lost meanwhile, it may have
    /// taken effect.
    pub(super) fn of_commit(e: sqlx::Error) -> Self {
        let told = meaning(&e);
        if !told.may_be_done() {
            return e.into();
        }
        let text =
            "the connection to the database was lost during the commit; the change may have been stored";
        let error = dlock_core::Error::new(ErrorKind::Unknown, text).with_source(e);
        Self {
            failure: told.failure,
            error,
        }
    }

    /// Not of the database.
    pub(super) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        dlock_core::Error::new(kind, message).into()
    }

    pub(super) fn with_name(self, name: &dlock_core::LockName) -> Self {
        let error = self.error.with_name(name);
        Self { error, ..self }
    }

    /// What has failed, in one word.
    pub fn failure(&self) -> Failure {
        self.failure
    }

    /// What to do about it. `Unknown` if it may have taken effect.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Whether the whole transaction may succeed when it is repeated, with nothing changed.
    pub fn is_retryable(&self) -> bool {
        self.failure.is_retryable()
    }

    /// Whether it may have taken effect nevertheless.
    pub fn may_have_happened(&self) -> bool {
        self.error.kind() == ErrorKind::Unknown
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

/// Of a statement whose transaction is not committed.
impl From<sqlx::Error> for Error {
    fn from(e: sqlx::Error) -> Self {
        let failure = Failure::of(&e);
        let error = dlock_core::Error::new(failure.kind(), format!("the database {failure}")).with_source(e);
        Self { failure, error }
    }
}

impl From<dlock_core::Error> for Error {
    fn from(error: dlock_core::Error) -> Self {
        let failure = Failure::Other;
        Self { failure, error }
    }
}

impl From<Error> for dlock_core::Error {
    fn from(e: Error) -> Self {
        e.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_is_lost_may_have_happened() {
        let e = Error::of_commit(sqlx::Error::WorkerCrashed);
        assert!(e.may_have_happened() && !e.is_retryable());
        assert!(!Error::from(sqlx::Error::WorkerCrashed).may_have_happened());
        let strange = sqlx::Error::Decode("the stream is out of step".into());
        assert!(Error::of_commit(strange).may_have_happened());
    }
}
