//! What SQLite's errors mean to a caller.

use dlock_core::{Error, ErrorKind};

/// The primary result code of an error, without the extended part (`SQLITE_BUSY_SNAPSHOT` is 517 = 5 + 2 · 256).
pub(super) fn primary_code(e: &sqlx::Error) -> Option<u32> {
    let code = e.as_database_error()?.code()?;
    Some(code.parse::<u32>().ok()? & 0xff)
}

/// Another connection is writing, or reading in the way of a commit: `SQLITE_BUSY` or `SQLITE_LOCKED`.
pub(super) fn is_busy(e: &sqlx::Error) -> bool {
    matches!(primary_code(e), Some(5 | 6))
}

/// Whether the connection should be made anew before it is used again.
pub(super) fn is_fatal(e: &sqlx::Error) -> bool {
    match primary_code(e) {
        // IOERR, CORRUPT, CANTOPEN, NOTADB; everything else leaves a connection usable after a rollback.
        Some(code) => matches!(code, 10 | 11 | 14 | 26),
        None => true,
    }
}

/// The typed error for a statement that failed without having taken effect.
pub(super) fn nothing_done(e: sqlx::Error, at: &str) -> Error {
    let (kind, what) = match primary_code(&e) {
        Some(5 | 6) => (
            ErrorKind::Unavailable,
            "is kept busy by another connection; look for a long write transaction",
        ),
        Some(3 | 23) => (
            ErrorKind::PermissionDenied,
            "refuses access; check the rights of this user",
        ),
        Some(8) => (
            ErrorKind::PermissionDenied,
            "is read-only; locking writes, so the file and its directory must be writable",
        ),
        Some(14) => (
            ErrorKind::Unavailable,
            "cannot be opened; check that the directory exists and that it is writable",
        ),
        Some(13) => (ErrorKind::Unavailable, "is on a full disk; free some space"),
        Some(10) => (
            ErrorKind::Unavailable,
            "cannot be read or written; check the disk",
        ),
        Some(11) => (ErrorKind::BackendData, "is damaged; restore or remove it"),
        Some(26) => (
            ErrorKind::BackendData,
            "is not a SQLite database; is the path right?",
        ),
        Some(1 | 17 | 19 | 20) => (
            ErrorKind::BackendData,
            "does not have the tables that dlock made; has something changed them?",
        ),
        _ => (ErrorKind::Unavailable, "failed"),
    };
    Error::new(kind, format!("the SQLite database {at} {what}")).with_source(e)
}

/// The typed error for a commit of which it is not known whether it took effect.
pub(super) fn perhaps_done(e: sqlx::Error, at: &str) -> Error {
    Error::new(
        ErrorKind::Unknown,
        format!("the SQLite database {at} failed while it committed, perhaps after the change was stored"),
    )
    .with_source(e)
}

/// A row that we did not write.
pub(super) fn foreign_row(what: &str) -> Error {
    Error::new(
        ErrorKind::BackendData,
        format!("a row of the lock tables was not written by dlock: {what}"),
    )
}
