//! The one error type.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::name::LockName;

/// The result of what this crate offers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, named by what the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The wait limit ran out; nothing is held and nothing is queued. Try again later.
    Timeout,
    /// The hold had ended before this call. Stop what you do under the lock.
    Lost,
    /// The request was sent and its outcome is not known. It may be held; the engine goes on undoing it.
    Unknown,
    /// A name, ttl, option, URL or permit class is wrong. Mend the call.
    InvalidInput,
    /// The backend does not declare the capability. Nothing was sent.
    Unsupported,
    /// A declared limit is reached.
    LimitReached,
    /// The server is away. Nothing took effect. Try again later.
    Unavailable,
    /// The server refuses the user. Mend its rights.
    PermissionDenied,
    /// Something under our key was not written by us. An operator must look.
    BackendData,
    /// The client was closed.
    Closed,
}

/// Why a hold ended without being released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed without a confirmed renewal.
    Expired,
    /// The store said that the lease is not held any more.
    Refused,
    /// The session or connection that the hold depended on has ended.
    SessionLost,
    /// The maximum hold that was asked for is over.
    MaxHold,
    /// The client was closed, or the runtime that its keeper ran on has ended.
    Closed,
    /// It was released, by this guard.
    Released,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its deadline passed without a confirmed renewal",
            Self::Refused => "the store says that it is not held",
            Self::SessionLost => "the session that it depended on has ended",
            Self::MaxHold => "its maximum hold is over",
            Self::Closed => "its client was closed",
            Self::Released => "it was released",
        })
    }
}

type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// An error of a lock operation: a [`kind`](Error::kind), a sentence, perhaps a cause. Cheap to clone.
///
/// The `Display` form is one clause without the cause (walk [`source`](StdError::source) for that) and never
/// contains a secret.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    name: Option<LockName>,
    loss: Option<LossReason>,
    source: Option<Source>,
}

impl Error {
    /// An error of that kind. `message` is a lower-case clause that says what, where and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            name: None,
            loss: None,
            source: None,
        }))
    }

    /// The hold had ended, for that reason.
    pub fn lost(reason: LossReason) -> Self {
        let mut e = Self::new(ErrorKind::Lost, "the lock is not held any more");
        e.0.loss = Some(reason);
        e
    }

    /// Says which lock it was about.
    #[must_use]
    pub fn with_name(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| name.clone());
        self
    }

    /// Says the name differently, for combinators that rename; `None` forgets it.
    #[must_use]
    pub(crate) fn map_name(mut self, f: impl FnOnce(&LockName) -> Option<LockName>) -> Self {
        self.0.name = self.0.name.as_ref().and_then(f);
        self
    }

    /// Keeps the cause. It must not contain a secret.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Keeps that error as the cause, if there is one.
    #[must_use]
    pub(crate) fn caused_by(self, cause: Option<Self>) -> Self {
        match cause {
            Some(cause) => self.with_source(cause),
            None => self,
        }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Which lock it was about, if about one.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// Why the hold ended, for errors of kind [`ErrorKind::Lost`].
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.0.loss
    }

    /// Whether the same call may succeed later, with nothing changed.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Timeout | ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::LimitReached
        )
    }

    /// Whether the store may hold something in the caller's name after this error. The engine goes on undoing
    /// it; at the latest it lapses with its ttl.
    pub fn may_be_held(&self) -> bool {
        self.0.kind == ErrorKind::Unknown
    }
}

/// What is a [`LockName`] already is taken as one.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(reason) = self.0.loss {
            write!(f, ": {reason}")?;
        }
        if let Some(name) = &self.0.name {
            write!(f, " (lock `{name}`)")?;
        }
        Ok(())
    }
}

/// In words and on one line, since this is what a program prints that returns it from `main`: the message,
/// the kind, and the causes, each in its own words.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} [{:?}]", self.0.kind)?;
        let mut told = String::new();
        for cause in std::iter::successors(self.source(), |&cause| cause.source()) {
            let words = cause.to_string();
            // Many say in their own words what caused them.
            if !told.contains(&words) {
                write!(f, ": {words}")?;
                told = words;
            }
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|s| &**s as _)
    }
}
