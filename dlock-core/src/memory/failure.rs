//! The errors of the store.

use crate::error::{Error, ErrorKind};
use crate::name::LockName;

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the connection to the store is closed")
}

pub(super) fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to the store broke")
}

pub(super) fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// The error of requests for a name whose record is not a lock.
pub(super) fn foreign(name: &LockName) -> Error {
    Error::new(
        ErrorKind::BackendData,
        "the record of this lock was not written by dlock: an operator must look at it",
    )
    .with_name(name)
}
