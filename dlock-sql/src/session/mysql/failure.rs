//! What the errors of MySQL and MariaDB mean to a caller.

use dlock_core::ErrorKind;
use sqlx::mysql::MySqlDatabaseError;

use crate::session::failure::Failed;

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
    let meaning = number(&e).map(|number| (kind(number), what(number), is_end(number)));
    Failed::of(e, "MySQL", at, meaning)
}

/// Whether the session is over with it, or never began.
fn is_end(number: u16) -> bool {
    let is_ended = matches!(number, 1053 | 1152..=1161 | 1184 | 1927 | 4031);
    let is_refused = matches!(
        number,
        1040 | 1203 | 1226 | 1045 | 1698 | 1251 | 3118 | 4151 | 1049 | 1193
    );
    is_ended || is_refused
}

fn kind(number: u16) -> ErrorKind {
    match number {
        1040 | 1203 | 1226 | 4091 => ErrorKind::LimitReached,
        1044 | 1045 | 1142 | 1143 | 1227 | 1251 | 1370 | 1698 | 3118 | 4151 => ErrorKind::PermissionDenied,
        1049 => ErrorKind::InvalidInput,
        1146 | 1054 | 4084 | 4086 => ErrorKind::BackendData,
        1193 | 1665 => ErrorKind::Unsupported,
        _ => ErrorKind::Unavailable,
    }
}

/// What the server does, and what helps.
fn what(number: u16) -> &'static str {
    match number {
        1053 | 1152..=1161 | 1184 | 1927 | 4031 => {
            "has ended the session: it is being stopped, somebody has killed this connection, or nothing was \
             heard of this client for a ttl"
        }
        1047 => "is a node that is cut off from its cluster",
        1040 | 1203 | 1226 => "has no connection left for this user; raise its limit",
        1045 | 1698 | 1251 | 3118 | 4151 => "refuses this user or password",
        1044 | 1142 | 1143 | 1227 | 1370 => {
            "does not let this user do what a lock needs: see the rights in the documentation"
        }
        1049 => "does not have this database; mend the address",
        1146 | 1054 | 4084 | 4086 => {
            "does not have the sequence or table that dlock made; has something changed it?"
        }
        4091 => "has used up the sequence of the tokens",
        1193 => "does not know a setting that sessions need: it is too old, or something else",
        1205 => "keeps the tokens locked; look for a backup, or who changes them",
        1290 | 1836 | 1792 => "is read-only: a replica, or set so; take locks from the primary",
        // A connection goes on with what was set when it was made, and others may hang on this one.
        1665 => {
            "keeps its binary log in statements, which those for tokens cannot be in; set `binlog_format` to \
             ROW or MIXED, and open the locks anew"
        }
        _ => "did not do what it was asked",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_session_is_told_from_what_does_not() {
        assert!(is_end(1927) && is_end(4031) && !is_end(INTERRUPTED));
        assert_eq!(kind(1045), ErrorKind::PermissionDenied);
        let cut = std::io::Error::other("reset").into();
        for e in [cut, sqlx::Error::Protocol("0x00".to_owned())] {
            let failed = failed(e, "h");
            assert!(failed.fatal && failed.error.kind() == ErrorKind::Unavailable);
        }
    }
}
