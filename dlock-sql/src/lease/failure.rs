//! What an error of the driver or the server means to a caller.

use dlock_core::{Error, ErrorKind};

pub(in crate::lease) use crate::keys::{foreign, known_version};
pub(in crate::lease) use crate::requests::invalid;

/// What the errors of the server mean.
pub(in crate::lease) trait Failures: Send + Sync + Sized + 'static {
    /// What the server is called in messages.
    const NAME: &'static str;

    /// Nothing more can be asked on that connection.
    fn is_fatal(e: &sqlx::Error) -> bool;

    /// It is not known what became of a change that failed so. (Any other failure has rolled it back.)
    fn is_unknown(e: &sqlx::Error) -> bool;

    /// What an error says that the server has answered.
    fn meaning(e: &sqlx::Error) -> Option<(ErrorKind, &'static str)>;
}

/// The typed error for what has changed nothing: it was refused, it only read, it was rolled back, or it was
/// never sent.
pub(in crate::lease) fn nothing_done<D: Failures>(e: sqlx::Error, at: &str) -> Error {
    let (kind, what) = D::meaning(&e).unwrap_or((
        ErrorKind::Unavailable,
        "cannot be reached or does not answer; check the address, the network and the server",
    ));
    Error::new(kind, format!("the {} database {at} {what}", D::NAME)).with_source(e)
}

/// The typed error for a statement that was sent and commits by itself, or for a commit.
pub(in crate::lease) fn perhaps_done<D: Failures>(e: sqlx::Error, at: &str) -> Error {
    if !D::is_unknown(&e) {
        return nothing_done::<D>(e, at);
    }
    let text = format!(
        "the connection to the {} database {at} was lost before the answer came",
        D::NAME
    );
    Error::new(ErrorKind::Unknown, text).with_source(e)
}

pub(in crate::lease) fn runtime_ended<D: Failures>() -> Error {
    let text = format!(
        "the runtime that speaks to {} has ended; use one that lives as long as the client",
        D::NAME
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// The same, with a request on its way.
pub(in crate::lease) fn ended_meanwhile<D: Failures>() -> Error {
    let text = "a request to the database was on its way when its runtime ended";
    Error::new(ErrorKind::Unknown, text).with_source(runtime_ended::<D>())
}
