//! What SQLite's errors mean to a caller.

use std::path::Path;

use dlock_core::{Error, ErrorKind};

use crate::direct::Failure;
use crate::failure::meaning;

/// Another connection is writing, or reading in the way of a commit: `SQLITE_BUSY` or `SQLITE_LOCKED`.
pub(super) fn is_busy(e: &sqlx::Error) -> bool {
    matches!(Failure::of(e), Failure::LockTimeout | Failure::Serialization)
}

/// Whether the connection should be made anew before it is used again. (After all else a rollback will do.)
pub(super) fn is_fatal(e: &sqlx::Error) -> bool {
    meaning(e).is_over
}

/// The typed error for a statement that failed without having taken effect.
pub(super) fn nothing_done(e: sqlx::Error, at: &str) -> Error {
    let mut told = meaning(&e);
    match e.as_database_error() {
        // Of the driver's own thread or its files, which no address leads to.
        None => told.what = "failed",
        Some(_) if told.failure == Failure::NoConnection => {
            (told.kind, told.what) = why_not_opened(Path::new(at));
        }
        Some(_) => {}
    }
    told.error(&format!("the SQLite database {at}"), e)
}

/// SQLite has one code for all that keeps a file from being opened; the file system tells more.
fn why_not_opened(path: &Path) -> (ErrorKind, &'static str) {
    use ErrorKind::{InvalidInput, PermissionDenied, Unavailable};
    let directory = directory_of(path);
    if path.is_dir() {
        (InvalidInput, "is a directory; give the path of a file in it")
    } else if matches!(directory.try_exists(), Ok(false)) {
        let text = "cannot be opened: its directory does not exist; create it, or correct the path";
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
    let text = "failed during the commit; the change may have been stored";
    Error::new(ErrorKind::Unknown, format!("the SQLite database {at} {text}")).with_source(e)
}
