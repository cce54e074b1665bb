//! What the errors of MySQL and MariaDB mean to a caller.

use dlock_core::ErrorKind;
use sqlx::mysql::MySqlDatabaseError;

use super::Mysql;
use crate::direct::Failure;
use crate::lease::failure::{Failures, Meaning, meaning};

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

    fn meaning(e: &sqlx::Error) -> Option<Meaning> {
        use ErrorKind::{InvalidInput, LimitReached, Unsupported};
        Some(match number(e)? {
            LOGS_STATEMENTS => (
                Unsupported,
                "keeps its binary log in statements, which those of a lock cannot be in; set \
                 `binlog_format` to ROW or MIXED",
            ),
            1153 => (
                LimitReached,
                "takes no statement of that length; raise `max_allowed_packet`, or write less at once",
            ),
            1046 | 1049 => (InvalidInput, "does not exist; mend its name or create it"),
            3 | 1026 => meaning(Failure::DiskFull),
            1370 | 1698 => meaning(Failure::Denied),
            1064 | 1136 | 1264 | 1364 | 1366 | 1406 => meaning(Failure::Schema),
            _ => return None,
        })
    }
}
