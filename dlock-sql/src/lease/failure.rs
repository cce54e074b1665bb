//! What an error of the driver or the server means to a caller.

use std::borrow::Cow;

use dlock_core::{Error, ErrorKind};

use super::dialect::Dialect;

/// The typed error for what has changed nothing: it was refused, it only read, it was rolled back, or it was
/// never sent.
pub(in crate::lease) fn nothing_done<D: Dialect>(e: sqlx::Error, at: &str) -> Error {
    let (kind, what) = D::meaning(&e).unwrap_or((
        ErrorKind::Unavailable,
        "cannot be reached or does not answer; check the address, the network and the server",
    ));
    Error::new(kind, format!("the {} database {at} {what}", D::NAME)).with_source(e)
}

/// The typed error for a statement that was sent and commits by itself, or for a commit.
pub(in crate::lease) fn perhaps_done<D: Dialect>(e: sqlx::Error, at: &str) -> Error {
    if !D::is_unknown(&e) {
        return nothing_done::<D>(e, at);
    }
    let text = format!(
        "the connection to the {} database {at} was lost before the answer came",
        D::NAME
    );
    Error::new(ErrorKind::Unknown, text).with_source(e)
}

pub(in crate::lease) fn runtime_ended<D: Dialect>() -> Error {
    let text = format!(
        "the runtime that speaks to {} has ended; use one that lives as long as the client",
        D::NAME
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// A row or an answer that is none of ours.
pub(in crate::lease) fn foreign(what: &str) -> Error {
    let text = format!("a row of the lock tables was not written by dlock: {what}");
    Error::new(ErrorKind::BackendData, text)
}

pub(in crate::lease) fn foreign_column(_: sqlx::Error) -> Error {
    foreign("a column of another type")
}

pub(in crate::lease) fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

pub(in crate::lease) fn newer_version(tables: &str, at: &str, version: usize, known: usize) -> Error {
    let text = format!(
        "the lock tables {tables} in {at} have schema version {version}, this program knows up to {known}: a \
            newer dlock has used the database; update this program"
    );
    Error::new(ErrorKind::Unsupported, text)
}
