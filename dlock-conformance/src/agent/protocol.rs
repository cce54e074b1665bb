//! The messages between parent and child: one JSON line each.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, LockName, LossReason};
use serde::{Deserialize, Serialize};

use super::churn::{Churn, Step};
use super::hold::Look;
use crate::subject::Ask;

/// The prefix of each line of a child, so that no other output is taken for one.
pub(super) const MARK: &str = "dlock-agent ";

/// A command, and its number.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) n: u64,
    pub(super) command: Command,
}

/// The answer to the command of that number; several, to a churn.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) n: u64,
    pub(super) answer: Answer,
}

/// The commands to a child. A hold has the number of the command that acquired it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    Try {
        name: Vec<u8>,
        ask: Ask,
    },
    Acquire {
        name: Vec<u8>,
        ask: Ask,
        limit: Option<Duration>,
    },
    Renew(u64),
    Release(u64),
    Drop(u64),
    /// Answered by the thread that reads the commands: before any task of the child's runtime has run.
    Look(u64),
    /// Answered when the hold is lost.
    Lost(u64),
    Write {
        resource: Vec<u8>,
        token: u64,
        value: Vec<u8>,
    },
    /// Takes and releases each name through clients of its own.
    Ids {
        clients: Vec<Vec<Vec<u8>>>,
        ask: Ask,
    },
    WallClock,
    Churn(Churn),
    /// Drops the future of that command.
    Cancel(u64),
}

/// What a child answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The child is connected. This answers no command and has the number 0.
    Hello,
    Done,
    Held(WireHold),
    HeldByAnother,
    Look(Look),
    Lost(String),
    Admitted,
    Refused {
        highest: u64,
    },
    Ids(Vec<String>),
    /// Since 1970.
    WallClock(Duration),
    Step(Step),
    Failed {
        kind: String,
        text: String,
    },
}

/// What an answer of that kind says.
macro_rules! told {
    ($kind:pat => $said:expr) => {
        |answer| match answer {
            $kind => Some($said),
            _ => None,
        }
    };
}
pub(super) use told;

/// A hold as it was when it was granted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireHold {
    pub(super) id: String,
    pub(super) token: Option<u64>,
    pub(super) ttl: Duration,
    pub(super) remaining: Duration,
    /// On the child's clock.
    pub(super) deadline: u64,
}

pub(super) fn bytes(name: &LockName) -> Vec<u8> {
    name.as_bytes().to_vec()
}

/// The kinds by name. An unknown one becomes `BackendData`: the child speaks another version.
const KINDS: [ErrorKind; 10] = [
    ErrorKind::Timeout,
    ErrorKind::Lost,
    ErrorKind::Unknown,
    ErrorKind::InvalidInput,
    ErrorKind::Unsupported,
    ErrorKind::LimitReached,
    ErrorKind::Unavailable,
    ErrorKind::PermissionDenied,
    ErrorKind::BackendData,
    ErrorKind::Closed,
];

const REASONS: [LossReason; 6] = [
    LossReason::Expired,
    LossReason::Refused,
    LossReason::SessionLost,
    LossReason::MaxHold,
    LossReason::Closed,
    LossReason::Released,
];

pub(super) fn failed(kind: ErrorKind, text: impl ToString) -> Answer {
    Answer::Failed {
        kind: format!("{kind:?}"),
        text: text.to_string(),
    }
}

pub(super) fn error(kind: &str, text: String) -> Error {
    let found = KINDS.into_iter().find(|k| format!("{k:?}") == kind);
    Error::new(found.unwrap_or(ErrorKind::BackendData), text)
}

pub(super) fn reason(text: &str) -> LossReason {
    let found = REASONS.into_iter().find(|r| format!("{r:?}") == text);
    found.unwrap_or(LossReason::Refused)
}
