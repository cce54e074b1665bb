//! What PostgreSQL's errors mean to a caller.

use dlock_core::ErrorKind;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::session::failure::Failed;

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

/// The typed error for a statement that failed, and whether the connection is still of use.
pub(super) fn failed(e: sqlx::Error, at: &str) -> Failed {
    let meaning = postgres(&e).map(|told| {
        let is_over = matches!(told.severity(), PgSeverity::Fatal | PgSeverity::Panic);
        (
            kind(told.code()),
            what(told.code()),
            is_over || is_end(told.code()),
        )
    });
    Failed::of(e, "PostgreSQL", at, meaning)
}

/// Whether the session is over with it, or is not ours alone.
fn is_end(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02" | "57P03" | "57P05" | "26000" | "42P05")
}

fn kind(code: &str) -> ErrorKind {
    match code {
        "26000" | "42P05" | "08P01" | "42704" => ErrorKind::Unsupported,
        "53200" | "53300" | "2200H" => ErrorKind::LimitReached,
        "3D000" | "3F000" => ErrorKind::InvalidInput,
        "42P01" | "42809" => ErrorKind::BackendData,
        "42501" => ErrorKind::PermissionDenied,
        _ if code.starts_with("28") => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    }
}

/// What the server does, and what helps.
fn what(code: &str) -> &'static str {
    match code {
        // pg_terminate_backend, and a server that is stopped in order, look the same.
        "57P01" => "has ended the session: it is being stopped, or an operator has ended it",
        "57P05" => "has ended the session: nothing was heard of this client for a ttl",
        TURN_OVER => "keeps the sequence of the tokens locked; look for who changes it",
        // A name that was prepared on another session.
        "26000" | "42P05" | "08P01" => {
            "is reached through a pooler that shares sessions or takes no settings, which breaks locks that \
             hang on them; connect to the server itself, or use the lease strategy"
        }
        "53200" => "has no room for another lock; raise `max_locks_per_transaction`, or hold fewer",
        "53300" => "has no connection left; raise `max_connections`",
        "2200H" => "has used up the sequence of the tokens",
        "25006" => "is read-only: a standby, or set so; take locks from the primary",
        "3D000" => "does not have this database; mend the address",
        "3F000" => "does not have this schema; make it, or mend the option",
        "42704" => "is too old: `idle_session_timeout` came with version 14",
        "42501" => {
            "does not let this user do what a lock needs: USAGE on the sequence of the tokens, or CREATE on \
             its schema"
        }
        "42P01" | "42809" => "does not have the sequence of the tokens; was it removed?",
        _ if code.starts_with("28") => "refuses this user or password",
        _ if code.starts_with("08") => "has closed the connection",
        _ => "did not do what it was asked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_session_is_told_from_what_does_not() {
        assert!(is_end("57P05") && is_end("08006") && !is_end(CANCELED) && !is_end("53200"));
        assert_eq!(kind("28P01"), ErrorKind::PermissionDenied);
        assert_eq!(kind("53200"), ErrorKind::LimitReached);
        let cut = std::io::Error::other("reset").into();
        for e in [cut, sqlx::Error::Protocol("unexpected response: 0x00".to_owned())] {
            let failed = failed(e, "h");
            assert!(failed.fatal && failed.error.kind() == ErrorKind::Unavailable);
        }
    }
}
