//! What the errors of PostgreSQL mean to a caller.

use dlock_core::ErrorKind;

use super::Postgres;
use super::schema::OTHER_ISOLATION;
use crate::lease::failure::Failures;

/// The SQLSTATE of an error that the server has answered.
fn state(e: &sqlx::Error) -> Option<String> {
    Some(e.as_database_error()?.code()?.into_owned())
}

/// A server or an operator ends the session.
fn ends_the_session(state: &str) -> bool {
    state.starts_with("08") || state.starts_with("57P")
}

/// The marks of a pooler that was not told of: there is no such prepared statement, or there is one already.
/// Another connection of the server answers than the one that was asked before.
fn is_of_a_pooler(state: &str) -> bool {
    matches!(state, "26000" | "42P05")
}

impl Failures for Postgres {
    const NAME: &'static str = "PostgreSQL";

    /// Of all else that a server answers a connection recovers by itself: nothing here leaves a transaction
    /// open.
    fn is_fatal(e: &sqlx::Error) -> bool {
        state(e).is_none_or(|state| ends_the_session(&state) || is_of_a_pooler(&state))
    }

    /// It was lost with its connection, or the server ended the session: the commit may have come first. All
    /// else that the server refuses has been rolled back, whole: every statement of this backend is a
    /// transaction of its own.
    fn is_unknown(e: &sqlx::Error) -> bool {
        state(e).is_none_or(|state| ends_the_session(&state))
    }

    fn meaning(e: &sqlx::Error) -> Option<(ErrorKind, &'static str)> {
        let state = state(e)?;
        // A pooler that would not keep what a session is told when it begins.
        match state == "08P01" && e.to_string().contains("startup parameter") {
            true => Some(of_state("26000")),
            false => Some(of_state(&state)),
        }
    }
}

fn of_state(state: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{BackendData, InvalidInput, PermissionDenied, Unavailable, Unsupported};
    match state {
        "DL001" => (Unsupported, OTHER_ISOLATION),
        "DL002" => (
            BackendData,
            "has a row of that name which no dlock wrote; look at it in the table of names, and delete it \
                if it is nobody's",
        ),
        // The transaction was rolled back to end a deadlock or a conflict: asked again it may pass.
        "40001" | "40P01" => (
            Unavailable,
            "rolled the statement back since it was in conflict with another; try again",
        ),
        "55P03" => (
            Unavailable,
            "has the name's row locked for too long; look in pg_locks for who holds it",
        ),
        "57014" => (
            Unavailable,
            "cancelled the statement; is `statement_timeout` too short for it?",
        ),
        "25006" => (
            Unavailable,
            "is read-only; is it a standby, or `default_transaction_read_only` set?",
        ),
        "53100" => (Unavailable, "is on a full disk; free some space"),
        "53300" => (
            Unavailable,
            "has no connection left; raise `max_connections`, or use fewer",
        ),
        "3D000" => (InvalidInput, "does not exist; mend its name or create it"),
        "3F000" => (
            InvalidInput,
            "does not have that schema; mend its name or create it",
        ),
        "42501" => (
            PermissionDenied,
            "refuses this user; grant the rights that docs/sql.md lists",
        ),
        _ if state.starts_with("28") => (
            PermissionDenied,
            "refuses this user; check the name, the password and pg_hba.conf",
        ),
        _ if is_of_a_pooler(state) => (
            Unsupported,
            "is behind a pooler in transaction mode; connect with `pooler=true`, or `Config::behind_pooler`",
        ),
        _ if state.starts_with("42") || state.starts_with("22") || state.starts_with("23") => (
            BackendData,
            "does not have the tables and functions that this dlock made; has something changed them, or a \
                newer dlock?",
        ),
        _ => (Unavailable, "failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_to_be_tried_again_and_a_foreign_table_is_not() {
        for (state, kind) in [
            ("40001", ErrorKind::Unavailable),
            ("40P01", ErrorKind::Unavailable),
            ("55P03", ErrorKind::Unavailable),
            ("25006", ErrorKind::Unavailable),
            ("28P01", ErrorKind::PermissionDenied),
            ("42501", ErrorKind::PermissionDenied),
            ("42883", ErrorKind::BackendData),
            ("26000", ErrorKind::Unsupported),
            ("DL002", ErrorKind::BackendData),
            ("XX000", ErrorKind::Unavailable),
        ] {
            assert_eq!(of_state(state).0, kind, "{state}");
        }
    }
}
