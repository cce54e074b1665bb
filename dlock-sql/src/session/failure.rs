//! Requests that failed: what is told to whom, and whether the connection is of use yet.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::future::{Either, select};

pub(super) type Answer<T> = Result<T, Failed>;

/// A request that was not done, or of which that is not known.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The connection is of no use any more.
    pub(super) fatal: bool,
}

impl Failed {
    pub(super) fn fatal(error: Error) -> Self {
        Self { error, fatal: true }
    }
}

/// What the driver itself says, whichever the server: the kind, what has happened, and whether that is fatal.
pub(super) fn of_driver(e: &sqlx::Error, server: &str) -> (ErrorKind, String, bool) {
    match e {
        sqlx::Error::Configuration(_) | sqlx::Error::InvalidArgument(_) => (
            ErrorKind::InvalidInput,
            "cannot be connected to with these options".to_owned(),
            true,
        ),
        sqlx::Error::Tls(_) => (
            ErrorKind::Unavailable,
            "cannot be reached by TLS; check the certificates".to_owned(),
            true,
        ),
        // A value that cannot be decoded was read to its end. All else leaves the stream nobody knows where.
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::RowNotFound => (
            ErrorKind::BackendData,
            "answered what is no answer".to_owned(),
            false,
        ),
        // A proxy without a server, as during a fail-over, may send nothing, which is this error to the
        // driver.
        sqlx::Error::Protocol(_) => (
            ErrorKind::Unavailable,
            format!(
                "does not answer as {server} does; is there a proxy without a server, something else, or a \
                 way to log in that the driver does not have?"
            ),
            true,
        ),
        _ => (ErrorKind::Unavailable, "cannot be reached".to_owned(), true),
    }
}

/// With a time limit, after which the connection is of no use.
pub(super) async fn limited<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    answer: impl Future<Output = Answer<T>>,
) -> Answer<T> {
    match select(pin!(answer), runtime.sleep(limit)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(no_answer(limit)),
    }
}

pub(super) fn told<T: Copy>(answer: &Answer<T>) -> Result<T> {
    match answer {
        Ok(value) => Ok(*value),
        Err(failed) => Err(failed.error.clone()),
    }
}

pub(super) fn only_fatal<T>(answer: Answer<T>) -> Answer<()> {
    match answer {
        Err(failed) if failed.fatal => Err(failed),
        _ => Ok(()),
    }
}

/// What was sent may have been done.
pub(super) fn perhaps(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unavailable => Error::new(
            ErrorKind::Unknown,
            "the connection ended while the request was on its way; its session ends with it, at the \
             latest after the ttl",
        )
        .with_source(e),
        _ => e,
    }
}

pub(super) fn gone() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection to the database was closed",
    )
}

pub(super) fn no_answer(limit: Duration) -> Failed {
    Failed::fatal(Error::new(
        ErrorKind::Unavailable,
        format!("the database did not answer within {limit:?}; the connection is given up"),
    ))
}

pub(super) fn no_way_to_cancel() -> Failed {
    Failed::fatal(Error::new(
        ErrorKind::Unavailable,
        "a wait was cancelled by closing its connection, since there was no other one to cancel it on",
    ))
}
