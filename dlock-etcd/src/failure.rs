//! What the errors of the driver mean.

use std::fmt;

use dlock_core::{Error, ErrorKind};
use etcd_client::Error as Etcd;

pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

pub(crate) fn unsupported(message: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// The request may be in the line of the lock: however the question behind that failed, it may be granted.
pub(crate) fn in_line(e: Error) -> Error {
    use ErrorKind::{InvalidInput, LimitReached, PermissionDenied, Unavailable, Unsupported};
    match e.kind() {
        Unavailable | InvalidInput | LimitReached | PermissionDenied | Unsupported => Error::new(
            ErrorKind::Unknown,
            "the request may be queued for the lock, or granted; its place in the queue is not known",
        )
        .with_source(e),
        _ => e,
    }
}

/// The write that exceeds the quota is carried out before it is refused.
pub(crate) fn at_the_quota(e: Error) -> Error {
    match e.kind() {
        ErrorKind::LimitReached => Error::new(
            ErrorKind::Unknown,
            "etcd ran out of space, and may have carried out this write",
        )
        .with_source(e),
        _ => e,
    }
}

/// Numbers of gRPC.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// What a member answered, if it is one of its refusals: number and text.
fn refusal(e: &Etcd) -> Option<(i32, &str)> {
    match e {
        Etcd::GRpcStatus(status) => Some((status.code() as i32, status.message())),
        _ => None,
    }
}

/// The lease is not there any more: nothing was done.
pub(crate) fn is_lease_gone(e: &Etcd) -> bool {
    matches!(refusal(e), Some((code::NOT_FOUND, text)) if text.contains("lease"))
        || matches!(e, Etcd::LeaseKeepAliveError(text) if text == "lease not found")
}

/// Users or roles were changed since the login, and its token is refused for that: nothing was done.
pub(crate) fn is_login_old(e: &Etcd) -> bool {
    matches!(refusal(e), Some((code::INVALID_ARGUMENT, text)) if text.contains("auth store is old"))
}

/// Its connection had ended before it was sent.
fn is_unsent(e: &Etcd) -> bool {
    let Etcd::GRpcStatus(status) = e else { return false };
    let mut causes = std::iter::successors(std::error::Error::source(status), |e| e.source());
    causes.any(|e| matches!(e.downcast_ref(), Some(e) if hyper::Error::is_canceled(e)))
}

/// The error for a caller; of kind `away` if something may have been done.
pub(crate) fn told(e: Etcd, away: ErrorKind, at: &str) -> Error {
    let (kind, what) = match refusal(&e) {
        _ if is_lease_gone(&e) => (
            ErrorKind::Unavailable,
            "ended this client's lease; the client is getting another one",
        ),
        Some((code::PERMISSION_DENIED, _)) => (
            ErrorKind::PermissionDenied,
            "denies this user what a lock needs: grant it read and write access to all keys with the prefix",
        ),
        Some((code::INVALID_ARGUMENT, text)) if text.contains("user name is empty") => {
            (ErrorKind::PermissionDenied, "requires a user and a password")
        }
        Some((code, text)) if code == code::UNAUTHENTICATED || text.contains("authentication failed") => {
            (ErrorKind::PermissionDenied, "rejects this user or password")
        }
        Some((code::FAILED_PRECONDITION, text)) if text.contains("authentication is not enabled") => (
            ErrorKind::PermissionDenied,
            "has authentication disabled: leave out the user and the password",
        ),
        _ if is_login_old(&e) => (
            ErrorKind::Unavailable,
            "changed its users or roles; the client is logging in again",
        ),
        Some((code::INVALID_ARGUMENT, _)) => (ErrorKind::InvalidInput, "rejected the request as invalid"),
        Some((code::RESOURCE_EXHAUSTED, text)) if text.contains("space exceeded") => (
            ErrorKind::LimitReached,
            "is out of space (NOSPACE): compact and defragment it, and disarm the alarm",
        ),
        Some((code::RESOURCE_EXHAUSTED, text)) if text.contains("too many requests") => {
            (ErrorKind::Unavailable, "is overloaded and rejected the request")
        }
        Some((code::UNIMPLEMENTED, _)) => (
            ErrorKind::Unsupported,
            "is not etcd 3.4 or later, which dlock needs",
        ),
        Some((_, text)) if text.contains("compacted") => (
            ErrorKind::Unavailable,
            "has compacted the requested revision: try again",
        ),
        Some((_, text)) if text.contains("no leader") => (
            ErrorKind::Unavailable,
            "has no leader: it is cut off from the other members, or an election is under way",
        ),
        _ if is_unsent(&e) => (ErrorKind::Unavailable, "has ended the connection"),
        _ => (away, "cannot be reached, or did not answer in time"),
    };
    Error::new(kind, format!("etcd at {at} {what}")).with_source(Cause(e))
}

/// An error of the driver, shown by its root cause: the driver prints its own layers.
#[derive(Debug)]
struct Cause(Etcd);

impl std::error::Error for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut cause, mut inner): (&dyn fmt::Display, _) = match &self.0 {
            Etcd::GRpcStatus(status) => (&status.message(), std::error::Error::source(status)),
            other => (other, std::error::Error::source(other)),
        };
        while let Some(e) = inner {
            (cause, inner) = (e, e.source());
        }
        cause.fmt(f)
    }
}
