//! Each kind of error as an HTTP status, and whether and when to try again.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use dlock::{Error, ErrorKind};

const SOON: Option<Duration> = Some(Duration::from_secs(1));
const LATER: Option<Duration> = Some(Duration::from_secs(5));

/// The status for an error of dlock, and the pause after which the request may be sent again, if it may.
///
/// The request has to be idempotent: after `Lost` and `Unknown` its write may have arrived.
pub fn status(e: &Error) -> (StatusCode, Option<Duration>) {
    match e.kind() {
        // Others held the lock for as long as the handler waited. Nothing was done.
        ErrorKind::Timeout => (StatusCode::SERVICE_UNAVAILABLE, SOON),
        // The work was cancelled, or the gate refused its write.
        ErrorKind::Lost => (StatusCode::SERVICE_UNAVAILABLE, SOON),
        // This instance shuts down. Another one takes the next request.
        ErrorKind::Closed => (StatusCode::SERVICE_UNAVAILABLE, SOON),
        // The store is away or full. Nothing took effect.
        ErrorKind::Unavailable | ErrorKind::LimitReached => (StatusCode::SERVICE_UNAVAILABLE, LATER),
        // The store did not answer. The lock may be held until its ttl is over.
        ErrorKind::Unknown => (StatusCode::SERVICE_UNAVAILABLE, LATER),
        // The name of the lock is made from the path, so the request is wrong.
        ErrorKind::InvalidInput => (StatusCode::BAD_REQUEST, None),
        // An operator has to act. It is the service that lacks a permission, so this is not 403.
        ErrorKind::Unsupported | ErrorKind::PermissionDenied | ErrorKind::BackendData => {
            (StatusCode::INTERNAL_SERVER_ERROR, None)
        }
        // A kind that is newer than this code: `ErrorKind` is `non_exhaustive`.
        _ if e.is_retryable() => (StatusCode::SERVICE_UNAVAILABLE, LATER),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
    }
}

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// There are fewer items than ordered.
    NotEnough {
        /// How many there are.
        left: u32,
    },
    /// The lock, the gate or the store.
    Lock(Error),
    /// The row holds something else.
    Row(serde_json::Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Lock(e)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(e: serde_json::Error) -> Self {
        Self::Row(e)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, again) = match &self {
            Self::NotEnough { left } => {
                return (StatusCode::CONFLICT, format!("{left} left")).into_response();
            }
            Self::Lock(e) => status(e),
            Self::Row(_) => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        // The details are for the log: they name servers and files.
        eprintln!("{status}: {self:?}");
        let mut response = status.into_response();
        if let Some(pause) = again {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(pause.as_secs()));
        }
        response
    }
}
