//! What an error of the driver or the server means to a caller.

use dlock_core::{Error, ErrorKind};

use crate::direct::Failure;
pub(in crate::lease) use crate::requests::invalid;

/// What the errors of the server mean.
pub(in crate::lease) trait Failures: Send + Sync + Sized + 'static {
    /// What the server is called in messages.
    const NAME: &'static str;

    /// Nothing more can be asked on that connection.
    fn is_fatal(e: &sqlx::Error) -> bool;

    /// It is not known what became of a change that failed so. (Any other failure has rolled it back.)
    fn is_unknown(e: &sqlx::Error) -> bool;

    /// What an error says that the server has answered, where it means more here than [`Failure`] tells.
    fn meaning(e: &sqlx::Error) -> Option<Meaning>;
}

/// What goes on from "the database".
pub(in crate::lease) type Meaning = (ErrorKind, &'static str);

pub(in crate::lease) fn meaning(failure: Failure) -> Meaning {
    use ErrorKind::{BackendData, PermissionDenied, Unavailable};
    match failure {
        // It was rolled back to end the conflict: asked again it may pass.
        Failure::Deadlock | Failure::Serialization => (
            Unavailable,
            "rolled the change back since it was in conflict with another; try again",
        ),
        Failure::LockTimeout => (
            Unavailable,
            "has the name's row locked for too long; look for a transaction that does not end",
        ),
        Failure::Cancelled => (
            Unavailable,
            "was told by somebody to end the statement, or lets none take so long; try again, or raise \
             its time limit",
        ),
        Failure::ReadOnly => (
            Unavailable,
            "is read-only; is it a replica or a standby, or set to take no writes?",
        ),
        Failure::DiskFull => (Unavailable, "is on a full disk; free some space"),
        Failure::NoConnection => (
            Unavailable,
            "takes no more connections; does it start or stop, or is `max_connections` too low?",
        ),
        Failure::Denied => (
            PermissionDenied,
            "refuses this user; check the name and the password (PostgreSQL: and pg_hba.conf), and grant \
             the rights that docs/sql.md lists",
        ),
        Failure::Schema | Failure::Constraint => (
            BackendData,
            "does not have the tables that this dlock made; has something changed them, or a newer dlock?",
        ),
        _ => (Unavailable, "failed"),
    }
}

/// The typed error for what has changed nothing: refused, only read, rolled back, or never sent.
pub(in crate::lease) fn nothing_done<D: Failures>(e: sqlx::Error, at: &str) -> Error {
    let (kind, what) = match e {
        sqlx::Error::Database(_) => D::meaning(&e).unwrap_or_else(|| meaning(Failure::of(&e))),
        _ => (
            ErrorKind::Unavailable,
            "cannot be reached or does not answer; check the address, the network and the server",
        ),
    };
    Error::new(kind, format!("the {} database {at} {what}", D::NAME)).with_source(e)
}

/// Whether it was of a connection that broke.
pub(in crate::lease) fn is_broken<D: Failures>(e: &Error) -> bool {
    let cause = std::error::Error::source(e).and_then(|cause| cause.downcast_ref());
    cause.is_some_and(D::is_fatal)
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

/// A row or an answer that is none of ours.
pub(in crate::lease) fn foreign(what: &str) -> Error {
    let text = format!("a row of the lock tables was not written by dlock: {what}");
    Error::new(ErrorKind::BackendData, text)
}
