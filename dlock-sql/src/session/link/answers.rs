//! What is made of answers, and of there being none.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Result, Runtime};
use futures::future::{Either, select};

use crate::session::wire::{Answer, Failed};

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
            "the connection ended while the request was on its way; its session ends with it, at the latest after the ttl",
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
