//! What PostgreSQL's errors mean to a caller.

use dlock_core::{Error, ErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::session::failure::{Failed, of_driver};

/// `query_canceled`: somebody has asked for the end of the statement.
const CANCELED: &str = "57014";
/// `lock_not_available`: the turn is over.
const TURN_OVER: &str = "55P03";

/// Whether a wait has ended without the lock, and nothing is wrong. The session may have the lock all the
/// same.
pub(super) fn is_not_yet(e: &sqlx::Error) -> bool {
    code(e).is_some_and(|code| code == CANCELED || code == TURN_OVER)
}

pub(super) fn code(e: &sqlx::Error) -> Option<&str> {
    Some(postgres(e)?.code())
}

fn postgres(e: &sqlx::Error) -> Option<&PgDatabaseError> {
    e.as_database_error()?.try_downcast_ref::<PgDatabaseError>()
}

/// The typed error for a statement that failed, and whether the connection is of use yet.
pub(super) fn failed(e: sqlx::Error, at: &str) -> Failed {
    let (kind, what, fatal) = match postgres(&e) {
        Some(told) => {
            let (kind, what) = of_code(told.code());
            let is_over = matches!(told.severity(), PgSeverity::Fatal | PgSeverity::Panic);
            (kind, what.to_owned(), is_over || is_end(told.code()))
        }
        None => of_driver(&e, "PostgreSQL"),
    };
    let error = Error::new(kind, format!("PostgreSQL at {at} {what}")).with_source(e);
    Failed { error, fatal }
}

/// Whether the session is over with it. Also what shows that it is not ours alone.
fn is_end(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "57P05" | "26000" | "42P05")
}

fn of_code(code: &str) -> (ErrorKind, &'static str) {
    match code {
        // pg_terminate_backend, and a server that is stopped in order, look the same.
        "57P01" => (
            ErrorKind::Unavailable,
            "has ended the session: it is being stopped, or an operator has ended this connection",
        ),
        "57P02" => (ErrorKind::Unavailable, "has ended all sessions after a crash"),
        "57P03" => (ErrorKind::Unavailable, "is starting or stopping"),
        "57P05" => (
            ErrorKind::Unavailable,
            "has ended the session for idleness: nothing was heard of this client for a ttl",
        ),
        CANCELED => (
            ErrorKind::Unavailable,
            "was told by somebody to cancel the statement",
        ),
        TURN_OVER => (
            ErrorKind::Unavailable,
            "keeps the sequence of the tokens locked; look for somebody who changes it",
        ),
        // A name that was prepared on another session.
        "26000" | "42P05" | "08P01" => (
            ErrorKind::Unsupported,
            "is reached through a pooler that shares sessions or takes no settings, which breaks locks \
             that hang on them; connect to the server itself, or \
             use the lease strategy",
        ),
        "53200" => (
            ErrorKind::LimitReached,
            "has no room for another lock; raise `max_locks_per_transaction`, or hold fewer",
        ),
        "53300" => (
            ErrorKind::LimitReached,
            "has no connection left; raise `max_connections`",
        ),
        "2200H" => (ErrorKind::LimitReached, "has used up the sequence of the tokens"),
        "53100" => (ErrorKind::Unavailable, "is on a full disk; free some space"),
        "25006" => (
            ErrorKind::Unavailable,
            "is read-only: a standby, or set so; locks are to be had from the primary",
        ),
        "3D000" => (
            ErrorKind::InvalidInput,
            "does not have this database; mend the address",
        ),
        "42704" => (
            ErrorKind::Unsupported,
            "is too old: it does not know `idle_session_timeout`, which version 14 brought",
        ),
        "42501" => (
            ErrorKind::PermissionDenied,
            "does not let this user do what a lock needs: USAGE on the sequence of the tokens, or CREATE \
             on its schema",
        ),
        "3F000" => (
            ErrorKind::InvalidInput,
            "does not have this schema; make it, or mend the option",
        ),
        "42P01" | "42809" => (
            ErrorKind::BackendData,
            "does not have the sequence that dlock made; has something removed it?",
        ),
        "40001" | "40P01" => (
            ErrorKind::Unavailable,
            "ended the statement for a conflict with others",
        ),
        _ if code.starts_with("28") => (ErrorKind::PermissionDenied, "refuses this user or password"),
        _ if code.starts_with("08") => (ErrorKind::Unavailable, "has closed the connection"),
        _ => (ErrorKind::Unavailable, "did not do what it was asked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_session_is_told_from_what_does_not() {
        assert!(is_end("57P05") && is_end("08006") && !is_end(CANCELED) && !is_end("53200"));
        assert_eq!(of_code("28P01").0, ErrorKind::PermissionDenied);
        assert_eq!(of_code("53200").0, ErrorKind::LimitReached);
        let cut = failed(std::io::Error::other("reset").into(), "h");
        assert!(cut.fatal && cut.error.kind() == ErrorKind::Unavailable);
        let mute = failed(sqlx::Error::Protocol("unexpected response: 0x00".to_owned()), "h");
        assert!(mute.fatal && mute.error.kind() == ErrorKind::Unavailable);
    }
}
