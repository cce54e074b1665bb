//! Failed requests: the error for the caller, and whether the connection is still usable.

use dlock_core::{Error, ErrorKind, Result, Token};

use crate::failure::meaning;
pub(super) use crate::failure::{invalid, runtime_ended, unavailable, unsupported};

pub(super) type Answer<T> = Result<T, Failed>;

/// A request that was not done, or of which that is not known.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The connection is of no use any more.
    pub(super) fatal: bool,
}

impl Failed {
    pub(super) fn fatal(kind: ErrorKind, message: impl Into<String>) -> Self {
        let error = Error::new(kind, message.into());
        Self { error, fatal: true }
    }

    /// The error of a statement at that server.
    pub(super) fn of(e: sqlx::Error, at: &str) -> Self {
        let told = meaning(&e);
        Self {
            error: told.error(at, e),
            fatal: told.is_over,
        }
    }

    pub(super) fn into_fatal(self) -> Self {
        Self { fatal: true, ..self }
    }
}

/// The connection has ended.
pub(super) fn ended() -> Error {
    unavailable("the connection to the database was closed")
}

/// The token that was drawn. If it is none the lock may be held all the same.
pub(super) fn token(drawn: i64, at: &str) -> Answer<Token> {
    let token = u64::try_from(drawn).ok().and_then(Token::new);
    token.ok_or_else(|| {
        let message = format!("the sequence of tokens of {at} gave none; was it changed by hand?");
        let error = Error::new(ErrorKind::BackendData, message);
        Failed { error, fatal: false }
    })
}

/// The request may have been done before its connection failed.
pub(super) fn perhaps_done(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unavailable => Error::new(
            ErrorKind::Unknown,
            "the connection ended while the request was on its way, and the lock may be held; its session \
             ends with it, at the latest after the ttl",
        )
        .with_source(e),
        _ => e,
    }
}
