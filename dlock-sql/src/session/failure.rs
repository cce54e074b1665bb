//! Requests that failed: what the caller is told, and whether the connection is still of use.

use dlock_core::{Error, ErrorKind, Result, Token};

pub(super) type Answer<T> = Result<T, Failed>;

/// A request that was not done, or of which that is not known.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) error: Error,
    /// The connection is of no use any more.
    pub(super) fatal: bool,
}

/// What an error of a server means: its kind, what the server does, and whether the connection is lost.
pub(super) type Meaning = (ErrorKind, &'static str, bool);

impl Failed {
    pub(super) fn fatal(kind: ErrorKind, message: impl Into<String>) -> Self {
        let error = Error::new(kind, message.into());
        Self { error, fatal: true }
    }

    /// The error of a statement. `meaning` is that of the server's own error, where it is one.
    pub(super) fn of(e: sqlx::Error, server: &str, at: &str, meaning: Option<Meaning>) -> Self {
        let (kind, what, fatal) = meaning.unwrap_or_else(|| of_driver(&e));
        let error = Error::new(kind, format!("{server} at {at} {what}")).with_source(e);
        Self { error, fatal }
    }

    pub(super) fn into_fatal(self) -> Self {
        Self { fatal: true, ..self }
    }
}

fn of_driver(e: &sqlx::Error) -> Meaning {
    use sqlx::Error;
    let kind = match e {
        Error::Configuration(_) | Error::InvalidArgument(_) => ErrorKind::InvalidInput,
        Error::ColumnDecode { .. } | Error::RowNotFound => ErrorKind::BackendData,
        _ => ErrorKind::Unavailable,
    };
    let what = match e {
        Error::Configuration(_) | Error::InvalidArgument(_) => "cannot be connected to with these options",
        Error::ColumnDecode { .. } | Error::RowNotFound => "answered what is no answer",
        Error::Tls(_) => "cannot be reached by TLS; check the certificates",
        // Said of a connection that was idle.
        Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => {
            "has ended the session: it was stopped, or somebody has ended this connection"
        }
        // A proxy without a server, as during a fail-over, may send nothing, which is this error.
        Error::Protocol(_) => {
            "does not answer as such a server does; is there a proxy without a server, something else, or a \
             login method that the driver does not have?"
        }
        _ => "cannot be reached",
    };
    // A value that cannot be decoded was read to its end. All other errors leave the stream out of step.
    (kind, what, kind != ErrorKind::BackendData)
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, message.into())
}

pub(super) fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message.into())
}

pub(super) fn unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, message.into())
}

/// The connection has ended.
pub(super) fn ended() -> Error {
    unavailable("the connection to the database was closed")
}

/// The runtime has dropped the task that was to do it.
pub(super) fn shut_down() -> Error {
    unavailable("the runtime that was given has been shut down")
}

/// The token that was drawn. If it is none the lock may be held all the same.
pub(super) fn token(drawn: i64, at: &str) -> Answer<Token> {
    let token = u64::try_from(drawn).ok().and_then(Token::new);
    token.ok_or_else(|| {
        let message = format!("the tokens at {at} gave none; has something changed their sequence or table?");
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
