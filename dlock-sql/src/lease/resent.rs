//! A request that was sent twice, the first time without an answer.

use std::future::Future;

use dlock_core::spi::{Abandoned, Attempt};
use dlock_core::{Error, ErrorKind, Result};

/// A copy of a request went unanswered, and the next one was refused, or did nothing: whoever asked takes
/// that as the end of it, and abandons nothing. The first copy may be on its way yet, and would be granted
/// for nobody when it arrives after the name was let go. One that was granted or queued ends with a release
/// or an abandon, which leave the tombstone.
pub(in crate::lease) async fn after_resent(
    asked: Result<Attempt>,
    abandon: impl Future<Output = Result<Abandoned>>,
) -> Result<Attempt> {
    match asked {
        Ok(Attempt::Held(_)) => abandon.await.map_err(stray)?,
        // It has a tombstone, or its outcome is looked after already.
        Err(e) if matches!(e.kind(), ErrorKind::Lost | ErrorKind::Unknown) => return Err(e),
        Err(e) => return Err(stray(e)),
        Ok(asked) => return Ok(asked),
    };
    asked
}

fn stray(e: Error) -> Error {
    let message = "the lock was refused, but an earlier copy of the request may still be on its way and \
        could not be taken back";
    Error::new(ErrorKind::Unknown, message).with_source(e)
}
