//! What the errors of the databases mean.
//!
//! Each code is judged only here, for all strategies. A strategy adds what it knows of its request: whether
//! it may have been carried out all the same.

use std::borrow::Cow;

use dlock_core::ErrorKind::{BackendData, InvalidInput, PermissionDenied, Unavailable, Unsupported};
use dlock_core::{Error, ErrorKind};

use crate::direct::Failure::{
    self, Aborted, Cancelled, ConnectionLost, Constraint, Deadlock, Denied, DiskFull, LockTimeout,
    NoConnection, Other, ReadOnly, Schema, Serialization,
};

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) failure: Failure,
    /// For a lock, of which nothing was done.
    pub(crate) kind: ErrorKind,
    /// What the database does, and what helps; it goes on from "the database".
    pub(crate) what: &'static str,
    /// Nothing more can be asked on that connection.
    pub(crate) is_over: bool,
}

fn told(failure: Failure, kind: ErrorKind, what: &'static str) -> Meaning {
    let is_over = failure == ConnectionLost;
    Meaning {
        failure,
        kind,
        what,
        is_over,
    }
}

impl Meaning {
    fn over(self) -> Self {
        Self {
            is_over: true,
            ..self
        }
    }

    /// Whether a statement that was sent may have been done all the same, or a commit: the connection ended
    /// without a word on that. Whatever may be repeated says that nothing was done.
    pub(crate) fn may_be_done(&self) -> bool {
        self.is_over && self.kind == Unavailable && !self.failure.is_retryable()
    }

    /// The typed error. `at` says which database it is.
    pub(crate) fn error(self, at: &str, e: sqlx::Error) -> Error {
        Error::new(self.kind, format!("{at} {}", self.what)).with_source(e)
    }
}

/// The meaning of nearly every code of that failure.
impl From<Failure> for Meaning {
    fn from(failure: Failure) -> Self {
        let kind = match failure {
            Denied => PermissionDenied,
            Schema | Constraint => BackendData,
            _ => Unavailable,
        };
        let what = match failure {
            // It was rolled back to end the conflict: asked again it may pass.
            Deadlock | Serialization => {
                "rolled back the change because of a conflict with another; try again"
            }
            LockTimeout => {
                "did not release a row, table or sequence of the locks in time; look for a transaction or a \
                 backup that does not end"
            }
            ReadOnly => "is read-only: a replica or standby, or by its settings; take locks from the primary",
            Cancelled => {
                "cancelled the statement, on request or at its time limit; try again, or raise \
                 `statement_timeout` or `max_statement_time`"
            }
            ConnectionLost => {
                "ended the session: the server is stopping, an operator ended the connection, or the client \
                 was silent for too long"
            }
            DiskFull => "has no disk space left; free some",
            Denied => {
                "refuses this user a right: grant those that docs/sql.md lists; if the tables are not there \
                 yet, let a user that may create them connect once"
            }
            Schema | Constraint => {
                "does not have the tables, functions or sequences of this version of dlock; was something \
                 changed by hand, or by a newer version?"
            }
            _ => "failed",
        };
        told(failure, kind, what)
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
const NO_CONNECTION_LEFT: &str = "has no connection left; raise `max_connections` or the limit of this user, \
    or use fewer";
#[cfg(any(feature = "postgres", feature = "mysql"))]
const LOGIN: &str =
    "does not know this user, or refuses the password; check both (PostgreSQL: and pg_hba.conf)";
#[cfg(any(feature = "postgres", feature = "mysql"))]
const NO_DATABASE: &str = "does not have that database; correct its name or create it";
#[cfg(any(feature = "postgres", feature = "mysql"))]
const NO_TOKENS: &str = "has reached the end of the sequence of the tokens";
#[cfg(any(feature = "postgres", feature = "mysql"))]
const TOO_OLD: &str = "does not know a setting that locks need; it is too old (sessions need PostgreSQL 14, \
    MySQL 8.0 or MariaDB 10.5), or another product";
/// What the functions of leases say of it, too.
#[cfg(feature = "postgres")]
pub(crate) const OTHER_ISOLATION: &str = "runs transactions at another isolation level than `read \
    committed`; set `default_transaction_isolation` for this user";

/// What that error of the driver or the database means.
pub(crate) fn meaning(e: &sqlx::Error) -> Meaning {
    let Some(answer) = e.as_database_error() else {
        return of_driver(e);
    };
    #[cfg(feature = "postgres")]
    if let Some(e) = answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        use sqlx::postgres::PgSeverity::{Fatal, Panic};
        // A pooler that does not keep the start-up parameters of a session.
        let would_not = e.code() == "08P01" && e.message().contains("startup parameter");
        let code = if would_not { "26000" } else { e.code() };
        return of_postgres(code, matches!(e.severity(), Fatal | Panic));
    }
    #[cfg(feature = "mysql")]
    if let Some(number) = mysql_number(e) {
        return of_mysql(number);
    }
    #[cfg(feature = "sqlite")]
    if answer.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        return of_sqlite(answer.code().and_then(|c| c.parse().ok()).unwrap_or(0));
    }
    let _ = answer;
    Other.into()
}

fn of_driver(e: &sqlx::Error) -> Meaning {
    use sqlx::Error;
    const AWAY: &str = "cannot be reached or does not answer; check the address, the network and the server";
    const NO_ANSWER: &str = "sent an answer that cannot be read";
    const NO_TLS: &str = "cannot be reached over TLS; check the certificates";
    const STRANGE: &str = "does not speak the protocol; is it a proxy without a server, another product, \
        or a login method that the driver does not support?";
    match e {
        Error::Configuration(_) | Error::InvalidArgument(_) => told(
            Other,
            InvalidInput,
            "cannot be reached with these options; check the URL",
        )
        .over(),
        // A value that cannot be decoded was read to its end. All other errors leave the stream out of step.
        Error::ColumnNotFound(_)
        | Error::ColumnIndexOutOfBounds { .. }
        | Error::ColumnDecode { .. }
        | Error::TypeNotFound { .. } => told(Schema, BackendData, NO_ANSWER),
        Error::RowNotFound => told(Other, BackendData, NO_ANSWER),
        Error::Tls(_) => told(ConnectionLost, Unavailable, NO_TLS),
        // A proxy without a server, as during a fail-over, may send nothing, which is this error.
        Error::Protocol(_) => told(ConnectionLost, Unavailable, STRANGE),
        // Said of a connection that was idle.
        Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => ConnectionLost.into(),
        Error::Io(_) | Error::WorkerCrashed => told(ConnectionLost, Unavailable, AWAY),
        Error::PoolTimedOut | Error::PoolClosed => told(NoConnection, Unavailable, AWAY).over(),
        // The server was not in a transaction after it was told to begin one.
        Error::BeginFailed => told(Aborted, Unavailable, AWAY).over(),
        _ => told(Other, Unavailable, AWAY).over(),
    }
}

/// By SQLSTATE: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
#[cfg(feature = "postgres")]
fn of_postgres(code: &str, is_over: bool) -> Meaning {
    let schema = Meaning::from(Schema);
    const STARTS: &str = "is starting or stopping; try again";
    const NO_ROOM: &str = "has no room for another lock; raise `max_locks_per_transaction`, or hold fewer";
    const NO_SCHEMA: &str = "does not have that schema; correct its name or create it";
    const POOLER: &str = "is behind a pooler that shares sessions; leases need `pooler=true` in the URL, or \
        `Config::behind_pooler`; session locks need a direct connection";
    const FOREIGN_ROW: &str = "has a row for this lock that dlock did not write; look at it in the table of \
        names, and if no program needs it, delete the rows of that name from all tables at once";
    let meaning = match code {
        "40P01" => Deadlock.into(),
        "40001" => Serialization.into(),
        // `lock_timeout`, and `NOWAIT`.
        "55P03" => LockTimeout.into(),
        "57014" => Cancelled.into(),
        "25006" => ReadOnly.into(),
        "25P02" => Aborted.into(),
        "53100" => DiskFull.into(),
        "57P03" => told(NoConnection, Unavailable, STARTS),
        "53300" => told(NoConnection, ErrorKind::LimitReached, NO_CONNECTION_LEFT),
        "53200" => told(Other, ErrorKind::LimitReached, NO_ROOM),
        "2200H" => told(Other, ErrorKind::LimitReached, NO_TOKENS),
        "3D000" => told(Other, InvalidInput, NO_DATABASE),
        "3F000" => told(Schema, InvalidInput, NO_SCHEMA),
        // There is no such prepared statement, or there is one already: another session of the server answers
        // than the one that was asked before.
        "26000" | "42P05" => told(Other, Unsupported, POOLER).over(),
        "42704" if is_over => told(Other, Unsupported, TOO_OLD),
        "DL001" => told(Other, Unsupported, OTHER_ISOLATION),
        "DL002" => told(Other, BackendData, FOREIGN_ROW),
        "42501" => Denied.into(),
        "42P01" | "42703" | "42883" | "42804" => schema,
        // Ended by an operator, by a crash, at a shutdown; idle too long, in a transaction and outside.
        "25P03" | "25P04" => ConnectionLost.into(),
        _ if code.starts_with("08") || code.starts_with("57P") => ConnectionLost.into(),
        _ if code.starts_with("28") => told(Denied, PermissionDenied, LOGIN),
        // A relation or a type is there already.
        "42P07" | "42710" => Constraint.into(),
        _ if code.starts_with("23") => Constraint.into(),
        _ if code.starts_with("22") || code.starts_with("42") => told(Other, BackendData, schema.what),
        _ => Other.into(),
    };
    if is_over { meaning.over() } else { meaning }
}

#[cfg(feature = "mysql")]
fn mysql_number(e: &sqlx::Error) -> Option<u16> {
    let told = e
        .as_database_error()?
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
    Some(told.number())
}

/// The session that was to be cancelled has ended.
#[cfg(feature = "mysql")]
pub(crate) fn is_no_thread(e: &sqlx::Error) -> bool {
    mysql_number(e) == Some(1094)
}

/// By number, which tells more than SQLSTATE there; of MySQL and of MariaDB.
#[cfg(feature = "mysql")]
fn of_mysql(number: u16) -> Meaning {
    let schema = Meaning::from(Schema);
    const CUT_OFF: &str = "is cut off from its cluster";
    const TOO_LONG: &str =
        "rejects a statement of that length; raise `max_allowed_packet`, or write less at once";
    const NO_COMMIT: &str = "failed during the commit; the change may have been stored";
    const LOGS_STATEMENTS: &str = "has a statement-based binary log, which cannot take those of locks; set \
        `binlog_format` to ROW or MIXED, and reconnect session locks";
    match number {
        1213 => Deadlock.into(),
        // MariaDB: the record has changed since it was last read.
        1020 => Serialization.into(),
        // `NOWAIT` is 1205 to MariaDB, and 3572 to MySQL.
        1205 | 3572 => LockTimeout.into(),
        // Killed; longer than `max_statement_time` (MariaDB) or `max_execution_time` (MySQL).
        1317 | 1969 | 3024 => Cancelled.into(),
        1290 | 1792 | 1836 | 1874 => ReadOnly.into(),
        3 | 1021 | 1026 | 1114 => DiskFull.into(),
        1040 | 1203 | 1226 => told(NoConnection, ErrorKind::LimitReached, NO_CONNECTION_LEFT),
        1045 | 1251 | 1698 | 3118 | 4151 => told(Denied, PermissionDenied, LOGIN),
        1044 | 1142 | 1143 | 1227 | 1370 => Denied.into(),
        1046 | 1049 => told(Schema, InvalidInput, NO_DATABASE),
        1054 | 1146 => schema,
        1064 | 1136 | 1264 | 1364 | 1366 | 1406 | 4084 | 4086 => told(Other, BackendData, schema.what),
        1022 | 1048 | 1062 | 1216 | 1217 | 1451 | 1452 | 3819 | 4025 => Constraint.into(),
        1047 => told(Other, Unavailable, CUT_OFF),
        // It was not read, and the connection is closed.
        1153 => told(Other, ErrorKind::LimitReached, TOO_LONG).over(),
        1180 => told(Other, ErrorKind::Unknown, NO_COMMIT),
        1193 => told(Other, Unsupported, TOO_OLD),
        // A connection goes on with what was set when it was made.
        1665 => told(Other, Unsupported, LOGS_STATEMENTS),
        4091 => told(Other, ErrorKind::LimitReached, NO_TOKENS),
        // Shut down; MariaDB: killed; MySQL: idle too long; broken on the way.
        1053 | 1079 | 1080 | 1152 | 1154..=1161 | 1184 | 1927 | 4031 => ConnectionLost.into(),
        _ => Other.into(),
    }
}

/// By extended result code: <https://www.sqlite.org/rescode.html>.
#[cfg(feature = "sqlite")]
fn of_sqlite(code: u32) -> Meaning {
    const BUSY: &str = "is locked by another connection; look for a long write transaction";
    const READ_ONLY: &str = "is read-only; the file and its directory must be writable";
    const NO_RIGHTS: &str = "denies access; check the rights of this user";
    const DAMAGED: &str = "is damaged, or a read from disk failed, which SQLite does not tell apart; check \
        the disk, and restore or remove the file if that persists";
    const NOT_OPEN: &str = "cannot be opened; check the file and its directory";
    match code & 0xff {
        // BUSY_SNAPSHOT: what was read is not the newest any more, and no wait mends that.
        5 if code == 517 => told(Serialization, Unavailable, BUSY),
        5 | 6 => told(LockTimeout, Unavailable, BUSY),
        8 => told(ReadOnly, PermissionDenied, READ_ONLY),
        9 => Cancelled.into(),
        13 => DiskFull.into(),
        3 | 23 => told(Denied, PermissionDenied, NO_RIGHTS),
        10 => told(Other, Unavailable, "cannot be read or written; check the disk").over(),
        // Also what SQLite makes of a read that the disk refuses (EIO, ENXIO). Nor can the file be read here
        // to see: closing it would end the locks that every connection of this process has on it.
        11 => told(Other, BackendData, DAMAGED).over(),
        // The file system tells more: see `sqlite/failure`.
        14 => told(NoConnection, Unavailable, NOT_OPEN).over(),
        26 => told(Other, BackendData, "is not a SQLite database; is the path right?").over(),
        1 | 17 => Schema.into(),
        19 => Constraint.into(),
        20 => told(Other, BackendData, Meaning::from(Schema).what),
        _ => Other.into(),
    }
}

pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(InvalidInput, text)
}

pub(crate) fn unsupported(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Unsupported, text)
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn unavailable(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Unavailable, text)
}

/// The runtime has dropped the task that was to do it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn runtime_ended() -> Error {
    unavailable("the runtime of this client has ended; use one that lives as long as the client")
}

/// Where a database is, for messages: never a password.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn shown(
    server: &str,
    socket: Option<&std::path::PathBuf>,
    host: &str,
    port: u16,
    database: &str,
) -> String {
    match socket {
        Some(socket) => format!("{server} at {}/{database}", socket.display()),
        None => format!("{server} at {host}:{port}/{database}"),
    }
}

/// A row or an answer that is none of ours.
pub(crate) fn foreign(what: &str) -> Error {
    let text = format!("a row of the lock tables was not written by dlock: {what}");
    Error::new(BackendData, text)
}

/// The version of tables that are there. What a newer dlock has made is refused.
pub(crate) fn known_version(found: i64, known: usize, tables: &str) -> dlock_core::Result<usize> {
    let version = usize::try_from(found).map_err(|_| foreign("another schema version"))?;
    if version <= known {
        return Ok(version);
    }
    let text = format!(
        "the lock tables in {tables} have schema version {version}, this program knows up to {known}: a \
         newer dlock has used the database; update this program"
    );
    Err(unsupported(text))
}

#[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_from_one_another() {
        let postgres = |code| of_postgres(code, false);
        for (told, failure, kind) in [
            (postgres("40001"), Failure::Serialization, ErrorKind::Unavailable),
            (postgres("55P03"), Failure::LockTimeout, ErrorKind::Unavailable),
            (postgres("08006"), Failure::ConnectionLost, ErrorKind::Unavailable),
            (postgres("57P03"), Failure::NoConnection, ErrorKind::Unavailable),
            (postgres("53300"), Failure::NoConnection, ErrorKind::LimitReached),
            (postgres("53200"), Failure::Other, ErrorKind::LimitReached),
            (postgres("23505"), Failure::Constraint, ErrorKind::BackendData),
            (postgres("42P07"), Failure::Constraint, ErrorKind::BackendData),
            (postgres("42710"), Failure::Constraint, ErrorKind::BackendData),
            (postgres("28P01"), Failure::Denied, ErrorKind::PermissionDenied),
            (postgres("42501"), Failure::Denied, ErrorKind::PermissionDenied),
            (postgres("42883"), Failure::Schema, ErrorKind::BackendData),
            (postgres("42809"), Failure::Other, ErrorKind::BackendData),
            (postgres("26000"), Failure::Other, ErrorKind::Unsupported),
            (postgres("DL002"), Failure::Other, ErrorKind::BackendData),
            (postgres("XX000"), Failure::Other, ErrorKind::Unavailable),
            (of_mysql(3572), Failure::LockTimeout, ErrorKind::Unavailable),
            (of_mysql(1045), Failure::Denied, ErrorKind::PermissionDenied),
            (of_mysql(1153), Failure::Other, ErrorKind::LimitReached),
            (of_sqlite(5), Failure::LockTimeout, ErrorKind::Unavailable),
            // No wait mends a stale snapshot.
            (of_sqlite(517), Failure::Serialization, ErrorKind::Unavailable),
        ] {
            assert_eq!((told.failure, told.kind), (failure, kind), "{}", told.what);
        }
    }

    #[test]
    fn a_refused_login_is_told_from_a_missing_right() {
        for (login, right) in [
            (of_postgres("28P01", false), of_postgres("42501", false)),
            (of_mysql(1045), of_mysql(1142)),
        ] {
            assert_eq!(login.what, LOGIN);
            assert!(
                right.what.starts_with("refuses this user a right"),
                "{}",
                right.what
            );
        }
    }

    #[test]
    fn what_ends_a_connection_is_told_from_what_does_not() {
        for code in ["57P05", "08006", "26000"] {
            assert!(of_postgres(code, false).is_over, "{code}");
        }
        for code in ["57014", "53200", "55P03"] {
            assert!(
                !of_postgres(code, false).is_over && of_postgres(code, true).is_over,
                "{code}"
            );
        }
        assert!([1153, 1927, 4031].iter().all(|n| of_mysql(*n).is_over));
        assert!(!of_mysql(1317).is_over && !of_mysql(1665).is_over && !of_sqlite(5).is_over);
        let cut = std::io::Error::other("reset").into();
        for e in [cut, sqlx::Error::Protocol("0x00".to_owned())] {
            let told = meaning(&e);
            assert!(
                told.is_over
                    && told.kind == ErrorKind::Unavailable
                    && told.failure == Failure::ConnectionLost
            );
        }
        assert!(!meaning(&sqlx::Error::RowNotFound).is_over);
    }

    #[test]
    fn a_statement_whose_connection_ends_may_be_done_unless_refused() {
        for code in ["XX000", "58030", "53100", "57014", "57P01"] {
            assert!(of_postgres(code, true).may_be_done(), "{code}");
        }
        // Refused, rolled back, or not let in; and what leaves the connection as it is.
        for code in ["28P01", "3D000", "53300", "57P03", "40001", "26000"] {
            assert!(!of_postgres(code, true).may_be_done(), "{code}");
        }
        assert!(!of_postgres("XX000", false).may_be_done() && !of_mysql(1153).may_be_done());
        assert!(!meaning(&sqlx::Error::PoolTimedOut).may_be_done());
    }
}
