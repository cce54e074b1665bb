//! What callers are told of what went wrong.

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

/// What whoever asks for a name is told at which something stands that is no lock.
pub(super) fn foreign(name: &LockName) -> Error {
    Error::new(
        ErrorKind::BackendData,
        "what is stored for this lock was not written by dlock; an operator must look",
    )
    .with_name(name)
}
