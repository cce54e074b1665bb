//! One line of a history.

use dlock_core::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::mode::ModeTag;

/// One line of a history. Times are nanoseconds since the begin of the history, on the monotonic clock of the
/// harness's runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub t_mono_ns: u64,
    /// The lane. A lane has at most one operation in flight.
    pub lane: u32,
    /// The number of the operation, the same in its invoke and its return. For point events of a grant, the
    /// acquire that made it.
    pub op_id: u64,
    /// What kind of event.
    pub kind: EventKind,
    /// Which operation it is, in invokes and returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// Which lock.
    pub name: String,
    /// The acquire that made the grant that a renew or release is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// In which mode, in invokes of acquires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeTag>,
    /// The subject's own id of the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<String>,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The effective ttl. In `granted_belief_until`, the time that the holder believes it has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ns: Option<u64>,
    /// The outcome, in returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<OpOutcome>,
    /// The priority, in invokes of acquires that set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// The owner, in invokes of re-entrant acquires: the client and its owner key. Acquires of one owner do
    /// not exclude each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What a watcher saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Told>,
    /// The kind of the error, in returns that are not ok.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err_kind: Option<String>,
    /// Anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Event {
    /// Whether a fault begins or ends.
    pub fn is_fault(&self) -> bool {
        matches!(self.kind, EventKind::FaultBegin | EventKind::FaultEnd)
    }

    /// Whether an acquire begins or ends.
    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.op, Some(Op::Acquire | Op::Try))
    }

    /// Whether it tells of a guard or a call that was dropped.
    pub(crate) fn is_drop(&self) -> bool {
        self.kind == EventKind::Dropped || self.note.as_deref() == Some(DROPPED)
    }

    /// The acquire that it belongs to; another operation is its own.
    pub fn unit(&self) -> u64 {
        self.of.unwrap_or(self.op_id)
    }

    /// An event of that kind without other fields. The recorder stamps it.
    pub fn new(kind: EventKind, lane: u32, op_id: u64, name: impl Into<String>) -> Self {
        Self {
            lane,
            op_id,
            kind,
            name: name.into(),
            ..Self::default()
        }
    }
}

/// What is noted of a call whose future was dropped.
pub(super) const DROPPED: &str = "its future was dropped";

/// What kind of event it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An operation begins.
    #[default]
    Invoke,
    /// An operation ends.
    Return,
    /// The holder believes for another `ttl_ns`; 0 if the hold was over when it was returned.
    GrantedBeliefUntil,
    /// The holder learns that the hold is lost.
    Lost,
    /// The guard is dropped.
    Dropped,
    /// The acquire in flight was seen in the queue.
    Queued,
    /// A watcher saw a change. The operation is the subscription.
    Watch,
    /// A fault begins.
    FaultBegin,
    /// A fault ends.
    FaultEnd,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A waiting acquire.
    Acquire,
    /// An acquire that does not wait.
    Try,
    /// A renewal.
    Renew,
    /// A release.
    Release,
    /// A subscription to the changes of a name.
    Watch,
    /// A write to a fenced resource, with the token that the invoke carries: ok if accepted, held if refused.
    Write,
    /// A read of a fenced resource: the token of the write that it found is in the return.
    Read,
}

/// What a watcher sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The holders now.
    Snapshot {
        /// Their ids.
        holders: Vec<String>,
        /// Whether changes before this may be missing.
        skipped: bool,
    },
    /// A grant, with its token.
    Granted(String, Option<u64>),
    /// A hold was released, expired or was ended by force.
    Ended(String),
    /// The stream is over.
    Over,
}

/// The outcome of an operation, as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpOutcome {
    /// Done.
    Ok,
    /// Refused, no effect.
    Held,
    /// Timed out, no effect.
    TimedOut,
    /// The hold had ended before the return.
    Lost,
    /// No effect.
    Failed,
    /// May have taken effect, or take effect later.
    Unknown,
}

impl OpOutcome {
    /// The meaning of an error in the model.
    pub fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Timeout => Self::TimedOut,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::InvalidInput
            | ErrorKind::Unsupported
            | ErrorKind::LimitReached
            | ErrorKind::Unavailable
            | ErrorKind::PermissionDenied => Self::Failed,
            // `BackendData` and `Closed` do not show whether a request was sent.
            _ => Self::Unknown,
        }
    }
}
