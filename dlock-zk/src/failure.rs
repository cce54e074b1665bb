//! What the errors of the driver mean.

use dlock_core::{Error, ErrorKind};
use zookeeper_client::Error as Zk;

pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// The error for a caller; of kind `away` if no answer came.
pub(crate) fn told(e: Zk, away: ErrorKind, at: &str) -> Error {
    let (kind, what) = match &e {
        Zk::NoAuth => (
            ErrorKind::PermissionDenied,
            "denies this user what a lock needs: grant it `cdrw` on every node below the root",
        ),
        Zk::AuthFailed => (ErrorKind::PermissionDenied, "rejects this user or password"),
        Zk::InvalidAcl => (
            ErrorKind::PermissionDenied,
            "rejects the access list: `creator` needs a login",
        ),
        Zk::Unimplemented => (ErrorKind::Unsupported, "is too old: dlock needs ZooKeeper 3.5"),
        Zk::QuotaExceeded => (
            ErrorKind::LimitReached,
            "has a quota below the root that is used up",
        ),
        Zk::NotReadOnly => (
            ErrorKind::Unavailable,
            "is cut off from its ensemble and is read-only",
        ),
        Zk::Throttled => (ErrorKind::Unavailable, "is overloaded and rejected the request"),
        // The session and all that it had are over: what was sent cannot hold anything.
        Zk::SessionExpired | Zk::SessionMoved | Zk::ClientClosed => (
            ErrorKind::Unavailable,
            "ended the session; the client is getting another one",
        ),
        Zk::NoHosts | Zk::Timeout | Zk::ConnectionLoss | Zk::Custom(_) => (away, "cannot be reached"),
        Zk::NoNode | Zk::NodeExists | Zk::NotEmpty | Zk::NoChildrenForEphemerals | Zk::BadVersion => (
            ErrorKind::BackendData,
            "has nodes below the root that dlock did not make: remove them, or use another root",
        ),
        Zk::UnmarshalError { .. } | Zk::MarshallingError => {
            (ErrorKind::BackendData, "sent an answer that cannot be read")
        }
        _ => (away, "rejected the request"),
    };
    Error::new(kind, format!("ZooKeeper at {at} {what}")).with_source(e)
}

/// Whether a majority had a part in that answer to a write: see [`deadline`](crate::deadline).
pub(crate) fn is_answer<T>(answer: &Result<T, Zk>) -> bool {
    matches!(
        answer,
        Ok(_) | Err(Zk::NoNode | Zk::NodeExists | Zk::NotEmpty | Zk::BadVersion)
    )
}

/// Whether nothing more will come of a request that was answered so, and nothing came of it.
pub(crate) fn did_nothing(e: &Zk) -> bool {
    matches!(
        e,
        Zk::NoNode
            | Zk::NodeExists
            | Zk::NotEmpty
            | Zk::BadVersion
            | Zk::NoAuth
            | Zk::AuthFailed
            | Zk::InvalidAcl
            | Zk::Unimplemented
            | Zk::QuotaExceeded
            | Zk::NotReadOnly
            | Zk::Throttled
            | Zk::NoChildrenForEphemerals
            | Zk::BadArguments(_)
            | Zk::SessionExpired
            | Zk::SessionMoved
    )
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_unanswered_change_is_unknown_and_a_read_is_unavailable() {
        for e in [Zk::ConnectionLoss, Zk::Timeout] {
            assert_eq!(
                told(e.clone(), ErrorKind::Unknown, "h").kind(),
                ErrorKind::Unknown
            );
            assert_eq!(
                told(e, ErrorKind::Unavailable, "h").kind(),
                ErrorKind::Unavailable
            );
        }
        let refused = told(Zk::NoAuth, ErrorKind::Unknown, "h:1");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("h:1") && refused.source().is_some());
    }
}
