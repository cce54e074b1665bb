//! What the errors of the driver and of the server mean.

use std::sync::Arc;

use dlock_core::{Error, ErrorKind};
use redis::{ErrorKind as Kind, RedisError, ServerErrorKind as Server};

use crate::connection::rejoin::Bar;

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) cause: Cause,
    /// It may have been carried out.
    pub(crate) sent: bool,
}

/// Why nothing came of it.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    Driver(RedisError),
    /// The server is there, and not one to ask: of what kind that is, and what is said of it.
    Refused(ErrorKind, Arc<str>),
    /// It was restarted too short a time ago.
    Barred(Bar),
}

impl From<RedisError> for Cause {
    fn from(e: RedisError) -> Self {
        Self::Driver(e)
    }
}

impl Failed {
    pub(crate) fn unsent(cause: impl Into<Cause>) -> Self {
        let cause = cause.into();
        Self { cause, sent: false }
    }

    pub(crate) fn sent(cause: impl Into<Cause>) -> Self {
        let cause = cause.into();
        Self { cause, sent: true }
    }
}

pub(crate) fn timed_out() -> RedisError {
    RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))
}

pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

type Said = (ErrorKind, &'static str);

const TOO_OLD: Said = (
    ErrorKind::Unsupported,
    "is too old: dlock needs Redis 6.2, or 7.0 for a cluster",
);

const CLUSTER_DOWN: Said = (ErrorKind::Unavailable, "says that the cluster is down");

const STRANGER: Said = (ErrorKind::PermissionDenied, "rejects this user or password");

const STRANGE: Said = (ErrorKind::BackendData, "answered with an unexpected error");

/// For a request that only reads, or that can be sent again: nothing depends on whether it was carried out.
pub(crate) fn nothing_done(f: Failed, at: &str) -> Error {
    failed(f, at, ErrorKind::Unavailable)
}

/// For a request that may have been carried out although its answer did not come.
pub(crate) fn perhaps_done(f: Failed, at: &str) -> Error {
    let kind = if f.sent {
        ErrorKind::Unknown
    } else {
        ErrorKind::Unavailable
    };
    failed(f, at, kind)
}

/// For an item of a batch that failed alone: what the script says of it. The caller says what a slot that is
/// moving means for it.
pub(crate) fn of_item(text: String, at: &str, halfway: ErrorKind) -> Error {
    let (kind, what) = in_words(&text, halfway).unwrap_or(STRANGE);
    let said = RedisError::from((Kind::Server(Server::ResponseError), "a script answered", text));
    Error::new(kind, format!("Redis at {at} {what}")).with_source(said)
}

/// Whether a script was refused something in its middle: nothing is rolled back, so what it did before
/// stands.
pub(crate) fn stopped_halfway(e: &Error) -> bool {
    let refused = matches!(
        e.kind(),
        ErrorKind::PermissionDenied | ErrorKind::LimitReached | ErrorKind::Unsupported
    );
    let said = std::error::Error::source(e).map(ToString::to_string);
    // In all versions, and in none of what they say of the call itself.
    refused && said.is_some_and(|s| s.contains("script"))
}

/// Whether the server says that it is a replica, and no master: of a command, or of one in a script.
pub(crate) fn is_of_a_replica(e: &RedisError) -> bool {
    match e.kind() {
        Kind::Server(Server::ReadOnly) => true,
        Kind::Server(_) | Kind::Extension => has(&e.to_string(), "READONLY"),
        _ => false,
    }
}

fn failed(f: Failed, at: &str, otherwise: ErrorKind) -> Error {
    let e = match f.cause {
        Cause::Driver(e) => e,
        Cause::Refused(kind, what) => return Error::new(kind, format!("Redis at {at} {what}")),
        Cause::Barred(bar) => return Error::new(ErrorKind::Unavailable, format!("Redis at {at} {bar}")),
    };
    let text = e.to_string();
    let is_said = matches!(e.kind(), Kind::Server(_) | Kind::Extension);
    let words = format!("{} {text}", e.code().unwrap_or_default());
    let (kind, what) = match e.kind() {
        _ if is_said && let Some(said) = in_words(&words, otherwise) => said,
        Kind::AuthenticationFailed => STRANGER,
        Kind::Server(Server::BusyLoading) => (ErrorKind::Unavailable, "is loading its data"),
        Kind::Server(Server::ClusterDown | Server::MasterDown | Server::TryAgain) => CLUSTER_DOWN,
        Kind::Server(Server::Moved | Server::Ask) => (
            ErrorKind::Unavailable,
            "keeps redirecting the request: the nodes of the cluster do not agree yet on which one has the \
             slot",
        ),
        Kind::MasterNameNotFoundBySentinel => (
            ErrorKind::Unavailable,
            "is a sentinel that knows no master of that name, or none that is up",
        ),
        Kind::RESP3NotSupported => TOO_OLD,
        // Of servers that all refused a connection the driver has the reason only in words.
        Kind::Io if text.contains("RESP3NotSupported") => TOO_OLD,
        Kind::Io
            if ["AuthenticationFailed", "WRONGPASS", "NOAUTH"]
                .iter()
                .any(|w| text.contains(w)) =>
        {
            STRANGER
        }
        Kind::Server(_) | Kind::Extension => match e.code() {
            Some("NOAUTH") => (ErrorKind::PermissionDenied, "requires a password"),
            Some("WRONGPASS") => STRANGER,
            _ => STRANGE,
        },
        Kind::UnexpectedReturnType | Kind::Parse => {
            (ErrorKind::BackendData, "sent an answer that cannot be read")
        }
        _ => (otherwise, "cannot be reached"),
    };
    Error::new(kind, format!("Redis at {at} {what}")).with_source(e)
}

/// What a server's error means, by the first of these that is in it, a word or a part. Of a command in a
/// script they are in different places: up to 6.x in the middle of an `ERR`, from 7.0 on in front, and of an
/// item of a batch in the answer.
fn in_words(text: &str, otherwise: ErrorKind) -> Option<Said> {
    use ErrorKind::{BackendData, LimitReached, PermissionDenied, Unavailable, Unsupported};
    let says = |part: &str| match part.contains(' ') {
        true => text.contains(part),
        false => has(text, part),
    };
    // First, since it may quote the user's own words.
    let denied = [
        "NOPERM",
        "can't run this command",
        "can't access at least one of the keys",
    ];
    let said = if denied.into_iter().any(says) {
        let what = "denies this user what a lock needs; docs/redis.md has the ACL";
        (PermissionDenied, what)
    } else if says("DLOCKVERSION") {
        let what = "has a lock that was written by a newer release of dlock: update this program";
        (Unsupported, what)
    } else if says("DLOCKFOREIGN") || says("WRONGTYPE") {
        let what = "has something under a key of the lock that dlock did not write: remove it, or use \
                    another prefix";
        (BackendData, what)
    } else if says("access a non local key") {
        // A script met a key that is on another node already, or on none: its earlier writes stand. A
        // repeated request finds them, or begins anew.
        (otherwise, "is moving the slot of this lock to another node")
    } else if says("would overflow") {
        (LimitReached, "has no larger token to give")
    } else if says("the cluster is down") {
        CLUSTER_DOWN
    } else if says("READONLY") {
        (Unavailable, "is a read-only replica")
    } else if says("OOM") {
        (Unavailable, "has reached its `maxmemory` and rejects writes")
    } else if says("MISCONF") {
        (Unavailable, "cannot save its data and rejects writes")
    } else if says("NOREPLICAS") {
        (
            Unavailable,
            "has fewer replicas than `min-replicas-to-write` and rejects writes",
        )
    } else if says("BUSY") {
        // Not ours: those are short, unless the server itself is stopped while one runs.
        let what = "is busy with a script of another program that runs for too long; SCRIPT KILL ends it";
        (Unavailable, what)
    } else if says("Script killed by user") {
        // Only one that has not written yet can be.
        (Unavailable, "ended the script, by SCRIPT KILL")
    } else {
        return None;
    };
    Some(said)
}

/// Whether that word is in there as a whole.
fn has(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|w| w == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the driver reads it.
    fn answered(line: &str) -> RedisError {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        answer.and_then(redis::Value::extract_error).unwrap_err()
    }

    fn kind(line: &str) -> ErrorKind {
        perhaps_done(Failed::sent(answered(line)), "there").kind()
    }

    /// Of a command in a script: as 6.2 says it, and as 7.0 does.
    fn in_script(word: &str, rest: &str) -> [String; 3] {
        const SHA: &str = "f_3a1bb8a6a3a3f4a6c3b0e1c9d2f7a5b4c3d2e1f0";
        [
            format!(
                "ERR Error running script (call to {SHA}): @user_script:12: @user_script: 12: -{word} {rest} "
            ),
            format!("ERR Error running script (call to {SHA}): @user_script:12: {word} {rest} "),
            format!("{word} {rest} script: {SHA}, on @user_script:12."),
        ]
    }

    /// Word, rest and kind.
    const SAID: &str = "
        READONLY|You can't write against a read only replica.|Unavailable
        OOM|command not allowed when used memory > 'maxmemory'.|Unavailable
        MISCONF|Redis is configured to save RDB snapshots, but it's currently unable to persist.|Unavailable
        NOREPLICAS|Not enough good replicas to write.|Unavailable
        WRONGTYPE|Operation against a key holding the wrong kind of value|BackendData
        NOPERM|this user has no permissions to run the 'OOM' command|PermissionDenied
        user_script:30:|DLOCKVERSION|Unsupported
        user_script:30:|DLOCKFOREIGN|BackendData
        ERR|Script attempted to access a non local key in a cluster node|Unknown
        ERR|Script attempted to execute a command while the cluster is down|Unavailable
        ERR|The user executing the script can't run this command or subcommand|PermissionDenied
        ERR|increment or decrement would overflow|LimitReached
        ERR|something else|BackendData";

    #[test]
    fn an_error_in_a_script_is_known_by_the_words_of_each_release() {
        for line in SAID.lines().skip(1) {
            let parts: Vec<_> = line.trim().split('|').collect();
            let [word, rest, is] = parts[..] else {
                panic!("{line}")
            };
            for line in in_script(word, rest) {
                assert_eq!(format!("{:?}", kind(&line)), is, "{line}");
                let said = is_of_a_replica(&answered(&line));
                assert_eq!(said, word == "READONLY", "{line}");
            }
            // And of an item of a batch.
            for text in [
                format!("@user_script: 12: -{word} {rest}"),
                format!("{word} {rest}"),
            ] {
                let e = of_item(text.clone(), "there", ErrorKind::Unknown);
                assert_eq!(format!("{:?}", e.kind()), is, "{text}");
                let cause = std::error::Error::source(&e).unwrap();
                assert!(cause.to_string().contains(rest), "{cause}");
            }
        }
    }

    #[test]
    fn a_server_that_is_busy_with_a_script_is_one_that_is_away() {
        for line in [
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "ERR Error running script (call to f_1): @user_script:1: Script killed by user with SCRIPT \
             KILL... ",
        ] {
            let e = perhaps_done(Failed::sent(answered(line)), "there");
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{line}");
            assert!(e.is_retryable());
        }
        assert_eq!(kind("ERR Busywork"), ErrorKind::BackendData);
    }
}
