//! What the errors of MySQL and MariaDB mean to a caller.

use dlock_core::ErrorKind;
use sqlx::mysql::MySqlDatabaseError;

use crate::session::failure::{Failed, Meaning};

/// `KILL QUERY` has ended the statement.
const INTERRUPTED: u16 = 1317;

fn number(e: &sqlx::Error) -> Option<u16> {
    let told = e.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(told.number())
}

/// The statement was told to end.
pub(super) fn is_interrupted(e: &sqlx::Error) -> bool {
    // Or its time was up: MySQL's, MariaDB's.
    matches!(number(e), Some(INTERRUPTED | 3024 | 1969))
}

/// There is no such session any more.
pub(super) fn is_no_thread(e: &sqlx::Error) -> bool {
    number(e) == Some(1094)
}

/// The typed error for a statement that failed, and whether the connection is still of use.
pub(super) fn failed(e: sqlx::Error, at: &str) -> Failed {
    let meaning = number(&e).map(of_number);
    Failed::of(e, "MySQL", at, meaning)
}

fn of_number(number: u16) -> Meaning {
    use ErrorKind::{BackendData, InvalidInput, LimitReached, PermissionDenied, Unavailable, Unsupported};
    match number {
        1053 | 1152..=1161 | 1184 | 1927 | 4031 => (
            Unavailable,
            "has ended the session: it is being stopped, somebody has killed this connection, or nothing was \
             heard of this client for a ttl",
            true,
        ),
        1047 => (Unavailable, "is a node that is cut off from its cluster", false),
        1040 | 1203 | 1226 => (
            LimitReached,
            "has no connection left for this user; raise its limit",
            true,
        ),
        1045 | 1698 | 1251 | 3118 | 4151 => (PermissionDenied, "refuses this user or password", true),
        1044 | 1142 | 1143 | 1227 | 1370 => (
            PermissionDenied,
            "does not let this user do what a lock needs: see the rights in the documentation",
            false,
        ),
        1049 => (
            InvalidInput,
            "does not have this database; mend the address",
            true,
        ),
        1146 | 1054 | 4084 | 4086 => (
            BackendData,
            "does not have the sequence or table that dlock made; has something changed it?",
            false,
        ),
        4091 => (LimitReached, "has used up the sequence of the tokens", false),
        1193 => (
            Unsupported,
            "does not know a setting that sessions need: it is too old, or something else",
            true,
        ),
        1205 => (
            Unavailable,
            "keeps the tokens locked; look for a backup, or who changes them",
            false,
        ),
        1290 | 1836 | 1792 => (
            Unavailable,
            "is read-only: a replica, or set so; take locks from the primary",
            false,
        ),
        // A connection goes on with what was set when it was made, and others may hang on this one.
        1665 => (
            Unsupported,
            "keeps its binary log in statements, which those for tokens cannot be in; set `binlog_format` \
             to ROW or MIXED, and open the locks anew",
            false,
        ),
        _ => (Unavailable, "did not do what it was asked", false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_session_is_told_from_what_does_not() {
        assert!(of_number(1927).2 && of_number(4031).2 && !of_number(INTERRUPTED).2);
        assert_eq!(of_number(1045).0, ErrorKind::PermissionDenied);
        let cut = std::io::Error::other("reset").into();
        for e in [cut, sqlx::Error::Protocol("0x00".to_owned())] {
            let failed = failed(e, "h");
            assert!(failed.fatal && failed.error.kind() == ErrorKind::Unavailable);
        }
    }
}
