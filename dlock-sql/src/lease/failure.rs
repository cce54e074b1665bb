//! What an error of the driver or the server means to a caller. `at` says which database it is.

use dlock_core::{Error, ErrorKind};

use crate::direct::Failure;
use crate::failure::meaning;
pub(in crate::lease) use crate::failure::{foreign, invalid, known_version, runtime_ended};

/// Nothing more can be asked on that connection, or it goes on with what was set when it was made and does
/// not suit: it leads to a pooler, or to a server that logs statements.
pub(in crate::lease) fn is_fatal(e: &sqlx::Error) -> bool {
    let told = meaning(e);
    told.is_over || told.kind == ErrorKind::Unsupported
}

/// The typed error for what has changed nothing: it was refused, it only read, it was rolled back, or it was
/// never sent.
pub(in crate::lease) fn nothing_done(e: sqlx::Error, at: &str) -> Error {
    let mut told = meaning(&e);
    // No lease depends on a connection: one may become free, so a retry is worth while.
    if told.failure == Failure::NoConnection {
        told.kind = ErrorKind::Unavailable;
    }
    told.error(at, e)
}

/// The typed error for a statement that was sent and commits by itself, or for a commit. If its connection
/// ended before it was answered, whatever by, the commit may have come first. All else that a server refuses
/// has been rolled back.
pub(in crate::lease) fn perhaps_done(e: sqlx::Error, at: &str) -> Error {
    if !meaning(&e).may_be_done() {
        return nothing_done(e, at);
    }
    let text = format!("the connection to {at} was lost before the answer came");
    Error::new(ErrorKind::Unknown, text).with_source(e)
}

/// The runtime has ended with a request on its way.
pub(in crate::lease) fn ended_meanwhile() -> Error {
    let text = "the runtime ended while a request to the database was in flight";
    Error::new(ErrorKind::Unknown, text).with_source(runtime_ended())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sent_statement_that_ends_in_an_unknown_error_is_unknown() {
        let e = || sqlx::Error::Decode("the stream is out of step".into());
        assert_eq!(perhaps_done(e(), "at").kind(), ErrorKind::Unknown);
        assert_eq!(nothing_done(e(), "at").kind(), ErrorKind::Unavailable);
        let none = perhaps_done(sqlx::Error::PoolTimedOut, "at");
        assert_eq!(none.kind(), ErrorKind::Unavailable);
    }
}
