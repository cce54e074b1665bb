//! What the errors of PostgreSQL mean to a caller.

use dlock_core::ErrorKind;

use super::Postgres;
use super::schema::OTHER_ISOLATION;
use crate::direct::Failure;
use crate::lease::failure::{Failures, Meaning, meaning};

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

    /// From all else a connection recovers by itself: nothing here leaves a transaction open.
    fn is_fatal(e: &sqlx::Error) -> bool {
        state(e).is_none_or(|state| ends_the_session(&state) || is_of_a_pooler(&state))
    }

    /// It was lost with its connection, or the server ended the session: the commit may have come first. All
    /// else that the server refuses has been rolled back: each statement of this backend is a transaction.
    fn is_unknown(e: &sqlx::Error) -> bool {
        state(e).is_none_or(|state| ends_the_session(&state))
    }

    fn meaning(e: &sqlx::Error) -> Option<Meaning> {
        let state = state(e)?;
        // A pooler that would not keep what a session is told when it begins.
        match state == "08P01" && e.to_string().contains("startup parameter") {
            true => of_state("26000"),
            false => of_state(&state),
        }
    }
}

fn of_state(state: &str) -> Option<Meaning> {
    use ErrorKind::{BackendData, InvalidInput, Unsupported};
    Some(match state {
        "DL001" => (Unsupported, OTHER_ISOLATION),
        "DL002" => (
            BackendData,
            "has a row of that name which no dlock wrote; look at it in the table of names, and delete it \
                if it is nobody's",
        ),
        "3D000" => (InvalidInput, "does not exist; mend its name or create it"),
        "3F000" => (
            InvalidInput,
            "does not have that schema; mend its name or create it",
        ),
        _ if is_of_a_pooler(state) => (
            Unsupported,
            "is behind a pooler in transaction mode; connect with `pooler=true`, or `Config::behind_pooler`",
        ),
        "42501" => return None,
        _ if state.starts_with("28") => meaning(Failure::Denied),
        _ if state.starts_with("42") || state.starts_with("22") => meaning(Failure::Schema),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_foreign_table_says_is_not_to_be_tried_again() {
        for (state, kind) in [
            ("28P01", ErrorKind::PermissionDenied),
            ("28000", ErrorKind::PermissionDenied),
            ("42883", ErrorKind::BackendData),
            ("26000", ErrorKind::Unsupported),
            ("DL002", ErrorKind::BackendData),
        ] {
            assert_eq!(of_state(state).map(|(kind, _)| kind), Some(kind), "{state}");
        }
        for state in ["40001", "42501", "XX000"] {
            assert_eq!(of_state(state), None, "{state}");
        }
    }
}
