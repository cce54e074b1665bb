//! What SQLite's errors mean to a caller.

use std::path::Path;

use dlock_core::{Error, ErrorKind};

/// The primary result code of an error, without the extended part (`SQLITE_BUSY_SNAPSHOT` is 5 + 2 · 256).
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
    use ErrorKind::{BackendData, PermissionDenied, Unavailable};
    let (kind, what) = match primary_code(&e) {
        Some(5 | 6) => (
            Unavailable,
            "is kept busy by another connection; look for a long write transaction",
        ),
        Some(3 | 23) => (PermissionDenied, "refuses access; check the rights of this user"),
        Some(8) => (
            PermissionDenied,
            "is read-only; the file and its directory must be writable",
        ),
        Some(14) => what_is_in_the_way(Path::new(at)),
        Some(13) => (Unavailable, "is on a full disk; free some space"),
        Some(10) => (Unavailable, "cannot be read or written; check the disk"),
        // Also what SQLite makes of a read that the disk refuses (EIO, ENXIO). Nor can the file be read here
        // to see: closing it would end the locks that every connection of this process has on it.
        Some(11) => (
            BackendData,
            "is damaged, or the disk refused a read, which SQLite does not tell apart; check the disk, and \
             restore or remove the file if it stays so",
        ),
        Some(26) => (BackendData, "is not a SQLite database; is the path right?"),
        Some(1 | 17 | 19 | 20) => (
            BackendData,
            "does not have the tables that dlock made; has something changed them?",
        ),
        _ => (Unavailable, "failed"),
    };
    Error::new(kind, format!("the SQLite database {at} {what}")).with_source(e)
}

/// SQLite has one code for all that keeps a file from being opened; the file system tells more.
fn what_is_in_the_way(path: &Path) -> (ErrorKind, &'static str) {
    use ErrorKind::{InvalidInput, PermissionDenied, Unavailable};
    let directory = directory_of(path);
    if path.is_dir() {
        (InvalidInput, "is a directory; give the path of a file in it")
    } else if matches!(directory.try_exists(), Ok(false)) {
        let text = "cannot be opened: its directory does not exist; make it, or mend the path";
        // A mount that is late would come yet.
        (Unavailable, text)
    } else if refused(path) || refused(directory) {
        let text = "cannot be opened: this user must be able to read and write the file and its directory";
        (PermissionDenied, text)
    } else {
        (Unavailable, "cannot be opened; check the file and its directory")
    }
}

pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether this user may not read and write what is there.
#[cfg(unix)]
fn refused(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    use rustix::io::Errno;
    let asked = access(path, Access::READ_OK | Access::WRITE_OK);
    matches!(asked, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

#[cfg(not(unix))]
fn refused(_: &Path) -> bool {
    false
}

/// The typed error for a commit of which it is not known whether it took effect.
pub(super) fn perhaps_done(e: sqlx::Error, at: &str) -> Error {
    let text = "failed while it committed, perhaps after the change was stored";
    Error::new(ErrorKind::Unknown, format!("the SQLite database {at} {text}")).with_source(e)
}
