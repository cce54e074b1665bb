//! What the errors of MySQL and MariaDB mean to a caller.

use dlock_core::ErrorKind;
use sqlx::mysql::MySqlDatabaseError;

use super::Mysql;
use crate::lease::failure::Failures;

fn number(e: &sqlx::Error) -> Option<u16> {
    let e = e.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(e.number())
}

/// The server ends the session: shut down, killed, too long idle.
fn ends_the_session(number: u16) -> bool {
    matches!(
        number,
        1053 | 1079 | 1080 | 1152 | 1153 | 1158..=1161 | 1184 | 1927 | 4031
    )
}

/// The server logs statements. A connection goes on with what was set when it was made.
const LOGS_STATEMENTS: u16 = 1665;

impl Failures for Mysql {
    const NAME: &'static str = "MySQL";

    fn is_fatal(e: &sqlx::Error) -> bool {
        number(e).is_none_or(|number| ends_the_session(number) || number == LOGS_STATEMENTS)
    }

    fn is_unknown(e: &sqlx::Error) -> bool {
        match number(e) {
            // It was not read, whatever becomes of the connection.
            Some(1153) => false,
            // A commit that failed may be there after all.
            Some(number) => ends_the_session(number) || number == 1180,
            None => true,
        }
    }

    fn meaning(e: &sqlx::Error) -> Option<(ErrorKind, &'static str)> {
        number(e).map(of_number)
    }
}

fn of_number(number: u16) -> (ErrorKind, &'static str) {
    use ErrorKind::{BackendData, InvalidInput, LimitReached, PermissionDenied, Unavailable, Unsupported};
    match number {
        // The transaction was rolled back to end a deadlock: asked again it may pass.
        1020 | 1213 => (
            Unavailable,
            "rolled the transaction back since it was in conflict with another; try again",
        ),
        1205 | 3572 => (
            Unavailable,
            "has the name's row locked for too long; look for a transaction that does not end",
        ),
        1317 | 1969 | 3024 => (
            Unavailable,
            "was told by somebody to end the statement, or lets none take so long; try again",
        ),
        1290 | 1792 | 1836 | 1874 => (Unavailable, "is read-only; is it a replica, or `read_only` set?"),
        3 | 1021 | 1026 | 1114 => (Unavailable, "is on a full disk; free some space"),
        1040 | 1203 | 1226 => (
            Unavailable,
            "has no connection left; raise `max_connections`, or use fewer",
        ),
        1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => (
            PermissionDenied,
            "refuses this user; check the password and grant the rights that docs/sql.md lists",
        ),
        LOGS_STATEMENTS => (
            Unsupported,
            "keeps its binary log in statements, which those of a lock cannot be in; set `binlog_format` to \
                ROW or MIXED",
        ),
        1153 => (
            LimitReached,
            "takes no statement of that length; raise `max_allowed_packet`, or write less at once",
        ),
        1046 | 1049 => (InvalidInput, "does not exist; mend its name or create it"),
        1054 | 1064 | 1136 | 1146 | 1264 | 1364 | 1366 | 1406 => (
            BackendData,
            "does not have the tables that this dlock made; has something changed them, or a newer dlock?",
        ),
        _ => (Unavailable, "failed"),
    }
}
